#!/usr/bin/env python3
"""Reads every #include of the tree and fails when a folder includes one that it may not know.

The rules are the table below and nothing else; docs/architecture.md draws them. A target that is smaller than its folder
(scheduler_output, model_config, kvcache_pool) is listed by its files.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')

SCHEDULER_OUTPUT = ["scheduler/scheduler_output.h", "scheduler/sampling_params.h"]
MODEL_CONFIG = ["model/model_config.h", "model/vocabulary_data.h"]
KVCACHE_POOL = ["kvcache/kv_pool.h"]

# First match wins: path prefix of the including file -> prefixes it may include.
RULES = [
    ("core/", ["core/", "absl/status/"]),
    ("tokenizer/", ["core/", "tokenizer/"]),
    ("kernels/runtime/", ["core/", "kernels/gpu.h", "kernels/runtime/"]),
    # Host code of kernels checks its arguments; device code and public headers need dtype.h alone.
    ("kernels/", ["core/dtype.h", "core/check.h", "core/checked_math.h", "kernels/", "hwy/"]),
    ("kvcache/kv_pool.", ["core/", "kernels/runtime/"] + KVCACHE_POOL),
    ("kvcache/", ["core/", "kvcache/"]),
    *[(path, ["core/"] + SCHEDULER_OUTPUT) for path in SCHEDULER_OUTPUT],
    ("scheduler/", ["core/", "kvcache/", "scheduler/"]),
    *[(path, ["core/"] + MODEL_CONFIG) for path in MODEL_CONFIG],
    ("model/", ["core/", "kernels/", "model/"] + KVCACHE_POOL + SCHEDULER_OUTPUT),
    ("engine/", ["core/", "kvcache/", "scheduler/", "model/", "engine/"]),
    ("server/", ["core/", "engine/", "scheduler/", "tokenizer/", "server/", "google/", "longspan/"] + MODEL_CONFIG),
    ("clients/", ["clients/", "google/", "grpc/", "longspan/"]),
    ("bench/", [""]),
    ("tests/", [""]),
]


def breaches():
    files = [p for folder in sorted({rule[0].split("/")[0] for rule in RULES})
             for p in sorted((ROOT / folder).rglob("*")) if p.suffix in {".h", ".cc", ".cu", ".cuh"}]
    if len(files) < 50:
        yield f"only {len(files)} source files found below {ROOT}: the test looks at the wrong place"
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        allowed = next(prefixes for prefix, prefixes in RULES if name.startswith(prefix))
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            found = INCLUDE.match(line)
            if not found:
                continue
            target = found.group(1)
            if "/" not in target:
                yield f"{name}:{number}: \"{target}\" is not written from the root"
            elif not any(target.startswith(prefix) for prefix in allowed):
                yield f"{name}:{number}: {name.split('/')[0]}/ may not include \"{target}\""


def main():
    found = list(breaches())
    for breach in found:
        print(breach)
    print(f"{len(found)} breaches of the include direction")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
