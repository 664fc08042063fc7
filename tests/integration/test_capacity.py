"""Capacity, isolation and truth of the counters: faults S1 to S9, I1, I3, and the leak check."""

import collections
import random
import socket
import threading
import time

from harness import CODE, Lateness, request, wait_until
from http2 import Connection
from longspan.v1 import inference_pb2

P = lambda n: list(range(1, n + 1))  # noqa: E731


def test_Fault_S1_KvExhausted(launch, toy):
    prompts = [[50 * i + j for j in range(30)] for i in range(6)]
    with launch(toy) as server:
        server.remember_canary()
        canary, alone = server.canary, [server.alone(p, 40).ids() for p in prompts]
    with launch(toy, start_paused=True) as server:
        server.canary = canary
        jobs = server.start_together([request(p, 40) for p in prompts])
        assert [job.result().ids() for job in jobs] == alone
        assert server.metric("longspan_preemptions_total") >= 1
        server.check_health()


STORM = [request([15 * i + j for j in range(30)], 40) for i in range(32)]  # 32 x 70 tokens, the pool holds 256


def storm_work(server):
    """(steps, tokens computed) so far."""
    return [server.metric("longspan_step_tokens_" + name) for name in ("count", "sum")]


def test_Fault_S2_NoPreemptionStorm(launch, toy):
    with launch(toy) as server:  # one after the other
        serial = [server.generate(message).ids() for message in STORM]
        wait_until(server.is_idle, "idle")
        serial_steps, serial_tokens = storm_work(server)
        assert server.metric("longspan_preemptions_total") == 0
    with launch(toy, start_paused=True) as server:  # all at once
        jobs = server.start_together(STORM)
        answers = [job.result() for job in jobs]
        wait_until(server.is_idle, "idle")
        steps, tokens = storm_work(server)
        preemptions = server.metric("longspan_preemptions_total")
        assert [answer.ids() for answer in answers] == serial, "nobody's tokens change"
        assert 1 <= preemptions <= 3 * len(STORM)
        # In all at most three times the work of one after the other; each request's own limit is in tests/scheduler.
        assert steps <= serial_steps and tokens <= 3 * serial_tokens, (steps, tokens, serial_steps, serial_tokens)
        server.remember_canary()
        server.check_health()


def test_Fault_S3_CanNeverFit(launch, toy):
    with launch(toy, kv_blocks=16) as server:
        server.remember_canary()
        answer = server.generate(P(60), 40)
        assert (answer.code, answer.fields()) == (CODE.INVALID_ARGUMENT, ["stop.max_tokens"])
        assert "limit" in answer.message
        assert len(server.generate(P(60), 4).ids()) == 4
        server.check_health()


def test_Fault_S4_DeadlineInTheQueue(launch, toy):
    """Five requests with a deadline of 200 ms behind 5 s of work, from a client that takes nothing back: the server ends
    them, the median within 50 ms of the deadline. What this machine was late meanwhile is allowed on top."""
    with launch(toy, max_num_seqs=1, kv_blocks=128, step_delay_ms=20) as server:
        server.remember_canary()
        blocker = server.start([1], 250)
        blocker.wait_tokens(1)
        steps, prompts = server.metrics(), "longspan_prompt_tokens_total"
        connection, late, elapsed = Connection(server.address), Lateness(server), []
        for i in range(5):
            start = time.monotonic()
            message = request([2] * 20, 4).SerializeToString()
            stream = connection.call(b"/" + GENERATE.encode(), message, [(b"grpc-timeout", b"200m")])
            wait_until(lambda: stream in connection.ended | connection.reset, "the server ends it")
            elapsed.append(time.monotonic() - start)
            ended = server.metric("longspan_requests_finished_total", reason="deadline")
            assert ended == i + 1, "counted as deadline, once"
        noise = late.worst()
        wait_until(lambda: server.load().waiting_requests == 0, "the last one left the queue too")
        assert blocker.is_alive()
        assert min(elapsed) >= 0.2 - 0.05, "nor long before it, when no step fits in any more"
        assert sorted(elapsed)[2] <= 0.2 + 0.05 + noise, (elapsed, noise)
        after = server.metrics()
        assert after[prompts] == steps[prompts], "none of them started"
        done = {name: after[name] - steps[name] for name in ("longspan_step_tokens_count", "longspan_step_tokens_sum")}
        assert len(set(done.values())) == 1, "every step computed the one token of the running request"
        assert server.generate([2], 4, call_options={"timeout": 0.2}).code == CODE.DEADLINE_EXCEEDED
        connection.close()
        blocker.call.cancel()
        server.check_health()


def test_Fault_S5_DeadlineMidDecode(launch, toy):
    with launch(toy, step_delay_ms=10) as server:
        server.remember_canary()
        alone = server.alone([5, 6], 250).ids()
        answer = server.generate([5, 6], 250, call_options={"timeout": 0.5})
        assert answer.code == CODE.DEADLINE_EXCEEDED
        assert answer.ids() and answer.ids() == alone[: len(answer.ids())], "what came stays valid"
        assert answer.finished() is None
        server.check_health()


def test_Fault_S7_AHighOneGoesFirst(launch, toy):
    """Queued last, the high one starts first; and it takes the slot of a low one that runs."""
    with launch(toy, max_num_seqs=1, step_delay_ms=5, start_paused=True) as server:
        jobs = server.start_together([request([i + 1], 20) for i in range(4)] + [request([9], 5, priority=5)])
        *low, high = [job.result() for job in jobs]
        assert all(len(answer.ids()) == 20 for answer in low), "low ones are not lost"
        assert all(high.finished().timings.queue_seconds < x.finished().timings.queue_seconds for x in low)
        runs = server.start([1], 200)
        runs.wait_tokens(1)
        before = server.metric("longspan_preemptions_total")
        assert len(server.generate([9], 5, priority=5).ids()) == 5
        assert server.metric("longspan_preemptions_total") == before + 1
        assert len(runs.result().ids()) == 200


def test_Fault_S7_ALowOneAgesPastEndlessHigherLoad(launch, toy):
    """There is always a higher one in the queue; after one ageing period (10 s) the low one starts all the same."""
    with launch(toy, max_num_seqs=1, step_delay_ms=5) as server:
        server.remember_canary()
        high = [server.start([i + 2], 40, priority=1) for i in range(3)]
        high[0].wait_tokens(1)
        low = server.start([1], 5)
        num_before = 0
        while not low.answer.started:
            done = high.pop(0)
            assert len(done.result().ids()) == 40
            num_before += 1
            assert num_before < 600, "it starves"
            high.append(server.start([num_before % 500 + 2], 40, priority=1))
        assert num_before > 3, "ageing is slow: higher ones went before it"
        assert len(low.result().ids()) == 5
        for job in high:
            job.result()
        server.check_health()


def test_Fault_S8_ScrapesUnderLoad(server):
    """A scraper that never reads blocks nobody; 20 in parallel see the same fixed set of series."""
    host, port = server.metrics_address.rsplit(":", 1)
    hung = [socket.create_connection((host, int(port))) for _ in range(4)]
    for s in hung:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")  # never finished
    jobs = [server.start([i + 1], 100) for i in range(4)]
    names = []
    threads = [threading.Thread(target=lambda: names.append(set(server.metrics()))) for _ in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(names) == 20
    assert all(job.result().code == CODE.OK for job in jobs)
    for i in range(30):
        server.generate([i], 1, request_id=f"label-{i}", cache_salt=b"%d" % i)
    first = {n.partition("{")[0] for n in names[0]}
    assert {n.partition("{")[0] for n in server.metrics()} == first
    assert not any("label-" in n for n in server.metrics())
    for s in hung:
        s.close()


GENERATE = "longspan.v1.Inference/Generate"
REJECTIONS = (CODE.INVALID_ARGUMENT, CODE.RESOURCE_EXHAUSTED, CODE.NOT_FOUND)


class Counted:
    """What a client counts of its own requests. One that it cuts, or whose deadline passes, is known to have had what
    was read of it; what was on its way then, nobody read: `unread` is how much that can be at most."""

    def __init__(self):
        self.reasons = {"stop": 0, "length": 0, "aborted": 0, "deadline": 0, "rejected": 0, "error": 0}
        self.codes = collections.Counter()
        self.prompt_tokens = self.cached = self.started = self.finished_sequences = 0
        self.tokens = self.with_token = self.sequences_with_token = 0
        self.unread = collections.Counter()

    def add(self, message, answer):
        self.codes[answer.code] += 1
        if answer.started:
            self.started += 1
            self.prompt_tokens += answer.started.prompt_tokens
            self.cached += answer.started.cached_tokens
        read = [len(answer.ids(i)) for i in range(message.n or 1)]
        self.tokens += sum(read)
        self.with_token += any(read)
        self.sequences_with_token += sum(n > 0 for n in read)
        ends = [r.finished for r in answer.responses if r.HasField("finished")]
        self.finished_sequences += len(ends)
        if answer.code == CODE.OK:
            self.reasons[inference_pb2.FinishReason.Name(ends[-1].reason)[14:].lower()] += 1
            assert [e.usage.completion_tokens for e in sorted(ends, key=lambda e: e.index)] == read
        elif answer.code in REJECTIONS:
            self.reasons["rejected"] += 1
        else:
            assert answer.code in (CODE.CANCELLED, CODE.DEADLINE_EXCEEDED)
            self.reasons["aborted" if answer.code == CODE.CANCELLED else "deadline"] += 1
            self.unread["tokens"] += message.stop.max_tokens - read[0]
            if not answer.ids():  # its first token may have been among them, or only its start
                self.unread["first"] += 1
            if not answer.started:
                self.unread["started"] += 1
                self.unread["prompt"] += len(message.token_ids.ids)

    def check(self, server, queued=False):
        """queued: what was cut had not started, so that nothing was on its way."""
        total = sum(self.codes.values())
        counted = "longspan_grpc_requests_total"
        wait_until(lambda: server.metric(counted, method=GENERATE) == total, "every request has ended")
        for reason, count in self.reasons.items():
            assert server.metric("longspan_requests_finished_total", reason=reason) == count, reason
        for code in CODE:
            assert server.metric(counted, method=GENERATE, code=code.name) == self.codes[code], code
        unread = collections.Counter() if queued else self.unread
        first, tokens = unread["first"], unread["tokens"]
        bounds = {
            "longspan_e2e_request_latency_seconds_count": (total - self.reasons["rejected"], 0),
            "longspan_prompt_tokens_total": (self.prompt_tokens, unread["prompt"]),
            "longspan_prompt_tokens_cached_total": (self.cached, unread["prompt"]),
            "longspan_queue_time_seconds_count": (self.started, unread["started"]),
            "longspan_generation_tokens_total": (self.tokens, tokens),
            "longspan_time_to_first_token_seconds_count": (self.with_token, first),
            "longspan_prefill_time_seconds_count": (self.with_token, first),
            "longspan_inter_token_latency_seconds_count": (self.tokens - self.sequences_with_token, tokens),
            "longspan_decode_time_seconds_count": (self.finished_sequences, 0),
        }
        for name, (read, more) in bounds.items():
            assert read <= server.metric(name) <= read + more, name


def test_Fault_S9_MetricsEqualWhatTheClientCounted(launch, toy):
    """500 requests: answered, aborted, refused, cancelled and expired, in the queue and while they run."""
    rng = random.Random(9)
    client, sent = Counted(), 0
    with launch(toy, kv_blocks=256, max_queued_requests=16, step_delay_ms=10) as server:

        def start(prompt, max_tokens, call_options=None, **fields):
            nonlocal sent
            sent += 1
            message = request(prompt, max_tokens, request_id=f"s9-{sent}", **fields)
            return message, server.start(message, call_options=call_options)

        def settle(pair):
            client.add(pair[0], pair[1].result())

        # 408 that nobody cuts: every count is exact.
        waiting = []
        for _ in range(408):
            kind = rng.randrange(10)
            prompt = [rng.randrange(512) for _ in range(rng.randrange(1, 40))]
            fields = {}
            if kind == 0:
                prompt = [600]
            elif kind == 1:
                fields["stop__token_ids"] = list(range(0, 512, 8))
            elif kind == 2:
                fields["n"] = 3
            elif kind == 3:
                fields["model"] = "other"
            waiting.append(start(prompt, rng.randrange(0, 12), **fields))
            if kind == 4:
                server.inference.Abort(inference_pb2.AbortRequest(request_id=waiting[-1][0].request_id))
            if len(waiting) >= 12:
                settle(waiting.pop(0))
        for pair in waiting:
            settle(pair)
        client.check(server)
        assert client.unread.total() == 0

        # Behind eight long ones a queue of sixteen: for five more it is full, most are cancelled in it, five expire in it.
        for _ in range(2):
            blockers = [start([i + 1], 200) for i in range(8)]
            for _, job in blockers:
                job.wait_started()
            gone = [start([7] * 20, 4) for _ in range(16)]
            wait_until(lambda: server.load().waiting_requests == 16, "the queue is full")
            full = [start([7] * 20, 4) for _ in range(5)]
            for pair in full:
                settle(pair)
            for _, job in gone:
                job.call.cancel()
            wait_until(lambda: server.load().waiting_requests == 0, "the queue is empty")
            late = [start([7] * 20, 4, call_options={"timeout": 0.3}) for _ in range(5)]
            for pair in gone + late + blockers:  # the long ones to their end: they are counted exactly
                settle(pair)
        assert client.reasons["aborted"] >= 32 and client.reasons["deadline"] >= 10
        client.check(server, queued=client.started == server.metric("longspan_queue_time_seconds_count"))

        # 24 cuts and deadlines while tokens come.
        for i in range(3):
            cut = [start([rng.randrange(512)], 120, call_options={"timeout": 0.3 if k % 2 else 60}) for k in range(8)]
            for k, pair in enumerate(cut):
                if k % 2 == 0:
                    pair[1].wait_tokens(1 + 2 * i)
                    pair[1].call.cancel()
            for pair in cut:
                settle(pair)
        assert sent == sum(client.codes.values()) == 500
        wait_until(server.is_idle, "idle")
        client.check(server)
        assert client.codes[CODE.RESOURCE_EXHAUSTED] >= 10 and client.reasons["deadline"] >= 10 + 12
        server.remember_canary()
        server.check_health()


def test_Fault_I1_SaltsDoNotShare(server):
    prompt = list(range(300, 340))
    first = server.generate(prompt, 1, cache_salt=b"tenant-a")
    within = server.generate(prompt, 1, cache_salt=b"tenant-a")
    across = server.generate(prompt, 1, cache_salt=b"tenant-b")
    without = server.generate(prompt, 1)
    assert first.started.cached_tokens == across.started.cached_tokens == 0
    assert without.started.cached_tokens == 0
    assert within.started.cached_tokens == 36
    assert first.ids() == within.ids() == across.ids() == without.ids()


def test_Fault_I3_StaleBlockContent(launch, toy):
    """A pool whose freed blocks are NaN gives the same tokens as one whose blocks are left alone."""
    rng = random.Random(3)
    work = [([rng.randrange(512) for _ in range(rng.randrange(1, 60))], rng.randrange(1, 30)) for _ in range(30)]
    results = []
    for poison in (False, True):
        with launch(toy, kv_blocks=40, poison_freed=poison) as server:
            server.remember_canary()
            jobs = [server.start(p, n, output__logprobs=0) for p, n in work]
            answers = [job.result() for job in jobs]
            assert all(a.code == CODE.OK for a in answers)
            results.append([(a.ids(), [e.logprob for e in a.logprobs()]) for a in answers])
            server.check_health()
    assert results[0] == results[1], "bit for bit"


def test_Fault_R9_NonFiniteLogits(launch, models, tmp_path):
    """A weight that is NaN: only requests that touch it end with INTERNAL."""
    import struct

    import write_tiny_model

    folder = str(tmp_path / "nan")
    write_tiny_model.write_model("toy_t", folder)
    path = folder + "/model.safetensors"
    with open(path, "r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        import json

        header = json.loads(file.read(size))
        start = header["model.embed_tokens.weight"]["data_offsets"][0]
        file.seek(8 + size + start + 300 * 64 * 4)
        file.write(struct.pack("<f", float("nan")))
    with launch(folder) as server:
        server.remember_canary()
        neighbour = server.start([5, 6], 60)
        bad = server.generate([1, 300, 2], 5)
        assert bad.code == CODE.INTERNAL and "finite" in bad.message
        assert neighbour.result().code == CODE.OK
        server.check_health()


def test_Leak_2000MixedRequestsWithRandomCancels(launch, toy):
    rng = random.Random(2000)
    with launch(toy, max_queued_requests=64) as server:
        server.remember_canary()
        pending = []
        for _ in range(2000):
            prompt = [rng.randrange(512) for _ in range(rng.randrange(1, 50))]
            call = server.inference.Generate(
                request(prompt, rng.randrange(0, 12), n=rng.choice([1, 1, 1, 2])), timeout=60
            )
            if rng.random() < 0.3:
                call.cancel()
            pending.append(call)
            if len(pending) >= 24:
                done = pending.pop(rng.randrange(len(pending)))
                try:
                    for _ in done:
                        if rng.random() < 0.05:
                            done.cancel()
                except Exception:  # noqa: BLE001 cancelled or refused: the end is what counts
                    pass
        for call in pending:
            call.cancel()
        wait_until(server.is_idle, "blocks exactly at the baseline")
        load = server.load()
        assert load.used_blocks == 0 and load.evictable_blocks <= load.total_blocks
        assert server.metric("longspan_kv_blocks_leaked") == 0

        def all_ended():
            metrics = server.metrics().items()
            reached = sum(v for n, v in metrics if n.startswith("longspan_grpc_requests_total{") and "/Generate" in n)
            ended = sum(v for n, v in metrics if n.startswith("longspan_requests_finished_total{"))
            return reached == ended

        wait_until(all_ended, "every request that reached a handler ended once")
        assert 1000 < server.metric("longspan_requests_finished_total") <= 2001
        server.check_health()
