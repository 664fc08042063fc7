#!/usr/bin/env python3
"""Longspan beside llama.cpp on the same machine, model, threads and prompts.

Both run the same GGUF with the same number of threads, taking turns inside one run (llama.cpp's barriers spin, so never
both at once). llama.cpp is driven through the C functions of llama-cpp-python, with flash attention on and off, and its
better figure counts. Longspan is measured over gRPC, from the client's side. Every figure is the median of --rounds.

    pip install llama-cpp-python gguf grpcio-tools numpy     # with CMAKE_ARGS=-DGGML_NATIVE=ON for the first
    bench/compare_llama_cpp.py --server build/cpu/server/longspan-server --model MODEL.gguf

Writes docs/benchmarks/cpu.md and a JSON file beside it.
"""
import argparse
import ctypes
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

# (name, kind, prompt tokens, streams, must reach, goal): ratios of tokens per second.
WORK = [
    ("prefill 512", "prefill", 512, 1, 1.5, 3.5),
    ("prefill 4,096", "prefill", 4096, 1, 1.5, 3.5),
    ("decode after 16", "decode", 16, 1, 1.1, 1.5),
    ("decode after 2,048", "decode", 2048, 1, 1.5, 2.2),
    ("8 streams", "streams", 16, 8, 1.3, 2.0),
    ("32 streams", "streams", 16, 32, 1.5, 2.5),
    ("decode after 7,900", "decode", 7900, 1, 2.0, 3.0),
]
DECODE_TOKENS = 64
CONTEXT = 8192


def prompt_ids(count, vocab_size, salt):
    """Ids without meaning: speed does not depend on them. Special ids (the first few) are left out."""
    state, ids = 0x9E3779B97F4A7C15 ^ salt, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
        ids.append(32 + (state >> 33) % (vocab_size - 32))
    return ids


class LlamaCpp:
    """One llama.cpp context; only C calls and one arg-max inside the timed part."""

    def __init__(self, library, numpy, model_path, threads, flash_attention, max_streams):
        self.lib, self.np = library, numpy
        params = library.llama_model_default_params()
        self.model = library.llama_model_load_from_file(str(model_path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model_path}")
        self.vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self.model))
        context = library.llama_context_default_params()
        context.n_ctx = CONTEXT
        context.n_batch = 2048
        context.n_ubatch = 512
        context.n_seq_max = max_streams
        context.n_threads = context.n_threads_batch = threads
        if hasattr(context, "kv_unified"):
            context.kv_unified = True
        if hasattr(context, "flash_attn_type"):
            context.flash_attn_type = 1 if flash_attention else 0
        else:
            context.flash_attn = flash_attention
        self.context = library.llama_init_from_model(self.model, context)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.batch = library.llama_batch_init(2048, 0, max_streams)
        self.prefilled = None  # (prompts, first tokens) that the cache holds

    def close(self):
        self.lib.llama_batch_free(self.batch)
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, entries):
        """entries: (token, position, sequence, wants logits)."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, logits) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits
        if self.lib.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def argmax(self, row):
        pointer = self.lib.llama_get_logits_ith(self.context, row)
        logits = self.np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.vocab_size,))
        return int(logits.argmax())

    def prefill(self, ids, sequence=0):
        for begin in range(0, len(ids), 2048):
            chunk = ids[begin:begin + 2048]
            last = begin + len(chunk) == len(ids)
            self.decode([(token, begin + i, sequence, last and i == len(chunk) - 1) for i, token in enumerate(chunk)])
        return self.argmax(-1)

    def run(self, kind, prompt, streams):
        if kind == "prefill":
            self.clear()
            self.prefilled = None
            begin = time.perf_counter()
            self.prefill(prompt[0])
            return len(prompt[0]) / (time.perf_counter() - begin)
        position = len(prompt[0])
        if self.prefilled is None or self.prefilled[0] != prompt:
            self.clear()
            self.prefilled = (prompt, [self.prefill(ids, sequence) for sequence, ids in enumerate(prompt)])
        else:  # drop what the last round generated
            memory = self.lib.llama_get_memory(self.context)
            for sequence in range(streams):
                self.lib.llama_memory_seq_rm(memory, sequence, position, -1)
        tokens = self.prefilled[1]
        begin = time.perf_counter()
        for step in range(DECODE_TOKENS):
            self.decode([(token, position + step, s, True) for s, token in enumerate(tokens)])
            tokens = [self.argmax(s) for s in range(streams)]
        return streams * DECODE_TOKENS / (time.perf_counter() - begin)


class Longspan:
    """A server of our own on loopback and a plain gRPC client."""

    def __init__(self, binary, model_path, threads, extra):
        import grpc
        self.grpc, self.messages, stubs = grpc, *load_protos()
        self.folder = tempfile.TemporaryDirectory()
        ready = pathlib.Path(self.folder.name) / "ready"
        self.process = subprocess.Popen(
            [binary, "--model", str(model_path), "--threads", str(threads), "--listen", "127.0.0.1:0", "--metrics-listen",
             "127.0.0.1:0", "--admin-listen", f"unix:{self.folder.name}/admin.sock", "--ready-file", str(ready),
             "--log-level", "warn", *extra])
        for _ in range(1200):
            if ready.exists():
                break
            if self.process.poll() is not None:
                raise RuntimeError("longspan-server ended while starting")
            time.sleep(0.05)
        fields = dict(line.split(" ", 1) for line in ready.read_text().splitlines())
        channel = grpc.insecure_channel(fields["listen"], options=[("grpc.max_receive_message_length", -1)])
        self.stub = stubs.InferenceStub(channel)
        self.vocab_size = self.stub.GetModelInfo(self.messages.GetModelInfoRequest()).vocab_size

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        self.folder.cleanup()

    def rss_bytes(self):
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def idle_cpu_percent(self, seconds=5.0):
        def ticks():
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])
        before = ticks()
        time.sleep(seconds)
        return 100.0 * (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds

    def request(self, ids, max_tokens, use_cache):
        request = self.messages.GenerateRequest()
        request.token_ids.ids.extend(ids)
        request.sampling.temperature = 0.0
        request.stop.max_tokens = max_tokens
        request.stop.ignore_eos = True
        request.output.text = False
        if not use_cache:
            request.prefix_cache = self.messages.PREFIX_CACHE_POLICY_BYPASS
        return request

    def stream(self, ids, max_tokens, use_cache=True):
        """(time of sending, [(time, tokens)] of each chunk)."""
        arrivals = []
        begin = time.perf_counter()
        for response in self.stub.Generate(self.request(ids, max_tokens, use_cache)):
            if response.WhichOneof("event") == "chunk" and response.chunk.token_ids:
                arrivals.append((time.perf_counter(), len(response.chunk.token_ids)))
        return begin, arrivals

    def run(self, kind, prompt, streams):
        if kind == "prefill":
            begin, arrivals = self.stream(prompt[0], 1, use_cache=False)
            return len(prompt[0]) / (arrivals[0][0] - begin)
        if kind == "decode":
            _, arrivals = self.stream(prompt[0], DECODE_TOKENS + 1)
            tokens = sum(count for _, count in arrivals[1:])
            return tokens / (arrivals[-1][0] - arrivals[0][0])
        results = [None] * streams

        def one(i):
            results[i] = self.stream(prompt[i], DECODE_TOKENS + 1)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # From when all streams decode until the first one is done: the same full batch that llama.cpp has.
        start = max(arrivals[0][0] for _, arrivals in results)
        end = min(arrivals[-1][0] for _, arrivals in results)
        tokens = sum(count for _, arrivals in results for when, count in arrivals if start < when <= end)
        return tokens / (end - start)


def load_protos():
    """Generates the Python code of proto/ into a temporary folder and imports it."""
    from grpc_tools import protoc
    folder = tempfile.mkdtemp()
    status = protoc.main(["", f"-I{ROOT / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}",
                          "longspan/v1/inference.proto"])
    if status != 0:
        raise RuntimeError("protoc failed")
    sys.path.insert(0, folder)
    from longspan.v1 import inference_pb2, inference_pb2_grpc
    return inference_pb2, inference_pb2_grpc


def write_bf16_model(source, target):
    """The same model with every matrix in bfloat16, for llama.cpp's own 16-bit path."""
    import gguf
    import numpy as np
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value_type = field.types[0]
        sub_type = field.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), value_type, sub_type=sub_type)
    for tensor in reader.tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if data.ndim == 1:
            writer.add_tensor(tensor.name, data)
        else:
            packed = gguf.quants.quantize(data, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, packed, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def measure(args, library, numpy, model_path, peers):
    longspan = Longspan(args.server, args.model, args.threads, args.server_args)
    engines = {"longspan": longspan}
    for name, path, flash in peers:
        engines[name] = LlamaCpp(library, numpy, path, args.threads, flash, 32)
    records = []
    try:
        idle = longspan.idle_cpu_percent()
        for name, kind, length, streams, must, goal in WORK:
            if args.only and name not in args.only:
                continue
            readings = {engine: [] for engine in engines}
            for round_index in range(args.rounds + 1):  # the first one warms up
                # Decoding starts from the same prompts every round; they are prefilled in the first one only.
                salt = 1000 * round_index if kind == "prefill" else 0
                prompts = [prompt_ids(length, longspan.vocab_size, salt + s) for s in range(streams)]
                for engine, peer in engines.items():
                    rate = peer.run(kind, prompts, streams)
                    if round_index > 0:
                        readings[engine].append(rate)
            medians = {engine: statistics.median(values) for engine, values in readings.items()}
            records.append({"work": name, "must": must, "goal": goal, "median": medians, "readings": readings})
            print(f"{name:22}", {k: round(v, 1) for k, v in medians.items()}, flush=True)
        return records, idle, longspan.rss_bytes()
    finally:
        for engine in engines.values():
            engine.close()


def best_of(medians, prefix):
    return max(value for name, value in medians.items() if name.startswith(prefix))


def table(records):
    lines = ["| work | llama.cpp (best of flash attention on, off) | llama.cpp, bf16 weights | Longspan | ratio | ratio to bf16 | must | goal |",
             "|---|---|---|---|---|---|---|---|"]
    for record in records:
        medians = record["median"]
        ours, peer = medians["longspan"], best_of(medians, "llama.cpp Q4_1")
        bf16 = best_of(medians, "llama.cpp bf16") if any(k.startswith("llama.cpp bf16") for k in medians) else None
        lines.append(f"| {record['work']} | {peer:.1f} | {'-' if bf16 is None else f'{bf16:.1f}'} | {ours:.1f} | "
                     f"**{ours / peer:.2f}** | {'-' if bf16 is None else f'{ours / bf16:.2f}'} | {record['must']} | {record['goal']} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="longspan-server")
    parser.add_argument("--model", required=True, type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", metavar="WORK", help="one row of the table; may be repeated")
    parser.add_argument("--no-bf16", action="store_true", help="leave llama.cpp's bf16 form out")
    parser.add_argument("--json", type=pathlib.Path, default=ROOT / "docs/benchmarks/cpu.json")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/benchmarks/cpu.md")
    parser.add_argument("server_args", nargs="*", help="further flags of the server, after --")
    args = parser.parse_args()

    import llama_cpp as library
    import numpy
    library.llama_backend_init()
    quiet = library.llama_log_callback(lambda level, text, data: None)
    library.llama_log_set(quiet, ctypes.c_void_p(0))

    with tempfile.TemporaryDirectory() as folder:
        peers = [("llama.cpp Q4_1 flash", args.model, True), ("llama.cpp Q4_1", args.model, False)]
        if not args.no_bf16:
            bf16 = pathlib.Path(folder) / "bf16.gguf"
            write_bf16_model(args.model, bf16)
            peers += [("llama.cpp bf16 flash", bf16, True), ("llama.cpp bf16", bf16, False)]
        records, idle, rss = measure(args, library, numpy, args.model, peers)

    meta = {
        "date": datetime.date.today().isoformat(), "cpu": cpu_name(), "threads": args.threads, "rounds": args.rounds,
        "model": args.model.name, "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "idle_cpu_percent": idle, "longspan_rss_bytes_after": rss,
    }
    args.json.write_text(json.dumps({"meta": meta, "records": records}, indent=1) + "\n", encoding="utf-8")
    page = f"""# CPU: Longspan beside llama.cpp

Made by `bench/compare_llama_cpp.py` on {meta['date']}: {meta['cpu']}, {args.threads} threads, {meta['model']},
llama-cpp-python {meta['llama_cpp_python']} built for the machine. Tokens per second, medians of {args.rounds}, the engines taking turns in
one run; Longspan over gRPC from the client's side. Prefill bypasses the prefix cache; decoding starts from a
prompt that both have in their caches. All readings: [cpu.json](cpu.json).

{table(records)}

Longspan idle: {idle:.1f} % CPU. Resident memory after the run: {rss / 2**20:.0f} MiB, the touched part of the KV cache included.
"""
    args.page.write_text(page, encoding="utf-8")
    print(table(records))


if __name__ == "__main__":
    main()
