"""What a request may hold and what it may not: faults R1 to R9, T9, U1, cases 23, 25, 27, 28, 30, 33, 55."""

import math

import numpy as np
import oracle
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


class PenaltyOracle:
    """Greedy answers of toy T in float64, whole prompt each time, penalties applied by hand."""

    def __init__(self):
        self.config, self.weights = oracle.load("toy_t")

    def answer(self, prompt, tokens, repetition=1.0, presence=0.0, frequency=0.0):
        """(ids, log-probabilities before penalties, the smallest lead of a chosen token over the next best)."""
        ids, logprobs, lead = [], [], INF
        for _ in range(tokens):
            logits = oracle.forward(self.config, self.weights, prompt + ids)[-1]
            penalized = logits.copy()
            for token in set(prompt + ids):
                penalized[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
            for token in set(ids):
                penalized[token] -= presence + frequency * ids.count(token)
            second, best = np.sort(penalized)[-2:]
            lead = min(lead, best - second)
            ids.append(int(np.argmax(penalized)))
            logprobs.append(logits[ids[-1]] - logits.max() - math.log(np.exp(logits - logits.max()).sum()))
        return ids, logprobs, lead


FLOAT32 = {"matmul_precision": "float32", "kv_cache_dtype": "float32"}


def test_Case_033_PenaltiesSeePromptAndOutputWhateverTheCache(launch, toy):
    """Cold, warm with a full and a partial hit, bypassed, in chunks and whole, after preemption: one answer, and it is the
    oracle's over prompt and generated tokens."""
    prompt, tokens = [7, 7, 7, 7, 7] + list(range(100, 120)), 40
    fields = {"sampling__repetition_penalty": 1.3, "output__logprobs": 0}
    wanted, logprobs, lead = PenaltyOracle().answer(prompt, tokens, repetition=1.3)
    assert lead > 1e-4, "no tie that rounding could decide"

    def check(answer, cached):
        assert answer.ids() == wanted
        assert [entry.logprob for entry in answer.logprobs()] == pytest.approx(logprobs, abs=1e-4)
        assert cached is None or answer.started.cached_tokens == cached

    with launch(toy, **FLOAT32) as server:  # prompts are computed in chunks of 16
        server.remember_canary()
        check(server.generate(prompt, tokens, **fields, cache_salt=b"33"), 0)
        check(server.generate(prompt, tokens, **fields, cache_salt=b"33"), 24)  # all but the last token
        # Another request left the first three blocks of the prompt and a block that differs.
        server.generate(prompt[:14] + [300] * 6, 1, cache_salt=b"33-partial")
        check(server.generate(prompt, tokens, **fields, cache_salt=b"33-partial"), 12)
        check(server.alone(prompt, tokens, **fields), 0)
        off = server.generate(prompt, tokens, cache_salt=b"33-off")
        assert off.ids() != wanted, "the penalty does something"
        server.check_health()
    with launch(toy, max_num_batched_tokens=256, **FLOAT32) as whole:
        check(whole.generate(prompt, tokens, **fields), 0)
    with launch(toy, start_paused=True, **FLOAT32) as small:
        crowd = [request(prompt, tokens, **fields, cache_salt=b"%d" % i) for i in range(6)]
        for job in small.start_together(crowd):
            check(job.result(), None)
        assert small.metric("longspan_preemptions_total") >= 1


@pytest.mark.parametrize("name", ["presence", "frequency"])
def test_Case_033_PresenceAndFrequencyCountGeneratedTokensOnly(launch, toy, name):
    prompt, tokens = [7, 7, 7, 7, 7] + list(range(100, 120)), 40
    wanted, logprobs, lead = PenaltyOracle().answer(prompt, tokens, **{name: 0.5})
    assert lead > 1e-4, "no tie that rounding could decide"
    with launch(toy, **FLOAT32) as server:
        server.remember_canary()
        for cached in (0, 24):
            answer = server.generate(prompt, tokens, **{f"sampling__{name}_penalty": 0.5, "output__logprobs": 0})
            assert (answer.ids(), answer.started.cached_tokens) == (wanted, cached)
            assert [entry.logprob for entry in answer.logprobs()] == pytest.approx(logprobs, abs=1e-4)
        assert server.generate(prompt, tokens).ids() != wanted, "the penalty does something"
        server.check_health()


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
