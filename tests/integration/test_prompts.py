"""Prompts at their extremes: nothing but what the model adds (case 25), and answers larger than a message (case 55)."""

import json
import math
import os

import pytest
import write_tiny_model
from harness import CODE, drain, request, skip_under, wait_until
from longspan.v1 import inference_pb2

BOS = 300
MIB = 1024 * 1024
INF = math.inf


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory):
    """The successor model whose tokenizer puts <s> in front."""
    folder = str(tmp_path_factory.mktemp("bos"))
    write_tiny_model.write_model("successor", folder, tokens=("<s>",), first_id=BOS, special_ids=(BOS,), context=256)
    path = os.path.join(folder, "tokenizer.json")
    with open(path, encoding="utf-8") as file:
        tokenizer = json.load(file)
    bos, text = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "single": [bos, text], "pair": [bos, text],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
    }
    write_tiny_model.write_json(path, tokenizer)
    return folder


def test_Case_025_AnEmptyTextIsWhatTheModelAdds(launch, with_bos):
    with launch(with_bos) as server:
        server.remember_canary()
        neighbours = [server.start([i + 1], 100) for i in range(3)]
        for fields in ({}, {"add_special_tokens": True}):
            answer = server.generate("", 4, **fields)
            assert answer.ids() == [301, 302, 303, 304], "one token: <s>"
            assert answer.started.prompt_tokens == 1
        refused = [server.generate("", 4, add_special_tokens=False), server.generate([], 4)]
        for answer in refused:
            assert answer.code == CODE.INVALID_ARGUMENT and "empty" in answer.message and answer.started is None
        # Nothing but special tokens, added or parsed or both; as plain text they are not special.
        for text, fields, tokens in (("<s>", {"add_special_tokens": False, "parse_special_tokens": True}, 1),
                                     ("<s><s>", {"add_special_tokens": False, "parse_special_tokens": True}, 2),
                                     ("<s>", {"parse_special_tokens": True}, 2)):
            answer = server.generate(text, 2, **fields)
            assert (answer.started.prompt_tokens, answer.ids()) == (tokens, [301, 302]), text
        assert server.generate("<s>", 2, add_special_tokens=False).started.prompt_tokens == 3
        assert server.generate("<s>", 2).started.prompt_tokens == 4
        for i, job in enumerate(neighbours):
            assert job.result().ids() == list(range(i + 2, i + 102)), "the others of the batch are fine"
        server.check_health()


def test_Case_025_AnEmptyOneAmongThoseThatStartTogether(launch, toy):
    with launch(toy) as server:
        alone = [server.alone([i + 1, 5, 6], 6).ids() for i in range(4)]
    with launch(toy, start_paused=True) as server:
        for prompt in ("", []):
            assert server.generate(prompt, 6).code == CODE.INVALID_ARGUMENT
        jobs = server.start_together([request([i + 1, 5, 6], 6) for i in range(4)])
        assert [job.result().ids() for job in jobs] == alone
        wait_until(server.is_idle, "idle")


def test_Case_055_FiveThousandTokensWithTwentyAlternatives(launch, models):
    """Some 2 MB of log-probabilities of the prompt and of the answer, through a client with gRPC's own limits."""
    folder = models("successor", tokens=(), first_id=0)
    with launch(folder, block_size=16, kv_blocks=600, max_num_batched_tokens=512) as server:
        server.remember_canary()
        prompt = [i % 512 for i in range(3000)]
        answer = server.generate(prompt, 5000, output__logprobs=20, output__prompt_logprobs=20)
        assert answer.code == CODE.OK, answer.message
        assert answer.ids() == [(3000 + i) % 512 for i in range(5000)]
        assert [len(entry.top) for entry in answer.logprobs()] == [20] * 5000
        entries = answer.prompt_logprobs()
        assert [len(entry.top) for entry in entries] == [0] + [20] * 2999
        sizes = [response.ByteSize() for response in answer.responses]
        assert sum(sizes) > 1_000_000 and max(sizes) < 4 * MIB
        server.check_health()


def test_Case_055_TheContextIsCheckedBeforeAPromptIsCopied(launch, toy):
    """Large prompts reach the handler up to the limit of messages, and are refused there. A copy of sixteen million ids
    would be 64 MiB; the control is the same message for a model that is not served, which is refused when it is parsed."""
    ids_in_one_byte, ids_in_two = [100] * 1_000_001, [500] * 2_200_000
    with launch(toy) as server:
        server.remember_canary()
        for ids in (ids_in_one_byte, ids_in_two[:1_000_001], ids_in_two):
            answer = server.generate(ids, 1)
            assert (answer.code, answer.fields()) == (CODE.INVALID_ARGUMENT, ["token_ids"])
            assert f"{len(ids)} tokens (limit 255" in answer.message
        channel = server.new_channel(("grpc.max_send_message_length", -1))
        send = channel.unary_stream("/longspan.v1.Inference/Generate")
        packed = inference_pb2.GenerateRequest()
        packed.token_ids.ids.extend([500] * (1 << 24))
        peaks, resident = {}, None
        for model in ("other", "toy", "other", "toy"):
            data = packed.SerializeToString() + inference_pb2.GenerateRequest(model=model).SerializeToString()
            if resident and not server.sanitizer:
                wait_until(lambda: server.rss() < resident + 8 * MIB, "memory comes back")
            server.forget_peak()
            resident = resident or server.rss()
            before = server.peak_rss()
            code = drain(send(data, timeout=60)).code
            assert code == (CODE.INVALID_ARGUMENT if model == "toy" else CODE.NOT_FOUND)
            peaks[model] = min(server.peak_rss() - before, peaks.get(model, INF))
        packed.token_ids.ids.extend([500] * (1 << 24))
        assert packed.ByteSize() > 64 * MIB
        assert drain(send(packed.SerializeToString(), timeout=60)).code == CODE.RESOURCE_EXHAUSTED
        channel.close()
        server.check_health()
        print({model: f"{peak / MIB:.1f} MiB" for model, peak in peaks.items()})
    skip_under(server.sanitizer, "resident memory")
    assert peaks["toy"] - peaks["other"] < 16 * MIB, peaks
