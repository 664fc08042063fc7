"""Clients that do too much, or read too little: faults C6, C10 to C13 and C16 in full size, frame by frame where it
matters."""

import random
import socket
import threading
import time

import pytest
from grpc_health_v1 import SERVING
from harness import CANARY_PROMPT, CODE, PATIENCE, drain, request, skip_under, wait_until
from http2 import Connection
from longspan.v1 import inference_pb2, inference_pb2_grpc

GENERATE = b"/longspan.v1.Inference/Generate"
MIB = 1024 * 1024


class Peaks(threading.Thread):
    """The largest running and waiting counts that GetLoad ever told, from a connection of its own."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.channel = server.new_channel()
        self.stub = inference_pb2_grpc.InferenceStub(self.channel)
        self.running = self.waiting = self.looks = 0
        self.over = threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            load = self.stub.GetLoad(inference_pb2.GetLoadRequest(), timeout=PATIENCE)
            self.running = max(self.running, load.running_requests)
            self.waiting = max(self.waiting, load.waiting_requests)
            self.looks += 1

    def stop(self):
        self.over.set()
        self.join(PATIENCE)
        self.channel.close()
        assert self.looks > 0


def rejected_codes(server):
    return server.metric("longspan_grpc_requests_total", method="longspan.v1.Inference/Generate",
                         code="RESOURCE_EXHAUSTED")


# ---- C6: slow readers --------------------------------------------------------------------------

SLOW_READERS = 16
TOKENS_WANTED = 3000
MAX_PENDING = 64
ONE_MESSAGE = 300  # bytes of a chunk with 20 alternatives
# Chunks that gRPC takes before a write waits: its buffer of 64 KiB, and the first window.
TRANSPORT_CHUNKS = 64 * 1024 // 200


class SlowReaders:
    """Streams on one connection whose windows hold one or two messages; read() takes one message of each."""

    def __init__(self, server):
        self.connection = Connection(server.address, stream_window=2 * ONE_MESSAGE)
        self.streams = [
            self.connection.call(GENERATE, request([i + 1], TOKENS_WANTED, output__logprobs=20).SerializeToString())
            for i in range(SLOW_READERS)
        ]

    def read(self):
        for stream in self.streams:
            self.connection.grant(stream, ONE_MESSAGE)


def slow_server(launch, models, **flags):
    folder = models("successor", tokens=(), first_id=0, context=4096)
    return launch(folder, **{"block_size": 16, "kv_blocks": 8192, "max_num_seqs": 32, "max_num_batched_tokens": 64,
                             "max_pending_tokens": MAX_PENDING, "slow_reader_timeout": 6, **flags})


def test_Fault_C6_SlowReadersPauseAloneAndEnd(launch, models):
    with slow_server(launch, models) as server:
        server.remember_canary()
        server.generate([9], 300, output__logprobs=20)  # what every stream allocates once is not theirs
        resident = server.rss()
        tokens = server.metric("longspan_generation_tokens_total")
        slow = SlowReaders(server)
        wait_until(lambda: server.metric("longspan_requests_paused") == SLOW_READERS, "all are paused")
        made = server.metric("longspan_generation_tokens_total") - tokens
        # What is kept for one of them is bounded: by us, and before us by the transport.
        assert made <= SLOW_READERS * (MAX_PENDING + TRANSPORT_CHUNKS + 8), made / SLOW_READERS
        slow.read()
        assert server.load().used_blocks >= SLOW_READERS, "they keep their blocks"
        # Nobody else waits: another stream gets one token in every step.
        steps = server.metric("longspan_step_tokens_count")
        assert len(server.generate([300], 100).ids()) == 100
        assert server.metric("longspan_step_tokens_count") - steps <= 100 + 1
        growth = server.rss() - resident
        refused = rejected_codes(server)
        before = server.metric("longspan_requests_finished_total", reason="error")
        while server.metric("longspan_requests_finished_total", reason="error") < before + SLOW_READERS - refused:
            slow.read()  # one message now and then does not save them
            time.sleep(0.2)  # the reader's pace is the fault itself
        wait_until(lambda: rejected_codes(server) == SLOW_READERS, "RESOURCE_EXHAUSTED for each")
        slow.connection.close()
        server.check_health()
    skip_under(server.sanitizer, "resident memory")
    assert growth < SLOW_READERS * MIB, growth


def inter_token_p99(server, tokens):
    """Seconds between two messages of one stream: the 99th of a hundred."""
    stamps = []
    answer = server.generate([300], tokens, on_response=lambda _: stamps.append(time.monotonic()))
    assert len(answer.ids()) == tokens
    gaps = sorted(b - a for a, b in zip(stamps[2:], stamps[3:]))
    return gaps[int(len(gaps) * 0.99)]


@pytest.mark.slow
def test_Fault_C6_OthersKeepTheirPace(launch, models):
    """Inter-token p99 of another stream grows by 20 % at most; medians of five, steps of 10 ms."""
    with slow_server(launch, models, step_delay_ms=10, slow_reader_timeout=600) as server:
        server.remember_canary()
        skip_under(server.sanitizer, "pace")
        inter_token_p99(server, 100)
        fresh = sorted(inter_token_p99(server, 300) for _ in range(5))[2]
        slow = SlowReaders(server)
        wait_until(lambda: server.metric("longspan_requests_paused") == SLOW_READERS, "all are paused")
        beside = []
        for _ in range(5):
            slow.read()
            beside.append(inter_token_p99(server, 300))
        slow.connection.close()
        server.check_health()
        print(f"inter-token p99: {fresh * 1e3:.2f} ms alone, {sorted(beside)[2] * 1e3:.2f} ms beside slow readers")
        assert sorted(beside)[2] <= 1.2 * fresh


# ---- C8: idle streams --------------------------------------------------------------------------

IDLE_CONNECTIONS, STREAMS_EACH = 100, 100
WATCH = b"/grpc.health.v1.Health/Watch"
STREAMS_A_CONNECTION = 1024  # what the server allows


def test_Fault_C8_TenThousandIdleStreams(launch, toy):
    """Health watches on 100 connections, 100 on each: at most 20 KiB of memory for one, its share of the connection
    included, and the canary takes at most 1.5 times as long as on a server beside it that has none, in turns, by the
    medians."""
    with launch(toy) as server, launch(toy) as quiet:
        server.remember_canary()
        quiet.remember_canary()
        resident, streams = server.rss(), IDLE_CONNECTIONS * STREAMS_EACH
        connections = [Connection(server.address) for _ in range(IDLE_CONNECTIONS)]
        for connection in connections:
            for _ in range(STREAMS_EACH):
                connection.call(WATCH, b"")
        for connection in connections:  # each stream has had the first status
            wait_until(lambda: len(connection.data_bytes) == STREAMS_EACH, "all watch")
        if not server.sanitizer:
            wait_until(lambda: server.rss() - resident <= streams * 20 * 1024, "20 KiB a stream")
        growth, seconds = server.rss() - resident, {server: [], quiet: []}
        for _ in range(100):
            for each, times in seconds.items():
                start = time.perf_counter()
                assert each.alone(CANARY_PROMPT, 8).ids() == each.canary
                times.append(time.perf_counter() - start)
        ratio = sorted(seconds[server])[50] / sorted(seconds[quiet])[50]
        print(f"{growth / streams / 1024:.1f} KiB a stream; the canary takes {ratio:.2f} times as long")
        assert not any(connection.reset or connection.ended or connection.closed for connection in connections)
        for connection in connections:
            connection.close()
        server.check_health()
    skip_under(server.sanitizer, "resident memory and time")
    assert ratio <= 1.5


def test_Fault_C8_StreamsBeyondTheLimitWaitAtTheClient(launch, toy):
    """On one connection: the limit of streams is open, the rest waits in the client without an error, and moves up."""
    with launch(toy) as server:
        server.remember_canary()
        channel = server.new_channel()
        watch = channel.unary_stream(WATCH.decode())
        open_ones = [watch(b"") for _ in range(STREAMS_A_CONNECTION)]
        for call in open_ones:
            assert next(call) == bytes([8, SERVING])
        waiting = [watch(b"", timeout=PATIENCE) for _ in range(20)]
        heard = []
        threads = [threading.Thread(target=lambda call=call: heard.append(next(call)), daemon=True) for call in waiting]
        for thread in threads:
            thread.start()
        server.check_health()  # on a connection of its own
        assert not heard and all(call.code() is None for call in waiting if call.done())
        for call in open_ones[:20]:
            call.cancel()
        for thread in threads:
            thread.join(PATIENCE)
        assert heard == [bytes([8, SERVING])] * 20
        assert all(call.is_active() for call in open_ones[20:]), "nobody was reset"
        channel.close()
        server.check_health()


# ---- C10: rapid reset --------------------------------------------------------------------------

RESETS = 20_000
BATCH = 200


def cpu_ticks(server):
    with open(f"/proc/{server.process.pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_Fault_C10_TwentyThousandResetsOnOneConnection(launch, toy):
    with launch(toy, max_queued_requests=64) as server:
        server.remember_canary()
        peaks = Peaks(server)
        attacker = Connection(server.address)
        message = request([1, 2, 3], 50).SerializeToString()
        for start in range(0, RESETS, BATCH):
            burst = b""
            for i in range(start, start + BATCH):
                # Whole calls, and now and then one whose message never comes.
                _, frames = attacker.call_frames(GENERATE, message if i % 8 else None, reset=True)
                burst += frames
            if attacker.closed:
                break  # hanging up on such a client is right too
            attacker.send(burst)
        if not attacker.closed:  # behind all of them: what is answered now has seen them
            last = attacker.call(GENERATE, message)
            wait_until(lambda: last in attacker.ended | attacker.reset or attacker.closed, "the last one is answered")
        wait_until(server.is_idle, "everything is gone")
        peaks.stop()

        def all_ended():
            metrics = server.metrics().items()
            reached = sum(v for n, v in metrics if n.startswith("longspan_grpc_requests_total{") and "/Generate" in n)
            ended = sum(v for n, v in metrics if n.startswith("longspan_requests_finished_total{"))
            return reached == ended > RESETS / 100

        wait_until(all_ended, "they did reach the handlers, and each ended once")
        attacker.close()
        assert peaks.running <= 8, "never more than --max-num-seqs"
        assert peaks.waiting <= 64, "never more than --max-queued-requests"

        def is_quiet():
            before = cpu_ticks(server)
            time.sleep(0.2)  # the stretch over which processor time is measured
            return cpu_ticks(server) - before <= 1

        wait_until(is_quiet, "no processor time is spent on them afterwards")
        server.check_health()


# ---- C11: flood of tiny requests ---------------------------------------------------------------


def test_Fault_C11_AFloodOfTinyRequestsIsRefusedAtOnce(launch, toy):
    with launch(toy, max_queued_requests=32, step_delay_ms=1) as server:
        server.remember_canary()
        resident = server.rss()
        peaks = Peaks(server)
        channels = [server.new_channel() for _ in range(8)]
        stubs = [inference_pb2_grpc.InferenceStub(channel) for channel in channels]
        calls = [stubs[i % 8].Generate(request([i % 512], 1), timeout=PATIENCE) for i in range(4000)]
        answers = [drain(call) for call in calls]
        peaks.stop()
        codes = [answer.code for answer in answers]
        served, refused = codes.count(CODE.OK), codes.count(CODE.RESOURCE_EXHAUSTED)
        assert served + refused == 4000 and served > 0 and refused > 0, set(codes)
        for answer in answers:
            if answer.code == CODE.OK:
                assert len(answer.ids()) == 1 and answer.reason() == "LENGTH"
            else:
                assert answer.responses == [] and "max-queued-requests" in answer.message
        assert peaks.waiting <= 32 and peaks.running <= 8
        assert server.metric("longspan_requests_finished_total", reason="rejected") == refused
        for channel in channels:
            channel.close()
        server.check_health()
        growth = server.rss() - resident
    skip_under(server.sanitizer, "resident memory")
    assert growth < 64 * MIB, growth


def goodput(server, workers, seconds):
    """Requests answered a second, with so many workers that ask again at once."""
    end, done = time.monotonic() + seconds, []

    def work(i):
        channel = server.new_channel()
        stub = inference_pb2_grpc.InferenceStub(channel)
        count = 0
        while time.monotonic() < end:
            count += drain(stub.Generate(request([i], 1), timeout=PATIENCE)).code == CODE.OK
        done.append(count)
        channel.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / seconds


@pytest.mark.slow
def test_Fault_C11_GoodputOfAMinuteOfFlood(launch, toy):
    with launch(toy, max_queued_requests=16) as server:
        server.remember_canary()
        quiet, flooded = goodput(server, 4, 10), goodput(server, 64, 60)
        print(f"goodput: {quiet:.0f} requests/s from 4 workers, {flooded:.0f} requests/s from 64")
        assert flooded > 0
        server.check_health()


# ---- C12, C13: metadata and sizes --------------------------------------------------------------


def test_Fault_C12_MalformedBinaryMetadata(server):
    """A -bin value that is no base64: that stream ends, and with gRPC 1.51 its connection. Others go on, and nothing of
    it is logged."""
    neighbour = server.start([1], 100)
    neighbour.wait_tokens(1)
    message = request([2], 2).SerializeToString()
    for value in (b"!!!MARKER!!!", b"A", b"=" * 50, b"AAAA=AAAA", b"MARK\x80\xff", b"QUFB", b"QUE="):
        connection = Connection(server.address)
        stream = connection.call(GENERATE, message, extra=[(b"x-bin", value)])
        wait_until(lambda: connection.closed or stream in connection.ended | connection.reset, value)
        if value in (b"QUFB", b"QUE="):
            assert connection.data_bytes[stream] > 0 and not connection.closed, "good base64 is answered"
        connection.close()
    assert neighbour.result().code == CODE.OK
    assert "MARK" not in server.log_text()


def test_Fault_C13_EveryBorderOfMessageSizes(server):
    limit = 64 * MIB
    channel = server.new_channel(("grpc.max_send_message_length", -1))
    raw = channel.unary_stream(GENERATE.decode())

    def of_size(size):
        message = request([1], 1)
        message.cache_salt = b"s" * (size - message.ByteSize() - 8)
        message.cache_salt += b"s" * (size - message.ByteSize())
        assert message.ByteSize() == size
        return drain(raw(message.SerializeToString(), timeout=PATIENCE)).code

    for size in (4 * MIB - 1, 4 * MIB, 4 * MIB + 1, limit - 1, limit):
        assert of_size(size) == CODE.INVALID_ARGUMENT, "it reaches the handler, which finds the salt too long"
    for size in (limit + 1, limit + MIB):
        assert of_size(size) == CODE.RESOURCE_EXHAUSTED
    channel.close()
    assert len(server.generate([1], 2).ids()) == 2


# ---- C16: not HTTP/2 ---------------------------------------------------------------------------


def is_hung_up(connection):
    """Reads to the end that the server makes; the client keeps its side open."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_Fault_C16_TheServerHangsUp(server):
    """HTTP/1, TLS and noise: that connection is closed by the server, and a thousand of them are one log line in ten
    seconds that says how many. A connection that begins as HTTP/2 and goes on as noise is closed too, without a line:
    gRPC 1.51 has none for it."""
    rng = random.Random(160)
    host, port = server.address.rsplit(":", 1)
    neighbour = server.start([1], 200)
    lines = len(server.log_text().splitlines())
    payloads = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /longspan.v1.Inference/Generate HTTP/1.1\r\nContent-Length: 10\r\n\r\n0123456789",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\xff\xff\x00\x00\x00\x00\x00\x00" + bytes(100),
        b"PRI * HTTP/1.0\r\n\r\n",
    ]
    payloads += [bytes([rng.randrange(0x80, 256)]) + rng.randbytes(rng.randrange(24, 300)) for _ in range(994)]
    start = time.monotonic()
    for payload in payloads:
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(payload)
            assert is_hung_up(connection)
    elapsed = time.monotonic() - start
    assert neighbour.result().code == CODE.OK
    text = server.log_text()
    new = text.splitlines()[lines:]
    assert 1 <= len(new) <= 1 + elapsed / 10 and all("not HTTP/2" in line for line in new), new
    assert all(ord(c) >= 0x20 or c == "\n" for c in text), "and escaped"
