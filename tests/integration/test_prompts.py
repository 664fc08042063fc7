"""Prompts at their extremes: nothing but what the model adds (case 25), and answers larger than a message (case 55)."""

import json
import os

import pytest
import write_tiny_model
from harness import CODE, request, wait_until

BOS = 300
FOUR_MIB = 4 * 1024 * 1024


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
        assert sum(sizes) > 1_000_000 and max(sizes) < FOUR_MIB
        server.check_health()
