"""The real model over gRPC against transformers, teacher-forced.

For every reference step the prompt and the reference tokens so far are sent, one token is taken with its
log-probability, and both are compared with what transformers computed in float32 from the same weights.
"""

import json
import os
import pathlib

import pytest

TRUTH = pathlib.Path(__file__).resolve().parent.parent / "reference" / "truth_smollm2.json"
MODEL = os.environ.get("LONGSPAN_TEST_MODEL", "")
DEFAULTS = dict.fromkeys(["block_size", "kv_blocks", "max_num_seqs", "max_num_batched_tokens", "threads"])

# Of the absolute difference of log-probabilities; no other arg-max at a reference margin of flip_margin or more.
BARS = {
    "float32": {"mean": 0.001, "max": 0.02, "flip_margin": 0.02},
    "bfloat16": {"mean": 0.012, "max": 0.15, "flip_margin": 0.12},
}


def reference_steps():
    """(ids to send, the reference's next id, its log-probability, the reference's top-2 margin)"""
    truth = json.loads(TRUTH.read_text(encoding="utf-8"))
    for entry in truth["prompts"]:
        document = truth["documents"][entry["document"]]
        prompt = document[entry["start"] : entry["start"] + entry["length"]]
        for step, reference in enumerate(zip(entry["ids"], entry["logprobs"], entry["margins"])):
            yield prompt + entry["ids"][:step], *reference


@pytest.mark.skipif(not os.path.exists(MODEL), reason="LONGSPAN_TEST_MODEL names no file: scripts/test sets it")
@pytest.mark.parametrize("precision", sorted(BARS))
def test_truth_teacher_forced(launch, precision):
    if precision == "bfloat16" and "avx512_bf16" not in pathlib.Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no bfloat16 products: float32 is its default")
    differences, flips = [], []
    with launch(MODEL, matmul_precision=precision, **DEFAULTS) as server:
        for ids, token, logprob, margin in reference_steps():
            answer = server.generate(ids, 1, output__logprobs=20, stop__ignore_eos=True)
            (row,) = answer.logprobs()
            differences.append(abs({top.token_id: top.logprob for top in row.top}[token] - logprob))
            if answer.ids() != [token]:
                flips.append(margin)
    mean, largest = sum(differences) / len(differences), max(differences)
    print(
        f"\n{precision}: {len(differences)} steps, |difference of logprobs| mean {mean:.6f}, max {largest:.5f}; "
        f"{len(flips)} times another arg-max, at margins up to {max(flips, default=0.0):.5f}"
    )
    bars = BARS[precision]
    assert len(differences) >= 1500
    assert mean <= bars["mean"]
    assert largest <= bars["max"]
    assert max(flips, default=0.0) < bars["flip_margin"]
