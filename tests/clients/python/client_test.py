"""The clients against a fake server: what goes out, what comes back, how streams end."""

import asyncio
import pathlib
import re
import subprocess
import sys

import grpc
import pytest
from google.protobuf import duration_pb2, text_format
from google.rpc import error_details_pb2

import longspan
from fake_server import Failure
from longspan import AsyncClient, Chunk, Client, Finished, FinishReason, LongspanError, Queued, Started
from longspan.v1 import inference_pb2 as pb

ROOT = pathlib.Path(__file__).resolve().parents[3]


def collect(fake, prompt="hi", **options):
    """Events of the synchronous client, after holding the asynchronous one to the same."""

    async def run():
        async with AsyncClient(fake.address) as client:
            return [event async for event in client.generate(prompt, **options)]

    with Client(fake.address) as client:
        events = list(client.generate(prompt, **options))
    assert asyncio.run(run()) == events
    assert fake.requests[-1] == fake.requests[-2]
    return events


def failure_of(call):
    with pytest.raises(LongspanError) as caught:
        call()
    return caught.value


def test_unset_options_stay_unset_on_the_wire(fake):
    collect(fake, "hi", temperature=None)
    assert fake.requests[-1] == pb.GenerateRequest(text="hi")


def test_zero_is_sent(fake):
    collect(fake, "hi", temperature=0, max_tokens=0, priority=0, return_text=False)
    request = fake.requests[-1]
    assert request.sampling.HasField("temperature") and request.stop.HasField("max_tokens")
    assert request.HasField("priority") and request.output.HasField("text")


def test_every_option_reaches_its_field(fake):
    collect(
        fake, [1, 2, 3], request_id="a", model="m", add_special_tokens=False, parse_special_tokens=True, n=2, priority=-1,
        cache_salt="s", prefix_cache="bypass", reservation="guaranteed", temperature=0.5, top_k=40, top_p=0.5, min_p=0.25,
        repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-0.5, seed=2**64 - 1, logit_bias={5: -100.0},
        allowed_token_ids=[1, 5], bad_words=["no"], max_tokens=9, min_tokens=1, stop=["x", "y"], stop_token_ids=[2],
        ignore_eos=True, include_stop_in_output=True, return_text=True, return_token_ids=False, skip_special_tokens=False,
        logprobs=0, prompt_logprobs=3,
    )
    expected = text_format.Parse(
        """
        request_id: "a" model: "m" token_ids { ids: [1, 2, 3] } add_special_tokens: false parse_special_tokens: true
        n: 2 priority: -1 cache_salt: "s" prefix_cache: PREFIX_CACHE_POLICY_BYPASS reservation: RESERVATION_GUARANTEED
        sampling { temperature: 0.5 top_k: 40 top_p: 0.5 min_p: 0.25 repetition_penalty: 1.5 presence_penalty: 0.5
                   frequency_penalty: -0.5 seed: 18446744073709551615 logit_bias { key: 5 value: -100 }
                   allowed_token_ids: [1, 5] bad_words: "no" }
        stop { max_tokens: 9 min_tokens: 1 strings: ["x", "y"] token_ids: 2 ignore_eos: true include_stop_in_output: true }
        output { text: true token_ids: false skip_special_tokens: false logprobs: 0 prompt_logprobs: 3 }
        """,
        pb.GenerateRequest(),
    )
    assert fake.requests[-1] == expected


def test_every_field_of_the_request_has_an_option():
    def leaves(descriptor):
        for field in descriptor.fields:
            nested = field.message_type
            if nested is not None and not nested.GetOptions().map_entry and field.name != "token_ids":
                yield from leaves(nested)
            else:
                yield field.name

    names = {"text", "token_ids", "strings"}  # the prompt; return_text, return_token_ids, stop and stop_token_ids
    assert set(leaves(pb.GenerateRequest.DESCRIPTOR)) - names == set(longspan.GenerateOptions.__annotations__) - {
        "return_text", "return_token_ids", "stop", "stop_token_ids", "timeout", "metadata",
    }


def test_a_single_stop_string_is_one_string(fake):
    collect(fake, "hi", stop="END")
    assert list(fake.requests[-1].stop.strings) == ["END"]


def test_an_empty_list_of_ids_is_a_prompt_of_ids(fake):
    collect(fake, [])
    assert fake.requests[-1].WhichOneof("input") == "token_ids"


@pytest.mark.parametrize("options", [{"temprature": 1}, {"temprature": None}])
def test_a_misspelt_option_is_refused(fake, options):
    with Client(fake.address) as client, pytest.raises(TypeError, match="temprature"):
        client.generate("hi", **options)
    assert fake.requests == []


def test_an_unknown_choice_is_refused(fake):
    with Client(fake.address) as client, pytest.raises(ValueError, match="reservation.*preemptible"):
        client.generate("hi", reservation="maybe")


def test_events_come_typed_and_in_order(fake):
    fake.responses = [
        text_format.Parse(text, pb.GenerateResponse())
        for text in (
            "queued { position: 4 }",
            "queued { position: 1 estimated_delay_seconds: 0.5 }",
            'started { request_id: "r" prompt_tokens: 8 cached_tokens: 4 seed: 18446744073709551615 }',
            "prompt_logprobs { start: 0 entries { token_id: 3 } entries { token_id: 4 logprob: -2 } }",
            'chunk { index: 1 token_ids: [5, 6] text: "é" logprobs { token_id: 5 logprob: 0 top { token_id: 9 logprob: -1 } } }',
            'finished { index: 1 reason: FINISH_REASON_STOP matched_string: "END" usage { prompt_tokens: 8 cached_tokens: 4 '
            "completion_tokens: 2 } timings { queue_seconds: 1 prefill_seconds: 2 time_to_first_token_seconds: 3 "
            "time_per_output_token_seconds: 4 kv_bytes_read: 5 } }",
            "finished { reason: FINISH_REASON_LENGTH }",
            "finished { reason: FINISH_REASON_ABORTED matched_token_id: 0 }",
        )
    ]
    none = longspan.Usage(0, 0, 0), longspan.Timings(0.0, 0.0, 0.0, 0.0, 0)
    token = longspan.TokenLogprobs
    assert collect(fake) == [
        Queued(4, None),
        Queued(1, 0.5),
        Started("r", 8, 4, 2**64 - 1),
        longspan.PromptLogprobs(0, (token(3, None, ()), token(4, -2.0, ()))),
        Chunk(1, (5, 6), "é", (token(5, 0.0, (longspan.TopLogprob(9, -1.0),)),)),
        Finished(1, FinishReason.STOP, "END", longspan.Usage(8, 4, 2), longspan.Timings(1.0, 2.0, 3.0, 4.0, 5)),
        Finished(0, FinishReason.LENGTH, None, *none),
        Finished(0, FinishReason.ABORTED, 0, *none),
    ]


def test_an_event_of_a_newer_server_is_skipped(fake):
    newer = pb.GenerateResponse.FromString(b"\xfa\x01\x00")  # field 31, length-delimited, empty
    fake.responses = [newer, pb.GenerateResponse(chunk=pb.Chunk(text="a"))]
    assert [event.text for event in collect(fake)] == ["a"]


def test_a_wrong_field_is_named(fake):
    violation = error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p", description="7 (0, 1]")
    bad_request = error_details_pb2.BadRequest(field_violations=[violation])
    fake.failure = Failure.of(grpc.StatusCode.INVALID_ARGUMENT, "sampling.top_p: 7 (0, 1]", bad_request)
    error = failure_of(lambda: collect(fake))
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT and error.message == "sampling.top_p: 7 (0, 1]"
    assert error.field_violations == (longspan.FieldViolation("sampling.top_p", "7 (0, 1]"),)
    assert error.retry_delay is None and "INVALID_ARGUMENT" in str(error)


def test_a_full_queue_says_when_to_retry(fake):
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    fake.failure = Failure.of(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full", retry)
    error = failure_of(lambda: collect(fake))
    assert (error.code, error.retry_delay, error.field_violations) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 1.5, ())


def test_details_that_do_not_decode_leave_code_and_message(fake):
    broken = (("grpc-status-details-bin", b"\xff\xff\xff"),)
    fake.failure = Failure(grpc.StatusCode.UNAVAILABLE, "draining", broken)
    error = failure_of(lambda: collect(fake))
    assert (error.code, error.message, error.retry_delay) == (grpc.StatusCode.UNAVAILABLE, "draining", None)


def test_unary_calls_fail_with_the_same_error(fake):
    fake.failure = Failure.of(grpc.StatusCode.NOT_FOUND, "no such model")

    async def run():
        async with AsyncClient(fake.address) as client:
            await client.tokenize("hi")

    with Client(fake.address) as client:
        assert failure_of(lambda: client.tokenize("hi")).code is grpc.StatusCode.NOT_FOUND
    assert failure_of(lambda: asyncio.run(run())).message == "no such model"


def test_what_was_streamed_before_an_error_is_kept(fake):
    fake.say("a", "b", finish=False)
    fake.failure = Failure.of(grpc.StatusCode.DEADLINE_EXCEEDED, "late")
    seen = []
    with Client(fake.address) as client, pytest.raises(LongspanError):
        seen.extend(event for event in client.generate("hi"))
        pytest.fail("the error was swallowed")
    with Client(fake.address) as client, pytest.raises(LongspanError):
        for event in client.generate("hi"):
            seen.append(event)
    assert [event.text for event in seen if isinstance(event, Chunk)] == ["a", "b"] * (len(seen) // 3)
    assert len(seen) >= 3


def test_timeout_is_the_deadline(fake):
    fake.hold = True
    error = failure_of(lambda: collect(fake, timeout=0.2))
    assert error.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert fake.client_left.wait(10)


def test_metadata_is_sent(fake):
    collect(fake, metadata=[("traceparent", "00-1-2-01")])
    assert [sent["traceparent"] for sent in fake.metadata] == ["00-1-2-01"] * 2


def first_chunk(stream):
    return next(event for event in stream if isinstance(event, Chunk))


def leave_by_with(client):
    with client.generate("hi") as stream:
        first_chunk(stream)


def leave_by_drop(client):
    first_chunk(client.generate("hi"))


def leave_by_cancel(client):
    stream = client.generate("hi")
    first_chunk(stream)
    stream.cancel()
    assert failure_of(lambda: list(stream)).code is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("leave", [leave_by_with, leave_by_drop, leave_by_cancel])
def test_leaving_a_stream_cancels_the_call(fake, leave):
    fake.say("a", finish=False)
    fake.hold = True
    with Client(fake.address) as client:
        leave(client)
        assert fake.client_left.wait(10)


@pytest.mark.parametrize("how", ["with", "cancel", "task"])
def test_leaving_an_asynchronous_stream_cancels_the_call(fake, how):
    fake.say("a", finish=False)
    fake.hold = True

    async def read(client, started):
        async with client.generate("hi") as stream:
            async for event in stream:
                if isinstance(event, Chunk):
                    started.set()
                    if how == "with":
                        break
                    if how == "cancel":
                        stream.cancel()

    async def run():
        async with AsyncClient(fake.address) as client:
            started = asyncio.Event()
            task = asyncio.create_task(read(client, started))
            await started.wait()
            if how == "task":
                task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            left = await asyncio.get_running_loop().run_in_executor(None, fake.client_left.wait, 10)
            return outcome, left

    outcome, left = asyncio.run(run())
    assert left
    if how == "with":
        assert outcome is None
    elif how == "task":
        assert isinstance(outcome, asyncio.CancelledError)
    else:
        assert outcome.code is grpc.StatusCode.CANCELLED


def test_small_calls(fake):
    async def run():
        async with AsyncClient(fake.address) as client:
            return (
                await client.tokenize("ab", parse_special_tokens=True), await client.detokenize([1, 2]),
                await client.abort("r1"), await client.abort("r2"), await client.model_info(),
                await client.server_info(), await client.load(),
            )

    fake.model_info.bos_token_id = 0
    fake.server_info.devices.add(name="cpu", memory_total_bytes=4)
    fake.server_info.flags["threads"] = "2"
    with Client(fake.address) as client:
        answers = (
            client.tokenize("ab", parse_special_tokens=True), client.detokenize([1, 2]), client.abort("r1"),
            client.abort("r2"), client.model_info(), client.server_info(), client.load(),
        )
    assert asyncio.run(run()) == answers
    assert answers[:4] == ([97, 98], "<1><2>", True, False)
    model, server, load = answers[4:]
    assert (model.name, model.bos_token_id, model.eos_token_ids) == ("fake", 0, (2,))
    assert (server.state, server.flags) == (longspan.ServerState.SERVING, {"threads": "2"})
    assert server.devices == (longspan.Device("cpu", "", 4, 0),)
    assert (load.running_requests, load.estimated_queue_delay_seconds) == (3, None)
    assert fake.requests[0] == pb.TokenizeRequest(text="ab", parse_special_tokens=True)


def test_a_state_of_a_newer_server_is_unknown(fake):
    fake.server_info.state = 77
    with Client(fake.address) as client:
        assert client.server_info().state is longspan.ServerState.UNKNOWN


def test_chat_sends_the_rendered_template(fake):
    fake.model_info.chat_template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    fake.model_info.bos_token_id = 1
    fake.say("fine")
    messages = [{"role": "user", "content": "how are you"}]

    async def run():
        async with AsyncClient(fake.address) as client:
            return [event async for event in await client.chat(messages, max_tokens=3)]

    with Client(fake.address) as client:
        events = list(client.chat(messages, max_tokens=3))
        assert client.render_chat(messages) == "<1>[user]how are you<2>"
    assert asyncio.run(run()) == events
    generated = [request for request in fake.requests if isinstance(request, pb.GenerateRequest)]
    expected = pb.GenerateRequest(
        text="<1>[user]how are you<2>", add_special_tokens=False, parse_special_tokens=True, stop=pb.StopParams(max_tokens=3)
    )
    assert generated == [expected, expected]


def test_one_client_serves_many_threads(fake):
    fake.say("a", "b")
    with Client(fake.address) as client:
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            streams = list(pool.map(lambda _: list(client.generate("hi")), range(32)))
    assert all(stream == streams[0] for stream in streams) and len(fake.requests) == 32


def test_versions_of_package_and_server_are_one():
    project = re.search(r"project\(longspan VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    package = re.search(r'^version = "(.+)"', (ROOT / "clients/python/pyproject.toml").read_text(), re.M).group(1)
    assert package == project


def test_nothing_generated_is_committed():
    listed = subprocess.run(["git", "ls-files", "clients/python"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert not [name for name in listed.stdout.split() if "_pb2" in name]


def test_the_installed_package_declares_what_it_imports(site):
    metadata = next(site.glob("longspan-*.dist-info/METADATA")).read_text()
    for name in ("protobuf", "grpcio", "googleapis-common-protos", "jinja2"):
        assert re.search(rf"^Requires-Dist: {name}[<>=]", metadata, re.M), name
    assert (site / "longspan" / "py.typed").exists() and sys.version_info >= (3, 10)
