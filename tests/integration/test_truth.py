"""The real model over gRPC against transformers, teacher-forced.

For every reference step the prompt and the reference tokens so far are sent, one token is taken with its
log-probability, and both are compared with what transformers computed in float32 from the same weights.
"""
import json
import os
import pathlib
import signal
import subprocess
import time

import grpc
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TRUTH = ROOT / "tests" / "reference" / "truth_smollm2.json"
SERVER = os.environ.get("LONGSPAN_SERVER_BINARY", str(ROOT / "build/cpu/server/longspan-server"))
MODEL = os.environ.get("LONGSPAN_TEST_MODEL", "")

# (mean, max) of the absolute difference of log-probabilities; no other arg-max at a margin of at least flip_margin.
BARS = {
    "float32": {"mean": 0.001, "max": 0.02, "flip_margin": 0.02},
    "bfloat16": {"mean": 0.012, "max": 0.15, "flip_margin": 0.12},
}


def prompts():
    truth = json.loads(TRUTH.read_text(encoding="utf-8"))
    for entry in truth["prompts"]:
        document = truth["documents"][entry["document"]]
        yield document[entry["start"]:entry["start"] + entry["length"]], entry


class Server:
    def __init__(self, folder, *flags):
        ready = folder / "ready"
        self.process = subprocess.Popen(
            [SERVER, "--model", MODEL, "--listen", "127.0.0.1:0", "--metrics-listen", "off", "--log-level", "warn",
             "--admin-listen", f"unix:{folder}/admin.sock", "--ready-file", str(ready), *flags])
        while not ready.exists():
            assert self.process.poll() is None, "the server ended while starting"
            time.sleep(0.05)
        self.address = ready.read_text().split("\n")[0].split(" ")[1]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0


@pytest.mark.skipif(not os.path.exists(MODEL), reason="LONGSPAN_TEST_MODEL is not set: run scripts/test")
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_truth_teacher_forced(protos, tmp_path, precision):
    server = Server(tmp_path, "--matmul-precision", precision)
    try:
        if precision == "bfloat16" and "avx512_bf16" not in pathlib.Path("/proc/cpuinfo").read_text():
            pytest.skip("this processor has no bfloat16 products: the default is float32 here")
        stub = protos.stubs.InferenceStub(grpc.insecure_channel(server.address))
        differences, flips = [], []
        for prompt, entry in prompts():
            for step, (token, logprob, margin) in enumerate(zip(entry["ids"], entry["logprobs"], entry["margins"])):
                request = protos.messages.GenerateRequest()
                request.token_ids.ids.extend(prompt + entry["ids"][:step])
                request.sampling.temperature = 0.0
                request.stop.max_tokens = 1
                request.stop.ignore_eos = True
                request.output.logprobs = 20
                chunks = [r.chunk for r in stub.Generate(request) if r.WhichOneof("event") == "chunk" and r.chunk.token_ids]
                assert len(chunks) == 1 and len(chunks[0].token_ids) == 1
                row = chunks[0].logprobs[0]
                top = {entry.token_id: entry.logprob for entry in row.top}
                differences.append(abs(top[token] - logprob))
                if chunks[0].token_ids[0] != token:
                    flips.append(margin)
    finally:
        server.stop()
    mean, largest = sum(differences) / len(differences), max(differences)
    print(f"\n{precision}: {len(differences)} steps, |logprob difference| mean {mean:.6f}, max {largest:.5f}, "
          f"{len(flips)} other arg-max, at margins up to {max(flips, default=0.0):.5f}")
    bars = BARS[precision]
    assert len(differences) >= 1500
    assert mean <= bars["mean"]
    assert largest <= bars["max"]
    assert max(flips, default=0.0) < bars["flip_margin"]
