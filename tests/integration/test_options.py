"""Case 60: every flag that touches results, in pairs, against the NumPy oracle; values outside are refused by name.

A row is one server with one value of every flag and one shape of model. Its log-probabilities are held against the
oracle, its bits against the plain server of the same arithmetic, and its flags against what the server says it does.
"""

import itertools
import math
import os
import random
import subprocess

import numpy as np
import oracle
import pytest
import write_tiny_model
from harness import CANARY_PROMPT, CODE, wait_until
from longspan.v1 import inference_pb2

CONTEXT = 1024
PROMPT = [(37 * i + i * i + 11) % 256 for i in range(530)]  # longer than a part of split attention: splits exist
NEW_TOKENS = 12
FACTORS = {
    # Of the model.
    "head_dim": [16, 24, 64, 80, 128, 256],
    "window": [None, 1, 8, 64],
    # Of the server.
    "block_size": [1, 3, 4, 7, 16, 32, 256],
    "kv_cache_dtype": ["auto", "float16", "bfloat16", "float32"],
    "matmul_precision": ["auto", "bfloat16", "float32"],
    "max_num_batched_tokens": [6, 64, 512],
    "num_splits": [0, 1, 3, 16],
    "threads": [1, 2, 3],
    "max_model_len": [0, 600],
    "max_num_seqs": [1, 8],
    "enable_prefix_caching": [True, False],
    "batch_invariant": [False, True],
    "poison_freed": [False, True],
    "check_weights": [False, True],
    "dtype": ["auto", "float32"],
    "load_format": ["auto", "dummy"],  # dummy weights are those of the file: both are the hash of their names
    "device": ["auto", "cpu"],
}
MODEL_FACTORS = ("head_dim", "window")
TEST_ONLY = ("num_splits", "poison_freed")  # not among the flags that the server tells
# Mean and largest difference of a log-probability to float64, by the coarsest format on the way. The random weights
# of these models magnify a rounding more than a trained model does.
TOLERANCE = {"float32": (5e-6, 5e-5), "float16": (1.5e-3, 1.5e-2), "bfloat16": (1.2e-2, 0.12)}


def has_bfloat16():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return "avx512_bf16" in file.read()


if not has_bfloat16():
    FACTORS["matmul_precision"].remove("bfloat16")  # refused by name there


def pairwise(factors, seed):
    """Rows such that every two values of two factors meet in one of them: greedy, over random candidates."""
    rng = random.Random(seed)
    names = list(factors)
    missing = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    rows = []
    while missing:
        best, best_pairs = None, set()
        for _ in range(60):
            row = {name: rng.randrange(len(values)) for name, values in factors.items()}
            a, i, b, j = rng.choice(sorted(missing))
            row[a], row[b] = i, j
            pairs = {(a, row[a], b, row[b]) for a, b in itertools.combinations(names, 2)} & missing
            if len(pairs) > len(best_pairs):
                best, best_pairs = row, pairs
        missing -= best_pairs
        rows.append({name: factors[name][i] for name, i in best.items()})
    return rows


class Models:
    """One folder and one set of float64 weights for each shape."""

    def __init__(self, root):
        self.root, self.made, self.answers = root, {}, {}

    def get(self, head_dim, window):
        key = (head_dim, window)
        if key not in self.made:
            changes = {"head_dim": head_dim, "max_position_embeddings": CONTEXT}
            if window is not None:
                changes.update(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=window,
                               attention_bias="absent", mlp_bias="absent")
            config = write_tiny_model.small_config(**changes)
            folder = os.path.join(self.root, f"{head_dim}-{window}")
            os.makedirs(folder)
            tensors = list(write_tiny_model.model_tensors("any", config))
            write_tiny_model.write_json(os.path.join(folder, "config.json"), config)
            write_tiny_model.write_weights(folder, tensors, 1)
            weights = {t: np.array(v, dtype=np.float64).reshape(s) for t, s, v in tensors}
            self.made[key] = (folder, config, weights)
        return self.made[key]

    def log_probabilities(self, row, ids):
        """The oracle's, [token, vocabulary]: entry t is of the token after t. One forward pass for each text."""
        key = (row["head_dim"], row["window"], tuple(ids))
        if key not in self.answers:
            _, config, weights = self.get(row["head_dim"], row["window"])
            logits = oracle.forward(config, weights, ids)
            best = logits.max(axis=-1, keepdims=True)
            self.answers[key] = logits - best - np.log(np.exp(logits - best).sum(axis=-1, keepdims=True))
        return self.answers[key]


@pytest.fixture(scope="module")
def option_models(tmp_path_factory):
    return Models(str(tmp_path_factory.mktemp("options")))


def start(launch, option_models, row):
    folder, _, _ = option_models.get(row["head_dim"], row["window"])
    flags = {name: value for name, value in row.items() if name not in MODEL_FACTORS}
    return launch(folder, kv_blocks=math.ceil(2 * CONTEXT / row["block_size"]), **flags)


def bits(answer):
    assert answer.code == CODE.OK, answer.message
    return answer.ids(), [entry.logprob for entry in answer.logprobs()]


def check_against_oracle(option_models, row, answer, tolerance):
    mean, largest = tolerance
    ids = answer.ids()
    assert len(ids) == NEW_TOKENS
    wanted = option_models.log_probabilities(row, PROMPT + ids[:-1])
    got = [entry.logprob for entry in answer.prompt_logprobs()[1:] + answer.logprobs()]
    assert len(got) == len(wanted)
    differences = np.abs(got - wanted[np.arange(len(got)), PROMPT[1:] + ids])
    assert np.isfinite(differences).all()
    assert differences.mean() <= mean and differences.max() <= largest, (differences.mean(), differences.max())
    for at, token in enumerate(ids, start=len(PROMPT) - 1):
        assert wanted[at][token] >= wanted[at].max() - 2 * largest, "no other token is clearly better"


def check_flags_in_effect(server, row):
    """What the server says and does follows the flags: nothing is silently ignored. Returns (KV type, precision)."""
    settings = next(name for name in server.metrics() if name.startswith("longspan_config_info{"))
    labels = dict(part.split("=", 1) for part in settings[settings.index("{") + 1 : -1].split(","))
    labels = {name: value.strip('"') for name, value in labels.items()}
    context = row["max_model_len"] or CONTEXT
    assert (labels["block_size"], labels["threads"]) == (str(row["block_size"]), str(row["threads"]))
    assert labels["max_model_len"] == str(context)
    for flag, label in (("kv_cache_dtype", "kv_cache_dtype"), ("matmul_precision", "matmul_precision")):
        # For products auto hangs on the processor, and so does bfloat16; the cache follows the products.
        if row[flag] == "float32" or (flag == "kv_cache_dtype" and row[flag] != "auto"):
            assert labels[label] == row[flag]
    if row["kv_cache_dtype"] == "auto":
        assert labels["kv_cache_dtype"] == ("bfloat16" if labels["matmul_precision"] == "bfloat16" else "float16")
    info = server.inference.GetModelInfo(inference_pb2.GetModelInfoRequest())
    assert (info.head_dim, info.context_length) == (row["head_dim"], context)
    assert info.kv_dtype == labels["kv_cache_dtype"]
    flags = server.inference.GetServerInfo(inference_pb2.GetServerInfoRequest()).flags
    for name, value in row.items():
        if name in (*MODEL_FACTORS, *TEST_ONLY):
            continue
        shown = flags[name.replace("_", "-")]
        # Where the server chooses, it shows what it has chosen.
        assert shown == str(value).lower() if value not in ("auto", 0) or value is False else shown, name
    return labels["kv_cache_dtype"], labels["matmul_precision"]


def check_row(launch, option_models, plain, row):
    with start(launch, option_models, row) as server:
        server.remember_canary()
        wait_until(server.is_idle, "idle")
        kv_dtype, precision = check_flags_in_effect(server, row)
        before = server.metric("longspan_step_tokens_count")
        answer = server.generate(PROMPT, NEW_TOKENS, output__logprobs=0, output__prompt_logprobs=0)
        bits(answer)
        wait_until(server.is_idle, "idle")
        steps = server.metric("longspan_step_tokens_count") - before
        assert steps == math.ceil(len(PROMPT) / row["max_num_batched_tokens"]) + NEW_TOKENS - 1, "the chunk size"
        # Weights of 32 bits are multiplied in float; bfloat16 then shows in attention over a 16-bit cache alone.
        tolerance = max(TOLERANCE[kv_dtype], TOLERANCE["float32" if kv_dtype == "float32" else precision])
        check_against_oracle(option_models, row, answer, tolerance)
        # From the cache or not, beside others or alone: the same bits.
        neighbours = [server.start([i + 1] * 9, 40) for i in range(2)]
        warm = server.generate(PROMPT, NEW_TOKENS, output__logprobs=0)
        full = row["block_size"] * ((len(PROMPT) - 1) // row["block_size"])
        assert warm.started.cached_tokens == (full if row["enable_prefix_caching"] else 0)
        assert bits(warm) == bits(answer)
        for job in neighbours:
            assert job.result().code == CODE.OK
        server.check_health()
    key = (row["head_dim"], row["window"], row["kv_cache_dtype"], row["matmul_precision"])
    if key not in plain:
        simple = {name: values[0] for name, values in FACTORS.items()}
        simple.update(zip(("head_dim", "window", "kv_cache_dtype", "matmul_precision"), key))
        simple.update(block_size=16, max_num_batched_tokens=512)
        with start(launch, option_models, simple) as server:
            plain[key] = bits(server.generate(PROMPT, NEW_TOKENS, output__logprobs=0))
    assert bits(answer) == plain[key], "bits hang on the arithmetic alone"


def test_Case_060_EveryPairOfOptionsEqualsTheOracle(launch, option_models):
    plain = {}
    for row in pairwise(FACTORS, 60):
        try:
            check_row(launch, option_models, plain, row)
        except AssertionError as error:
            raise AssertionError(f"{row}: {error}") from error
    # The formats differ from each other, so none of them stands for another.
    same_model = {}
    for (head_dim, window, kv_dtype, precision), answer in plain.items():
        if kv_dtype != "auto" and precision == "float32":
            same_model.setdefault((head_dim, window), {})[kv_dtype] = answer[1]
    compared = 0
    for by_type in same_model.values():
        for a, b in itertools.combinations(by_type.values(), 2):
            compared += 1
            assert a != b
    assert compared > 0


# ---- What is outside ---------------------------------------------------------------------------


def flag_rows(binary):
    """(name, range) of every flag, from the page that the binary itself writes."""
    page = subprocess.run([binary, "--flags-markdown"], check=True, capture_output=True, text=True).stdout
    for line in page.splitlines():
        if line.startswith("| `--"):
            cells = [cell.strip().replace("\\|", "|") for cell in line.replace("\\|", "\0").split("|")]
            name, range_text = cells[1].strip("`"), cells[3].replace("\0", "|")
            yield name, range_text


def outside(name, range_text):
    """Values that a flag of this range must refuse."""
    if "|" in range_text:
        return ["nothing-of-it", "", range_text.upper(), range_text]
    bounds = range_text.split("..")
    if len(bounds) == 2:
        low, high = (float(b.replace("KiB", "e3").replace("GiB", "e9")) for b in bounds)
        low_text = "0" if low > 1000 else f"{low - 1:g}"  # bytes are given with units
        high_text = "9999999999999" if high > 1e8 else f"{high + 1:.12g}"
        return [low_text, high_text, "x", "", "1e", "0x10", "nan", "inf", "--"]
    return ["-1", "x", "1.5", "9999999TiB"] if "or more" in range_text else []


def end_of(binary, *args, environment=None):
    run = subprocess.run([binary, *args], capture_output=True, text=True, timeout=60,
                         env={**os.environ, **(environment or {})})
    return run.returncode, run.stderr.splitlines()


def test_Case_060_ValuesOutsideEveryRangeAreRefusedByName(launch, toy):
    checked = 0
    for name, range_text in flag_rows(launch.binary):
        if name.startswith("--[no-]"):
            switch = name.replace("[no-]", "")
            check = () if switch == "--check" else ("--check",)
            assert end_of(launch.binary, "--model", toy, *check, f"{switch}=maybe")[0] == 2, switch
            variable = "LONGSPAN_" + switch[2:].upper().replace("-", "_")
            code, lines = end_of(launch.binary, "--model", toy, *check, environment={variable: "maybe"})
            assert (code, len(lines)) == (2, 1) and variable in lines[0], switch
            continue
        for value in outside(name, range_text):
            code, lines = end_of(launch.binary, "--model", toy, "--check", f"{name}={value}")
            assert (code, len(lines)) == (2, 1), (name, value, code, lines)
            assert name[2:] in lines[0], (name, value, lines)
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("flags, word", [
    ({"device": "cuda"}, "device"),
    ({"device": "hip"}, "device"),
    ({"dtype": "float16"}, "dtype"),
    ({"dtype": "bfloat16"}, "dtype"),
    ({"max_model_len": 257}, "max-model-len"),
    ({"kv_cache_dtype": "fp8_e4m3"}, "kv-cache-dtype"),
    ({"kv_blocks": 4, "kv_cache_memory_bytes": "1MiB"}, "kv-blocks"),
    ({"kv_blocks": None, "kv_cache_memory_bytes": 8}, "kv-cache-memory-bytes"),
    ({"fault": "meteor@1"}, "fault"),
    ({"load_format": "safetensors"}, "load-format"),
])
def test_Case_060_WhatThisModelOrMachineCannotDoIsRefusedByName(launch, toy, flags, word):
    server = launch(toy, wait_ready=False, **flags)
    try:
        assert server.wait_exit() == 2, server.log_text()
        assert word in [x for x in server.log_text().splitlines() if x.startswith("longspan-server:")][0]
    finally:
        server.stop()


@pytest.mark.parametrize("changes, word", [
    ({"head_dim": 63}, "head size"),
    ({"head_dim": 8}, "head size"),
    ({"head_dim": 264}, "head size"),
    ({"num_attention_heads": 10, "num_key_value_heads": 4}, "10 query heads"),
    ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 0}, "sliding_window"),
    ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": -1}, "sliding_window"),
    ({"sliding_window": 8}, "sliding_window"),
])
def test_Case_060_ShapesThatTheKernelsDoNotHaveAreRefusedByName(launch, tmp_path, changes, word):
    config = write_tiny_model.llama_config(**changes)
    write_tiny_model.write_json(str(tmp_path / "config.json"), config)
    code, lines = end_of(launch.binary, "--model", str(tmp_path), "--load-format", "dummy", "--check")
    assert (code, len(lines)) == (4, 1) and word in lines[0], lines


def test_Case_060_TheBordersOfEveryRangeStart(launch, toy):
    """The smallest and largest block, and what --help calls automatic, load and answer alike."""
    answers = []
    for flags in ({"block_size": 1}, {"block_size": 256}, {"num_splits": 1024}, {"max_num_batched_tokens": 1},
                  {"max_num_seqs": 1}, {"threads": 0}, {"kv_blocks": 0}, {"max_num_seqs": 4096},
                  {"block_size": 256, "max_model_len": 100}):  # a block beyond the context
        with launch(toy, **{"kv_blocks": 300, "matmul_precision": "float32", **flags}) as server:
            answers.append(server.generate(CANARY_PROMPT, 8).ids())
    assert len(answers[0]) == 8 and all(answer == answers[0] for answer in answers)
