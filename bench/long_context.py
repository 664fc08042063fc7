#!/usr/bin/env python3
"""One long sequence on a toy model: how cost grows with context.

Writes a random toy model with a 131,072-token context, prefills --length tokens in one piece, then decodes after
prefixes of growing length. Prints, per context: time per decoded token and the scheduler's time per decode step (from
the server's metrics, read when the first token has come, so that admission does not count). Per-token cost should grow
linearly with context and scheduler time not at all.

    bench/long_context.py --server build/cpu/server/longspan-server
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from compare_llama_cpp import load_protos, prompt_ids  # noqa: E402

DECODE_TOKENS = 512
SCHEDULER = ("longspan_step_scheduler_seconds_count", "longspan_step_scheduler_seconds_sum")


def write_model(folder):
    script = ROOT / "tests/reference/write_tiny_model.py"
    subprocess.run([sys.executable, str(script), "toy_long", str(folder)], check=True, stdout=subprocess.DEVNULL)


def metric(address, name):
    text = urllib.request.urlopen(f"http://{address}/metrics", timeout=10).read().decode()
    found = re.search(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--length", type=int, default=100_000)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    import grpc
    messages, stubs = load_protos()

    with tempfile.TemporaryDirectory() as folder:
        model, ready = pathlib.Path(folder) / "model", pathlib.Path(folder) / "ready"
        write_model(model)
        server = subprocess.Popen([args.server, "--model", str(model), "--listen", "127.0.0.1:0", "--metrics-listen",
                                   "127.0.0.1:0", "--admin-listen", f"unix:{folder}/admin.sock", "--ready-file", str(ready),
                                   "--log-level", "warn", "--kv-cache-memory-bytes", "1GiB", "--max-num-seqs", "4"])
        while not ready.exists():
            if server.poll() is not None:
                sys.exit("the server ended while starting")
            time.sleep(0.05)
        fields = dict(line.split(" ", 1) for line in ready.read_text().splitlines())
        stub = stubs.InferenceStub(grpc.insecure_channel(fields["listen"], options=[("grpc.max_send_message_length", -1)]))
        ids = prompt_ids(args.length, stub.GetModelInfo(messages.GetModelInfoRequest()).vocab_size, 7)

        def generate(prompt, max_tokens):
            """Seconds to the first token, seconds for the others, scheduler seconds per step for these."""
            request = messages.GenerateRequest()
            request.token_ids.ids.extend(prompt)
            request.sampling.temperature = 0.0
            request.stop.max_tokens = max_tokens
            request.stop.ignore_eos = True
            begin, first, tokens, before = time.perf_counter(), None, 0, None
            for response in stub.Generate(request):
                if response.WhichOneof("event") != "chunk":
                    continue
                if first is None:
                    first = time.perf_counter()
                    before = [metric(fields["metrics"], name) for name in SCHEDULER]
                tokens += len(response.chunk.token_ids)
                last = time.perf_counter()
            if tokens != max_tokens:
                sys.exit(f"{tokens} tokens came, {max_tokens} were asked")
            steps, seconds = (metric(fields["metrics"], name) - old for name, old in zip(SCHEDULER, before))
            return first - begin, last - first, seconds / max(1.0, steps)

        first, _, _ = generate(ids, 1)
        records = [{"context": args.length, "prefill_seconds": first, "prefill_tokens_per_second": args.length / first}]
        print(json.dumps(records[-1]), flush=True)
        for length in [n for n in (1_000, 3_125, 6_250, 12_500, 25_000, 50_000) if n < args.length] + [args.length]:
            _, decode, scheduler = generate(ids[:length], DECODE_TOKENS)
            records.append({"context": length, "decode_us_per_token": 1e6 * decode / (DECODE_TOKENS - 1),
                            "scheduler_us_per_step": 1e6 * scheduler})
            print(json.dumps(records[-1]), flush=True)
        server.terminate()
        server.wait(timeout=60)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
