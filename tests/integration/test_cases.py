"""Faults of other servers' lives, retold: cases 1 to 23 and 59 on the small models, over the wire."""

import random

import pytest
from harness import CANARY_PROMPT, CODE, drain, request, skip_under, wait_until
from longspan.v1 import inference_pb2, inference_pb2_grpc

P = lambda n: list(range(1, n + 1))  # noqa: E731


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_Case_001_OneHitsTheCacheAndItsNeighbourDoesNot(launch, toy, block_size):
    a, b = P(32) + [100], list(range(200, 241))
    flags = {"block_size": block_size, "kv_blocks": 256 // block_size, "max_num_seqs": 2, "max_num_batched_tokens": 64}
    with launch(toy, **flags) as server:
        server.remember_canary()
        canary, alone = server.canary, [server.alone(x, 8).ids() for x in (a, b)]
    with launch(toy, start_paused=True, **flags) as server:
        server.canary = canary
        # The pause ends once: the first two fill both slots and the cache and end in the first step; the second step
        # then starts the hit and the miss together.
        messages = [request(P(32), 1, priority=9), request([300], 1, priority=9), request(a, 8), request(b, 8)]
        *first, hit, miss = [job.result() for job in server.start_together(messages)]
        assert all(len(x.ids()) == 1 for x in first)
        assert [hit.ids(), miss.ids()] == alone
        assert (hit.started.cached_tokens, miss.started.cached_tokens) == (32, 0)
        wait_until(server.is_idle, "idle")
        assert server.metric("longspan_step_tokens_count") == 1 + 8, "both ran in the same eight steps"
        assert server.metric("longspan_step_tokens_sum") == 32 + 1 + (1 + 41) + 2 * 7, "and the hit computed one token"
        server.check_health()


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_Case_002_PromptFullyInCache(launch, toy, block_size):
    with launch(toy, block_size=block_size, kv_blocks=256 // block_size) as server:
        server.remember_canary()
        for n in (15, 16, 17, 31, 32, 33):
            prompt = [(7 * n + i) % 512 for i in range(n)]
            expected = server.alone(prompt, 6).ids()
            hit = block_size * ((n - 1) // block_size)
            used = []
            for run in range(3):
                answer = server.generate(prompt, 6)
                assert answer.ids() == expected
                assert answer.started.cached_tokens == (hit if run else 0)
                wait_until(server.is_idle, "idle")
                used.append(server.load().evictable_blocks)
            assert used[1] == used[2]
            longer = server.generate(prompt + expected[:1], 6)
            assert longer.started.cached_tokens == block_size * (n // block_size), "every full block"
            assert longer.ids()[:5] == expected[1:]
        server.check_health()


def test_Case_006_LongUptimeUnderEviction(launch, toy):
    rng = random.Random(6)
    with launch(toy, kv_blocks=40, max_queued_requests=4096) as server:
        server.remember_canary()
        shared = [[rng.randrange(512) for _ in range(n)] for n in (8, 12, 13, 20, 31)]  # whole blocks and not
        templates = [
            sum(rng.sample(shared, rng.randrange(1, 4)), [])[:60] + [rng.randrange(512)]
            for _ in range(20)
        ]
        alone = {tuple(t): server.alone(t, 12).ids() for t in templates}
        cancelled = cached = 0
        for round_ in range(50):
            jobs = []
            for _ in range(20):
                template = rng.choice(templates)
                job = server.start(template, rng.randrange(1, 12))
                if rng.random() < 0.1:
                    # In the queue, in the prefill or while it decodes.
                    rng.choice([lambda: None, job.wait_started, lambda: job.wait_tokens(3)])()
                    job.call.cancel()
                jobs.append((template, job))
            for template, job in jobs:
                answer = job.result()
                assert answer.code in (CODE.OK, CODE.CANCELLED)
                cancelled += answer.code == CODE.CANCELLED
                cached += answer.started.cached_tokens if answer.started else 0
                assert answer.ids() == alone[tuple(template)][: len(answer.ids())]
            # The canary itself reads what the others left in the cache, and leaves its own.
            assert server.generate(CANARY_PROMPT, 8).ids() == server.canary, f"round {round_}"
            assert server.alone(CANARY_PROMPT, 8).ids() == server.canary, f"round {round_}"
        assert cancelled > 20 and cached > 1000
        assert server.metric("longspan_prefix_cache_evictions_total") > 0
        server.check_health()


def test_Case_009_PromptLogprobsAcrossChunks(launch, toy):
    lists = []
    for chunk in (16, 50, 49, 1):
        with launch(toy, max_num_batched_tokens=chunk, step_delay_ms=1) as server:
            server.remember_canary()
            answer = server.generate(P(50), 4, output__prompt_logprobs=3, output__logprobs=3)
            entries = answer.prompt_logprobs()
            assert len(entries) == 50
            assert not entries[0].HasField("logprob") and len(entries[0].top) == 0
            assert [e.token_id for e in entries] == P(50)
            assert all(len(e.top) == 3 for e in entries[1:])
            kinds = [r.WhichOneof("event") for r in answer.responses]
            assert kinds.index("chunk") > max(i for i, k in enumerate(kinds) if k == "prompt_logprobs")
            lists.append([(e.logprob, *[t.logprob for t in e.top]) for e in entries[1:]])
            job = server.start(P(50), 4, output__prompt_logprobs=3)
            job.wait_started()
            job.call.cancel()
            job.result()
            server.check_health()
    for other in lists[1:]:
        for a, b in zip(lists[0], other):
            assert a == pytest.approx(b, abs=1e-4)


def test_Case_010_RecomputeAfterPreemption(launch, toy):
    prompts = [[100 + i] + P(19) for i in range(4)]
    with launch(toy, kv_blocks=24) as server:
        server.remember_canary()
        canary, alone = server.canary, [server.alone(p, 30).ids() for p in prompts]
    with launch(toy, kv_blocks=24, start_paused=True) as server:
        server.canary = canary
        jobs = server.start_together([request(p, 30) for p in prompts])
        for job, expected in zip(jobs, alone):
            answer = job.result()
            assert answer.ids() == expected and len(expected) == 30
            assert answer.finished().usage.prompt_tokens == 20
            assert answer.finished().usage.completion_tokens == 30
        assert server.metric("longspan_preemptions_total") >= 1
        server.check_health()


def test_Case_013_HighPriorityDoesNotWaitBehindLow(launch, toy):
    with launch(toy, max_num_seqs=2, kv_blocks=256, step_delay_ms=20) as server:
        server.remember_canary()
        low = [server.start([i + 1] * 4, 200) for i in range(2)]
        for job in low:
            job.wait_tokens(1)
        steps = server.metric("longspan_step_tokens_count")
        high = server.generate([50] * 4, 5, priority=10)
        assert len(high.ids()) == 5
        assert server.metric("longspan_step_tokens_count") - steps <= 20
        assert server.metric("longspan_preemptions_total") == 1, "one of them gave way"
        equals = [server.start([60 + i] * 4, 5) for i in range(3)]
        assert all(len(job.result().ids()) == 200 for job in low)
        assert all(len(job.result().ids()) == 5 for job in equals)
        assert server.metric("longspan_preemptions_total") == 1, "equals are not swapped"
        server.check_health()


def test_Case_014_EndInTheFirstPrefillStep(server):
    neighbour = server.start([1, 2], 200)
    for i in range(300):
        answer = server.generate([(i + j) % 512 for j in range(10)], 1)
        assert len(answer.ids()) == 1 and answer.reason() == "LENGTH"
        if not neighbour.is_alive():
            neighbour = server.start([1, 2], 200)
    neighbour.result()


def test_Case_016_QueueEntriesThatNeverRun(launch, toy):
    with launch(toy, max_num_seqs=1, max_queued_requests=4, kv_blocks=128, step_delay_ms=20) as server:
        server.remember_canary()
        server.generate(P(40), 1)  # what waits below would hit its blocks
        running = server.start([1], 250)
        running.wait_tokens(1)
        late = [server.start(P(40), 4, call_options={"timeout": 2.0}) for _ in range(2)]
        gone = [server.start(P(40), 4) for _ in range(2)]
        wait_until(lambda: server.load().waiting_requests == 4, "the queue is full")
        refused = [server.generate(P(40), 4) for _ in range(16)]
        assert all(x.code == CODE.RESOURCE_EXHAUSTED and x.started is None for x in refused)
        assert all("max-queued-requests" in x.message for x in refused)
        for job in gone:
            job.call.cancel()
        assert [job.result().code for job in gone] == [CODE.CANCELLED] * 2
        assert [job.result().code for job in late] == [CODE.DEADLINE_EXCEEDED] * 2
        assert all(job.answer.started is None for job in (*late, *gone)), "none of them ran"
        wait_until(lambda: server.load().waiting_requests == 0, "the queue is empty")
        held, tokens = server.load().used_blocks, len(running.answer.ids()) + 1
        assert held <= tokens // 4 + 4, "the running one's blocks, and no pin on the nine that were cached"
        running.call.cancel()
        running.result()
        server.check_health()
        reasons = {"rejected": 16, "deadline": 2, "aborted": 2 + 1}
        for reason, count in reasons.items():
            assert server.metric("longspan_requests_finished_total", reason=reason) == count, reason


def blocks_seen(server, jobs):
    """The largest held blocks and usage ratio that were published while the jobs ran."""
    held, usage = [0], [0.0]
    while any(job.is_alive() for job in jobs):
        metrics = server.metrics()
        held.append(next(v for n, v in metrics.items() if n.startswith("longspan_kv_blocks{") and "held" in n))
        usage.append(next(v for n, v in metrics.items() if n.startswith("longspan_kv_cache_usage_ratio")))
        assert 0 <= usage[-1] <= 1
    for job in jobs:
        assert job.result().code == CODE.OK
    wait_until(server.is_idle, "idle")
    return max(held), max(usage)


def test_Case_017_UsedBlocksAreExact(launch, toy):
    with launch(toy, step_delay_ms=100) as server:
        server.remember_canary()
        # What is published after a step are the tokens stored so far; the last sampled one is not among them, and the
        # step that ends a sequence publishes none of its blocks.
        for stored, blocks, usage in ((10, 3, 0.046875), (12, 3, 0.046875), (13, 4, 0.0625)):
            job = server.start([stored * 10 + i for i in range(10)], stored - 8, cache_salt=bytes([stored]))
            assert blocks_seen(server, [job]) == (blocks, usage), stored
        server.generate(P(9), 1)
        pair = [server.start(P(8) + [200 + i], 5) for i in range(2)]  # up to twelve tokens each, eight of them shared
        assert blocks_seen(server, pair) == (2 + 1 + 1, 4 / 64), "shared ones count once"
        assert all(job.answer.started.cached_tokens == 8 for job in pair)
        wait_until(server.is_idle, "idle: used 0")
        assert server.metric("longspan_kv_blocks", state="held") == 0
        assert server.metric("longspan_kv_cache_usage_ratio") == 0
        assert server.metric("longspan_kv_blocks", state="evictable") == server.load().evictable_blocks > 0
        server.check_health()


# ---- The successor model: the next token is the previous id + 1 --------------------------------


def successor(launch, models, tokens, first_id=300, **options):
    server_options = {k: v for k, v in options.items() if k not in ("eos", "special_ids")}
    model_options = {k: v for k, v in options.items() if k in ("eos", "special_ids")}
    folder = models("successor", tokens=tuple(tokens), first_id=first_id, context=512, **model_options)
    return launch(folder, kv_blocks=512, **server_options)


def detokenized(server, ids):
    return server.inference.Detokenize(inference_pb2.DetokenizeRequest(token_ids=ids)).text


def test_Case_019_LengthInsideACharacter(launch, models):
    characters = "é€😀"
    tokens = [bytes([b]) for c in characters for b in c.encode()]
    with successor(launch, models, tokens) as server:
        server.remember_canary()
        at = 300
        for c in characters:
            size = len(c.encode())
            for max_tokens in range(1, size + 1):
                answer = server.generate([at - 1], max_tokens)
                assert answer.ids() == list(range(at, at + max_tokens))
                assert answer.text() == (c if max_tokens == size else "\ufffd")
                assert answer.reason() == "LENGTH"
                assert answer.finished().usage.completion_tokens == max_tokens
                assert answer.text() == detokenized(server, answer.ids())
                for chunk in (r.chunk.text for r in answer.responses if r.HasField("chunk")):
                    assert chunk in ("", c, "\ufffd"), "never a broken prefix"
            at += size
        whole = server.generate([299], len(tokens))
        assert whole.text() == characters == detokenized(server, whole.ids())
        server.check_health()


@pytest.mark.parametrize("burst", [False, True])
def test_Case_021_StopStrings(launch, models, burst):
    tokens = ["foo ", "ba", "rba", "z qux"]
    table = [
        (["barb"], "foo ", "foo barb", 3, "barb"),
        (["rb"], "foo ba", "foo barb", 3, "rb"),
        (["az"], "foo barb", "foo barbaz", 4, "az"),
        (["oo b", "o"], "f", "fo", 1, "o"),
    ]
    with successor(launch, models, tokens, step_delay_ms=0 if burst else 5) as server:
        server.remember_canary()
        for stops, cut, included, count, matched in table:
            for include in (False, True):
                seen = []
                answer = server.generate(
                    [299], 20, stop__strings=stops, stop__include_stop_in_output=include,
                    on_response=lambda a: seen.append(a.text()),
                )
                want = included if include else cut
                assert answer.text() == want
                assert all(want.startswith(text) for text in seen), "nothing past the cut ever streamed"
                assert answer.reason() == "STOP"
                assert answer.finished().matched_string == matched
                assert answer.ids() == list(range(300, 300 + count))
                assert answer.finished().usage.completion_tokens == count
        server.check_health()


def test_Case_021_SpecialTokensAndStops(launch, models):
    """A special token is text only where special tokens are wanted in it: there it can be, or end, or be inside a stop
    string. As a stop id it is never text, and nothing of the text before it is cut."""
    tokens, end, all_ids = ["foo ", "ba", "<|end|>", "rba"], 302, [300, 301, 302, 303]
    in_text, not_in_text = {"output__skip_special_tokens": False}, {}
    table = [  # fields, stop strings, text without and with the match, ids, matched
        (in_text, ["<|end|>"], "foo ba", "foo ba<|end|>", 3, "<|end|>"),
        (in_text, ["a<|end|>"], "foo b", "foo ba<|end|>", 3, "a<|end|>"),
        (in_text, ["ba<|end|>r"], "foo ", "foo ba<|end|>r", 4, "ba<|end|>r"),
        (in_text, ["bar"], "foo ba<|end|>rba", "foo ba<|end|>rba", 4, ""),
        (not_in_text, ["<|end|>"], "foo barba", "foo barba", 4, ""),
        (not_in_text, ["bar"], "foo ", "foo bar", 4, "bar"),
    ]
    with successor(launch, models, tokens, special_ids=(end,)) as server:
        server.remember_canary()
        for fields, stops, cut, included, count, matched in table:
            for include in (False, True):
                seen = []
                answer = server.generate([299], 4, stop__strings=stops, stop__include_stop_in_output=include,
                                         on_response=lambda a: seen.append(a.text()), **fields)
                want = included if include else cut
                assert answer.text() == want, (fields, stops)
                assert all(want.startswith(text) for text in seen), "nothing past the cut ever streamed"
                assert answer.reason() == ("STOP" if matched else "LENGTH")
                assert answer.finished().matched_string == matched
                assert answer.ids() == all_ids[:count]
                assert answer.finished().usage.completion_tokens == count
        for fields in (in_text, not_in_text):
            for include in (False, True):
                for strings in ([], ["<|end|>"]):
                    answer = server.generate([299], 4, stop__token_ids=[end], stop__include_stop_in_output=include,
                                             stop__strings=strings, **fields)
                    assert answer.text() == "foo ba", "whole, and without the stop id"
                    assert (answer.ids(), answer.reason()) == (all_ids[:3], "STOP")
                    assert answer.finished().matched_token_id == end and not answer.finished().matched_string
        server.check_health()


def test_Case_023_EosAndIgnoreEos(launch, models):
    with successor(launch, models, [], first_id=0, eos=20) as server:
        server.canary = server.alone(CANARY_PROMPT[:10], 8).ids()
        plain = server.generate([15], 10)
        assert plain.ids() == [16, 17, 18, 19, 20] and plain.reason() == "STOP"
        assert plain.finished().matched_token_id == 20
        ignored = server.generate([15], 10, stop__ignore_eos=True)
        assert ignored.ids() == list(range(16, 26)) and ignored.reason() == "LENGTH"
        for ignore in (False, True):
            at18 = server.generate([15], 10, stop__ignore_eos=ignore, stop__token_ids=[18])
            assert at18.ids() == [16, 17, 18] and at18.finished().matched_token_id == 18
        listed = server.generate([15], 10, stop__ignore_eos=True, stop__token_ids=[20])
        assert listed.ids() == [16, 17, 18, 19, 20]
        late = server.generate([15], 10, stop__min_tokens=5)
        assert 20 not in late.ids()[:5]


def test_Case_059_NobodyReads(launch, models):
    folder = models("successor", tokens=(), first_id=0, context=4096)
    with launch(folder, block_size=16, kv_blocks=4096, max_num_seqs=32, max_num_batched_tokens=256,
                slow_reader_timeout=1, max_queued_requests=8) as server:
        server.remember_canary()
        before = server.rss()
        channel = server.new_channel(("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
        stub = inference_pb2_grpc.InferenceStub(channel)
        silent = [stub.Generate(request([i + 1], 2000)) for i in range(20)]
        prompt = request([5] * (1 << 20), 1).SerializeToString()
        raw = server.channel.unary_stream("/longspan.v1.Inference/Generate")
        flood = [raw(prompt, timeout=60) for _ in range(500)]
        codes = {drain(call).code for call in flood}
        assert codes <= {CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED}, codes
        assert len(server.generate([7], 20).ids()) == 20
        wait_until(server.is_idle, "stalled streams end, blocks come back")
        if not server.sanitizer:
            wait_until(lambda: server.rss() - before < 64 * 1024 * 1024, "memory comes back")
        channel.close()
        del silent
        server.check_health()
    skip_under(server.sanitizer, "resident memory")
