"""Client and stream faults C1 to C16 of the fault matrix, over the wire. The many-thousand-fold forms of C4 and C15
run in tests/server, where a call costs microseconds; slow readers and floods are in test_floods.py."""

import random
import socket
import time

import grpc
import pytest
from harness import CODE, FreezingProxy, Lateness, drain, request, skip_under, wait_until
from longspan.v1 import inference_pb2, inference_pb2_grpc

GENERATE = "/longspan.v1.Inference/Generate"


def raw_generate(channel, data, timeout=60):
    """Sends bytes as they are; returns the code."""
    call = channel.unary_stream(GENERATE)(data, timeout=timeout)
    try:
        for _ in call:
            pass
    except grpc.RpcError:
        pass
    return call.code()


def test_Fault_C1_CancelWhileQueued(launch, toy):
    with launch(toy, kv_blocks=1024, step_delay_ms=10) as server:
        server.remember_canary()
        long_ones = [server.start([i + 1], 250) for i in range(8)]
        for job in long_ones:
            job.wait_started()
        looks = "longspan_prefix_cache_queries_total"  # published at the end of a step: after Started
        wait_until(lambda: server.metric(looks) == len(long_ones), "the steps of all eight")
        queued = server.start([99] * 10, 20)
        wait_until(lambda: queued.answer.queued or not queued.is_alive(), "the queue notice")
        queued.call.cancel()
        assert queued.result().code == CODE.CANCELLED
        assert queued.answer.started is None, "never scheduled"
        wait_until(lambda: server.load().waiting_requests == 0, "it is gone")
        assert server.metric(looks) == len(long_ones), "no look at the cache"
        for job in long_ones:
            job.call.cancel()
        server.check_health()


def test_Fault_C2_CancelMidPrefill(launch, toy):
    rng = random.Random(2)
    # 15 chunks of 16 tokens, 40 ms each: at every moment chosen below the prefill has most of its way to go.
    with launch(toy, step_delay_ms=40) as server:
        server.remember_canary()
        for i in range(25):
            prompt = [rng.randrange(512) for _ in range(240)]
            job = server.start(prompt, 10, cache_salt=b"%d" % i)
            job.wait_started()
            time.sleep(rng.random() * 0.1)  # a random moment of the prefill, which is the fault itself
            job.call.cancel()
            answer = job.result()
            assert answer.code == CODE.CANCELLED
            assert not answer.ids() and answer.finished() is None, "nothing was streamed"
            wait_until(server.is_idle, "blocks back")
            if i % 5:
                continue
            again = server.generate(prompt, 10, cache_salt=b"%d" % i)
            assert again.started.cached_tokens % 4 == 0, "whole blocks only"
            assert again.started.cached_tokens < 240 - 16, "and only those that were computed"
            assert again.ids() == server.alone(prompt, 10).ids(), "what the cache kept is right"
        assert server.metric("longspan_kv_blocks") == server.metric("longspan_kv_blocks_capacity")
        server.check_health()


def test_Fault_C3_CancelMidDecode(server):
    before = server.metric("longspan_requests_finished_total", reason="aborted")
    for k in range(1, 13):
        job = server.start([7, 8, 9], 200)
        job.wait_tokens(k)
        job.call.cancel()
        answer = job.result()
        assert answer.code == CODE.CANCELLED
        assert answer.finished() is None
        wait_until(server.is_idle, "blocks back")
    assert server.metric("longspan_requests_finished_total", reason="aborted") == before + 12


def test_Fault_C4_CancelOnTheStepThatEnds(server):
    before = server.metric("longspan_requests_finished_total")
    for _ in range(40):
        job = server.start([3], 5)
        job.wait_tokens(5)
        job.call.cancel()
        answer = job.result()
        assert answer.code in (CODE.OK, CODE.CANCELLED)
    wait_until(
        lambda: server.metric("longspan_requests_finished_total") == before + 40, "one end for each"
    )


def test_Fault_C5_PeerVanishesWithoutFin(launch, toy):
    """Nothing is forwarded any more and nothing closed: the ping that comes next gets no answer, and what the peer wanted
    ends within --keepalive-time + --keepalive-timeout, and a step or two (20 ms each). That is a time: a quarter of a
    second is allowed for steps and timers, and three times what this machine was late meanwhile, measured beside it."""
    limit = 1 + 1 + 0.25
    with launch(toy, step_delay_ms=20, max_num_seqs=2, kv_blocks=256, keepalive_time=1, keepalive_timeout=1) as server:
        server.remember_canary()
        proxy = FreezingProxy(server.address)
        channel = grpc.insecure_channel(proxy.address)
        stub = inference_pb2_grpc.InferenceStub(channel)
        present = server.start([1], 250)  # 5 s of work: the streams are open when the keepalive fails
        present.wait_tokens(1)
        runs, waits = (stub.Generate(request([i], 250)) for i in (2, 3))
        next(runs)
        wait_until(lambda: server.load().waiting_requests == 1, "one runs, one waits")
        aborted = server.metric("longspan_requests_finished_total", reason="aborted")
        late = Lateness(server)
        proxy.frozen.set()
        start = time.monotonic()
        wait_until(lambda: server.load().waiting_requests == 0 and server.load().running_requests == 1, "both are gone")
        elapsed = time.monotonic() - start
        assert present.is_alive(), "nobody else is touched"
        noise = late.worst()
        assert elapsed <= limit + 3 * noise, (elapsed, noise)
        assert server.metric("longspan_requests_finished_total", reason="aborted") == aborted + 2, "each counts once"
        assert len(present.result().ids()) == 250
        proxy.close()
        channel.close()
        del runs, waits
        server.check_health()


def test_Fault_C9_FullFileTable(launch, toy):
    with launch(toy, launcher=("prlimit", "--nofile=64")) as server:
        server.remember_canary()
        stream = server.start([1], 200)
        host, port = server.address.rsplit(":", 1)
        flood = []
        for _ in range(200):
            s = socket.socket()
            s.settimeout(5)
            s.connect((host, int(port)))
            flood.append(s)
        assert stream.result().code == CODE.OK, "streams that are open go on"
        for s in flood:
            s.close()
        fresh = server.new_channel()
        stub = inference_pb2_grpc.InferenceStub(fresh)
        answer = drain(stub.Generate(request([1, 2], 4), timeout=30, wait_for_ready=True))
        assert answer.code == CODE.OK
        fresh.close()
        server.check_health()


@pytest.mark.parametrize(
    "metadata, codes",
    [
        ([("a", "x" * 9 * 1024)], [CODE.OK]),
        ([("a", "x" * 17 * 1024)], [CODE.RESOURCE_EXHAUSTED]),
        ([(f"k{i}", "v") for i in range(10_000)], [CODE.RESOURCE_EXHAUSTED]),
        ([("b-bin", b"\x00" * 20_000)], [CODE.RESOURCE_EXHAUSTED]),
    ],
)
def test_Fault_C12_HugeMetadata(server, metadata, codes):
    neighbour = server.start([1], 60)
    neighbour.wait_tokens(1)
    assert server.generate([2], 3, call_options={"metadata": metadata}).code in codes
    assert neighbour.result().code == CODE.OK
    assert "xxxxxxxx" not in server.log_text()


def test_Fault_C13_MessageSizes(server):
    # 2 bytes an id; protobuf packs them.
    for ids in (2 * 1024 * 1024, 2_200_000, 1_000_001):
        answer = server.generate([300] * ids, 1)
        assert answer.code == CODE.INVALID_ARGUMENT, answer.message
        assert "token" in answer.message
    limit = 64 * 1024 * 1024
    channel = server.new_channel(("grpc.max_send_message_length", -1))
    fits = inference_pb2.GenerateRequest(cache_salt=b"s" * (limit - 100))
    over = inference_pb2.GenerateRequest(cache_salt=b"s" * (limit + 1))
    assert raw_generate(channel, fits.SerializeToString()) == CODE.INVALID_ARGUMENT
    assert raw_generate(channel, over.SerializeToString()) == CODE.RESOURCE_EXHAUSTED
    channel.close()


def test_Fault_C14_CompressedBomb(launch, toy):
    """Messages that are small on the wire and large behind gzip are refused before they are unpacked."""
    bomb = inference_pb2.GenerateRequest(cache_salt=bytes(256 * 1024 * 1024)).SerializeToString()
    with launch(toy) as server:
        server.remember_canary()
        before, peak = server.rss(), server.peak_rss()
        channel = server.new_channel(("grpc.max_send_message_length", -1))
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            call = channel.unary_stream(GENERATE)(bomb, timeout=120, compression=compression)
            assert drain(call).code == CODE.UNIMPLEMENTED
        if not server.sanitizer:
            assert server.peak_rss() - peak < 32 * 1024 * 1024, "nothing is unpacked"
            wait_until(lambda: server.rss() - before < 32 * 1024 * 1024, "memory comes back")
        channel.close()
        server.check_health()
    skip_under(server.sanitizer, "resident memory")


def test_Fault_C15_MutatedMessages(server):
    rng = random.Random(15)
    good = request("hi", 2, stop__strings=["x"], cache_salt=b"s", request_id="r").SerializeToString()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 5)):
            where = rng.randrange(len(data))
            if rng.random() < 0.3:
                del data[where]
            else:
                data[where] = rng.randrange(256)
        code = raw_generate(server.channel, bytes(data))
        assert code in (CODE.OK, CODE.INVALID_ARGUMENT, CODE.NOT_FOUND), code
    assert raw_generate(server.channel, b"\x0b" * 5000) == CODE.INVALID_ARGUMENT, "deep nesting"
    assert raw_generate(server.channel, b"") == CODE.INVALID_ARGUMENT, "no input"
    unknown = request([7], 2).SerializeToString() + b"\xa2\x06\x03new"
    assert raw_generate(server.channel, unknown) == CODE.OK
    wrong_enum = request([7], 2)
    wrong_enum.prefix_cache = 9
    assert server.generate(wrong_enum).fields() == ["prefix_cache"]


def test_Fault_C16_GarbageOnThePort(server):
    rng = random.Random(16)
    host, port = server.address.rsplit(":", 1)
    neighbour = server.start([1], 200)
    lines, start = len(server.log_text().splitlines()), time.monotonic()
    payloads = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
    ]
    payloads += [rng.randbytes(rng.randrange(1, 300)) for _ in range(1000)]
    for payload in payloads:
        with socket.create_connection((host, int(port))) as s:
            s.sendall(payload)
    assert neighbour.result().code == CODE.OK
    assert len(server.log_text().splitlines()) - lines <= 1 + (time.monotonic() - start) / 10, "one line in ten seconds"
