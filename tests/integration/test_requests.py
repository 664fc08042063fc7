"""What a request may hold and what it may not: faults R1 to R9, T9, U1, cases 23, 25, 27, 28, 30, 33, 55."""

import math

import numpy as np
import pytest
from harness import CANARY_PROMPT, CODE, request, wait_until
from longspan.v1 import inference_pb2

INF, NAN = math.inf, math.nan
MIN32, MAX32 = -(2**31), 2**31 - 1


def test_Fault_R1_EmptyPrompts(server):
    for prompt in ([], "", None):
        answer = server.generate(prompt, 4)
        assert answer.code == CODE.INVALID_ARGUMENT
        assert answer.fields()[0] in ("token_ids", "text", "input")
    assert "empty" in server.generate([], 4).message


def test_Fault_R2_PromptAgainstTheContext(server):
    assert len(server.generate([5] * 255, 1).ids()) == 1
    for n in (256, 257):
        answer = server.generate([5] * n, 1)
        assert (answer.code, answer.fields()) == (CODE.INVALID_ARGUMENT, ["token_ids"])
    clamped = server.generate([5] * 250, 100)
    assert len(clamped.ids()) == 6 and clamped.reason() == "LENGTH"


def test_Fault_R3_MaxTokens(server):
    prompt_only = server.generate([5] * 10, 0)
    assert prompt_only.code == CODE.OK and prompt_only.ids() == []
    assert prompt_only.reason() == "LENGTH"
    assert len(server.generate([5] * 10, 1).ids()) == 1
    assert server.generate([5] * 10, -1).fields() == ["stop.max_tokens"]
    assert len(server.generate([5] * 240, None).ids()) == 16, "the room left"


@pytest.mark.parametrize("bad", [-1, 512, MAX32, MIN32])
def test_Fault_R4_TokenIds(server, bad):
    neighbour = server.start(CANARY_PROMPT, 8)
    assert server.generate([1, bad], 4).fields() == ["token_ids.ids[1]"]
    assert server.generate([1], 4, stop__token_ids=[bad]).fields() == ["stop.token_ids[0]"]
    assert server.generate([1], 4, sampling__logit_bias={bad: 1.0}).fields() == [
        f"sampling.logit_bias[{bad}]"
    ]
    assert server.generate([1], 4, sampling__allowed_token_ids=[bad]).fields() == [
        "sampling.allowed_token_ids[0]"
    ]
    assert neighbour.result().ids() == server.canary


FLOATS = [
    ("temperature", [0.0, 1e-9, 1.0, 100.0], [-1.0, 1e9]),
    ("top_p", [1e-7, 0.999999, 1.0], [-0.1, 0.0, 1.1]),
    ("min_p", [0.0, 1.0], [-0.1, 1.1]),
    ("repetition_penalty", [1e-6, 10.0], [0.0, -1.0, 10.1]),
    ("presence_penalty", [-2.0, 2.0], [-2.1, 2.1]),
    ("frequency_penalty", [-2.0, 2.0], [-2.1, 2.1]),
]


@pytest.mark.parametrize("name, good, bad", FLOATS)
def test_Fault_R5_SamplingNumbers(server, name, good, bad):
    for value in good:
        message = request([9, 8], 3)
        message.sampling.temperature = 0.7
        setattr(message.sampling, name, value)
        answer = server.generate(message)
        assert answer.code == CODE.OK, (name, value, answer.message)
        assert all(0 <= i < 512 for i in answer.ids())
    for value in [*bad, NAN, INF, -INF]:
        answer = server.generate([9, 8], 3, **{f"sampling__{name}": value})
        assert answer.fields() == [f"sampling.{name}"], value


def test_Fault_R5_TopKAndTinyTemperature(server):
    greedy = server.generate([9, 8], 8).ids()
    for top_k in (-1, 0, 1, 512, MAX32):
        assert server.generate([9, 8], 8, sampling__top_k=top_k).ids() == greedy
    assert server.generate([9, 8], 8, sampling__top_k=-2).fields() == ["sampling.top_k"]
    assert server.generate([9, 8], 8, sampling__temperature=1e-9).ids() == greedy
    warm = server.generate([9, 8], 8, sampling__temperature=1.0, sampling__top_k=1)
    assert warm.ids() == greedy


def test_Fault_R6_StopsAndMinTokens(server):
    assert server.generate([9], 4, stop__min_tokens=5).fields() == ["stop.min_tokens"]
    for count, ok in ((0, True), (1, True), (16, True), (17, False)):
        answer = server.generate([9], 2, stop__strings=[f"never {i}" for i in range(count)])
        assert (answer.code == CODE.OK) is ok
    for text in ("", "x" * 10_240):
        assert server.generate([9], 4, stop__strings=[text]).fields() == ["stop.strings[0]"]


# Smallest and largest value of every number of a request, as api documentation and proto comments have them.
# top_p and repetition_penalty do not include their smallest.
LIMITS = {
    "n": (1, 16),
    "priority": (MIN32, MAX32),
    "sampling.temperature": (0.0, 100.0),
    "sampling.top_k": (-1, MAX32),
    "sampling.top_p": (0.0, 1.0),
    "sampling.min_p": (0.0, 1.0),
    "sampling.repetition_penalty": (0.0, 10.0),
    "sampling.presence_penalty": (-2.0, 2.0),
    "sampling.frequency_penalty": (-2.0, 2.0),
    "sampling.seed": (0, 2**64 - 1),
    "stop.max_tokens": (0, MAX32),
    "stop.min_tokens": (0, MAX32),
    "output.logprobs": (0, 20),
    "output.prompt_logprobs": (0, 20),
}
EXCLUSIVE = ("sampling.top_p", "sampling.repetition_penalty")
# Items at most, and a good item.
ITEMS = {
    "sampling.allowed_token_ids": (1024, 5),
    "sampling.bad_words": (1024, "w"),
    "stop.strings": (16, "never"),
    "stop.token_ids": (64, 511),
}


def number_fields(message, prefix=""):
    """The paths of all single numbers of a message, and their descriptors."""
    for field in message.DESCRIPTOR.fields:
        path, value = prefix + field.name, getattr(message, field.name)
        if hasattr(value, "DESCRIPTOR"):
            yield from number_fields(value, path + ".")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and field.enum_type is None:
            yield path, field


NUMBERS = dict(number_fields(inference_pb2.GenerateRequest()))


def test_Fault_U1_EveryNumberHasALimit():
    assert set(LIMITS) == set(NUMBERS), "a new number needs its row here"


@pytest.mark.parametrize("path", sorted(LIMITS))
def test_Fault_U1_EveryNumberAtItsBorders(server, path):
    low, high = LIMITS[path]
    whole = isinstance(low, int)
    unsigned = NUMBERS[path].cpp_type == NUMBERS[path].CPPTYPE_UINT64
    least, most = (0, 2**64 - 1) if unsigned else (MIN32, MAX32)
    if whole:
        values = {least, -1, 0, 1, low - 1, low, low + 1, high - 1, high, high + 1, most}
        values = {v for v in values if least <= v <= most}
    else:
        values = {-1.0, 0.0, 1e-40, 1.0, low - 0.5, low, high, high * 1.01 + 0.1, 3e38, NAN, INF, -INF}
    for value in values:
        answer = server.generate([9, 8], 2, **{path.replace(".", "__"): value})
        inside = low < value <= high if path in EXCLUSIVE else low <= value <= high
        if path == "stop.min_tokens" and value > 2:
            inside = False  # above max_tokens
        if inside:
            assert answer.code == CODE.OK, (path, value, answer.message)
        else:
            assert (answer.code, answer.fields()) == (CODE.INVALID_ARGUMENT, [path]), (path, value)
            assert len(answer.message) < 8192


@pytest.mark.parametrize("path", sorted(ITEMS))
def test_Fault_U1_EveryListAtItsBorders(server, path):
    limit, item = ITEMS[path]
    for count in (0, 1, limit, limit + 1):
        answer = server.generate([9, 8], 2, **{path.replace(".", "__"): [item] * count})
        if count <= limit:
            assert answer.code == CODE.OK, (path, count, answer.message)
        else:
            assert (answer.code, answer.fields()) == (CODE.INVALID_ARGUMENT, [path]), (path, count)


def test_Fault_T9_LogInjection(server):
    for bad in ("a\nb", "\x1b[31mred", "tab\t"):
        assert server.generate([9], 2, request_id=bad).fields() == ["request_id"]
    answer = server.generate([9], 2, model="toy\n\x1b[31mFORGED")
    assert answer.code == CODE.NOT_FOUND
    assert "FORGED" not in answer.message
    server.generate([9], 2, call_options={"metadata": [("traceparent", "00-\x7fFORGED-01")]})
    assert "\x1b[31m" not in server.log_text() and "FORGED" not in server.log_text()


def test_Fault_T9_TraceContextInTheLog(launch, toy):
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    with launch(toy, log_level="debug") as server:
        server.remember_canary()
        server.generate([9], 2, request_id="traced", call_options={"metadata": [("traceparent", trace)]})
        server.generate([9], 2, request_id="forged", call_options={"metadata": [("traceparent", trace + " FORGED")]})
        server.check_health()
        wait_until(lambda: "request forged ended" in server.log_text(), "the ends are logged")
        ends = {line.split("request ")[1].split()[0]: line for line in server.log_text().splitlines() if " ended" in line}
        assert f"trace {trace}," in ends["traced"]
        assert "trace none," in ends["forged"] and "FORGED" not in server.log_text()


def test_Fault_I5_PromptTextIsNowhere(server):
    marker = "zqzqMARKERzqzq"
    server.generate(marker, 2)
    server.generate(marker * 40, 2)
    server.generate([9], 2, stop__strings=[marker * 100])
    assert "MARKER" not in server.log_text()
    assert not any("MARKER" in name for name in server.metrics())


def test_Case_025_EmptyBesideGoodOnes(server):
    jobs = [server.start([i + 1, 5, 6], 6) for i in range(4)]
    assert server.generate("", 4).code == CODE.INVALID_ARGUMENT
    assert all(len(job.result().ids()) == 6 for job in jobs)


def test_Case_027_LogitBias(server):
    assert server.generate([9], 3, sampling__logit_bias={511: 5.0}).code == CODE.OK
    for bias in ({512: 5.0}, {-1: 5.0}, {3: NAN}, {3: 1e38}, {i: 1.0 for i in range(100_000)}):
        answer = server.generate([9], 3, sampling__logit_bias=bias)
        assert answer.code == CODE.INVALID_ARGUMENT
        assert "limit" in answer.message
    forced = server.generate([9], 3, sampling__logit_bias={77: 100.0})
    assert forced.ids() == [77, 77, 77]


def test_Case_028_PromptIdBorders(server):
    for prompt, ok in (([-1], False), ([0], True), ([511], True), ([512], False), ([MIN32], False)):
        assert (server.generate(prompt, 2).code == CODE.OK) is ok
    # 2^32 - 1 as an unsigned varint: the wire truncates it to -1.
    data = bytearray(request([1], 2).SerializeToString())
    ids = inference_pb2.TokenIds(ids=[1]).SerializeToString()
    at = bytes(data).index(ids)
    wide = bytes([0x0A, 5]) + b"\xff\xff\xff\xff\x0f"
    data[at - 1 : at + len(ids)] = bytes([len(wide)]) + wide
    call = server.channel.unary_stream("/longspan.v1.Inference/Generate")(bytes(data))
    with pytest.raises(Exception):
        list(call)
    assert call.code() == CODE.INVALID_ARGUMENT


def test_Case_030_SeedsDoNotSeeTheirNeighbours(server):
    def seeded(start=server.generate):
        return start([11, 12, 13], 16, sampling__temperature=0.8, sampling__seed=42)

    def other(**fields):
        return server.start([21, 22], 16, sampling__temperature=0.8, **fields)

    alone = seeded().ids()
    assert len(alone) == 16
    unseeded = other()
    assert seeded().ids() == alone
    seven = other(sampling__seed=7)
    assert seeded().ids() == alone
    crowd = [other(sampling__seed=i) for i in range(6)]
    twins = [seeded(server.start), seeded(server.start)]
    assert [t.result().ids() for t in twins] == [alone, alone]
    for job in (unseeded, seven, *crowd):
        assert job.result().code == CODE.OK
    drawn = [server.generate([11, 12, 13], 4, sampling__temperature=0.8) for _ in range(2)]
    assert drawn[0].started.seed != drawn[1].started.seed
    again = server.generate(
        [11, 12, 13], 4, sampling__temperature=0.8, sampling__seed=drawn[0].started.seed
    )
    assert again.ids() == drawn[0].ids(), "the reported seed is the one that was used"


def test_Case_030_SequenceZeroEqualsOneAlone(server):
    fields = {"sampling__temperature": 0.8, "sampling__seed": 5}
    alone = server.generate([31, 32], 8, **fields).ids()
    several = server.generate([31, 32], 8, n=4, **fields)
    assert several.ids(0) == alone
    assert len({tuple(several.ids(i)) for i in range(4)}) > 1
    assert all(several.finished(i).usage.prompt_tokens == 2 for i in range(4))


def test_Case_033_PenaltiesSeePromptAndOutputWhateverTheCache(server, launch, toy):
    prompt = [7, 7, 7, 7, 7] + list(range(100, 120))
    fields = {"sampling__repetition_penalty": 1.3}
    cold = server.generate(prompt, 40, **fields, cache_salt=b"33")
    assert cold.started.cached_tokens == 0
    warm = server.generate(prompt, 40, **fields, cache_salt=b"33")
    assert warm.started.cached_tokens == 24, "all but the last token"
    # Another request left the first three blocks of the prompt and a block that differs.
    server.generate(prompt[:14] + [300] * 6, 1, cache_salt=b"33-partial")
    partial = server.generate(prompt, 40, **fields, cache_salt=b"33-partial")
    assert partial.started.cached_tokens == 12
    bypass = server.alone(prompt, 40, **fields)
    assert cold.ids() == warm.ids() == partial.ids() == bypass.ids()
    off = server.generate(prompt, 40, cache_salt=b"33-off")
    assert off.ids() != cold.ids(), "the penalty does something"
    with launch(toy, max_num_batched_tokens=256) as whole:  # the other one computes prompts in chunks of 16
        assert whole.generate(prompt, 40, **fields).ids() == cold.ids()
    with launch(toy, start_paused=True) as small:
        crowd = [request(prompt, 40, **fields, cache_salt=b"%d" % i) for i in range(6)]
        jobs = small.start_together(crowd)
        assert [job.result().ids() for job in jobs] == [cold.ids()] * 6
        assert small.metric("longspan_preemptions_total") >= 1
    penalty_only = server.generate([7] * 6, 12, sampling__frequency_penalty=2.0, cache_salt=b"f")
    assert max(np.unique(penalty_only.ids(), return_counts=True)[1]) <= 3


def test_Case_055_LargeRepliesStaySmallMessages(server):
    answer = server.generate([5] * 50, 200, output__logprobs=20, output__prompt_logprobs=20)
    assert answer.code == CODE.OK
    assert len(answer.logprobs()) == 200
    assert len(answer.prompt_logprobs()) == 50
    assert max(r.ByteSize() for r in answer.responses) < 4_000_000


def test_AlreadyExistsAndAbort(server):
    job = server.start([5], 250, request_id="twice")
    job.wait_tokens(1)
    assert server.generate([5], 2, request_id="twice").code == CODE.ALREADY_EXISTS
    abort = inference_pb2.AbortRequest(request_id="twice")
    assert server.inference.Abort(abort).found
    answer = job.result()
    assert (answer.code, answer.reason()) == (CODE.OK, "ABORTED")
    assert not server.inference.Abort(abort).found
