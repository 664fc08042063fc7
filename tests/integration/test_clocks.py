"""Fault S6: the wall clock jumps by an hour, forward and back, while requests run. Deadlines, timings and gRPC's own
timers follow monotonic time; only the stamps of log lines follow the wall clock."""

import datetime
import os
import struct
import subprocess
import time

import grpc
import pytest
from harness import CODE, FreezingProxy, request, sanitizer_of, wait_until
from http2 import Connection
from longspan.v1 import inference_pb2, inference_pb2_grpc

GENERATE = b"/longspan.v1.Inference/Generate"
HOUR = 3600
STEP_MS = 20


class WallClock:
    """Of servers that are started with its environment: the system's, and so many seconds more."""

    def __init__(self, folder):
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shifted_clock.c")
        library, self.path = str(folder / "shifted_clock.so"), str(folder / "shift")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": library, "SHIFTED_CLOCK_FILE": self.path}
        with open(self.path, "wb") as file:
            file.write(struct.pack("<q", 0))

    def jump_to(self, seconds):
        with open(self.path, "r+b", buffering=0) as file:
            file.write(struct.pack("<q", seconds))


@pytest.fixture(scope="module")
def wall_clock(launch, tmp_path_factory):
    if sanitizer_of(launch.binary):
        pytest.skip(f"{sanitizer_of(launch.binary)} has clocks and waits of its own; nothing can be put before it")
    return WallClock(tmp_path_factory.mktemp("clock"))


def ended_by_deadline(server):
    return server.metric("longspan_requests_finished_total", reason="deadline")


def log_stamp(server, request_id):
    """Seconds from the system's clock to the stamp of the line which says that this request ended."""
    def line():
        return next((x for x in server.log_text().splitlines() if f"request {request_id} ended" in x), None)

    stamp = datetime.datetime.fromisoformat(wait_until(line, "the end is logged").split()[0].replace("Z", "+00:00"))
    return (stamp - datetime.datetime.now(datetime.timezone.utc)).total_seconds()


def check_histograms(server, seconds):
    """No sample is negative or longer than this server has lived."""
    metrics = server.metrics()
    names = {name.partition("{")[0] for name in metrics if "_seconds_bucket{" in name}
    assert len(names) >= 8, names
    for name in names:
        base = name[: -len("_bucket")]
        series = [s for s in metrics if s.startswith(base + "_count")]
        for count in series:
            total = metrics[count.replace("_count", "_sum", 1)]
            assert 0 <= total <= metrics[count] * seconds, (count, total)
            labels = count.partition("{")[2].rstrip("}")
            bounds = [b for b in metrics if b.startswith(name + "{") and labels in b and 'le="+Inf"' not in b]
            below = max(metrics[b] for b in bounds if float(b.partition('le="')[2].partition('"')[0]) < HOUR / 2)
            assert below == metrics[count], (count, "every sample is below half an hour")


def test_Fault_S6_TheWallClockJumps(launch, toy, wall_clock):
    wall_clock.jump_to(0)
    born = time.monotonic()
    with launch(toy, max_num_seqs=2, kv_blocks=256, step_delay_ms=STEP_MS, log_level="debug", keepalive_time=1,
                keepalive_timeout=1, environment=wall_clock.environment) as server:
        server.remember_canary()
        steady = Connection(server.address)  # never cancels: what ends there was ended by the server
        for round_, shift in enumerate((HOUR, -HOUR)):
            before = ended_by_deadline(server)
            # Two slots: one request that has time, one whose deadline passes while it runs, one that expires in the queue.
            doomed = steady.call(GENERATE, request([2], 250).SerializeToString(), [(b"grpc-timeout", b"1S")])
            wait_until(lambda: server.load().running_requests == 1, "it runs")
            patient = server.start([1], 120, call_options={"timeout": 60}, request_id=f"patient-{round_}")
            patient.wait_tokens(1)
            queued = steady.call(GENERATE, request([3], 4).SerializeToString(), [(b"grpc-timeout", b"1S")])
            wait_until(lambda: server.load().waiting_requests == 1, "one waits")
            wall_clock.jump_to(shift)
            seen = len(patient.answer.ids())
            patient.wait_tokens(seen + 5)
            assert ended_by_deadline(server) == before, "no deadline passes by the jump"
            wait_until(lambda: ended_by_deadline(server) == before + 2, "both deadlines pass by monotonic time")
            # 120 steps take 2.4 s at least, the deadlines were 1 s.
            assert len(patient.answer.ids()) < 120 and patient.is_alive()
            wait_until(lambda: {doomed, queued} <= steady.ended | steady.reset, "and their streams end")
            answer = patient.result()
            assert (answer.code, len(answer.ids())) == (CODE.OK, 120)
            for field, value in answer.finished().timings.ListFields():
                if "seconds" in field.name:
                    assert 0 <= value < time.monotonic() - born, field.name
            assert log_stamp(server, f"patient-{round_}") == pytest.approx(shift, abs=60), "the clock did jump"
            # Deadlines that begin after the jump.
            assert len(server.generate([4], 5, call_options={"timeout": 30}).ids()) == 5
            late = steady.call(GENERATE, request([5], 250).SerializeToString(), [(b"grpc-timeout", b"300m")])
            wait_until(lambda: late in steady.ended | steady.reset, "it ends")
            assert ended_by_deadline(server) == before + 3
            check_vanished_peer(server)
            info = server.inference.GetServerInfo(inference_pb2.GetServerInfoRequest())
            assert 0 <= info.uptime_seconds <= time.monotonic() - born
            check_histograms(server, time.monotonic() - born)
        steady.close()
        server.check_health()


def check_vanished_peer(server):
    """gRPC's keepalive goes on by monotonic time too: a peer that vanished is found while its request still runs."""
    proxy = FreezingProxy(server.address)
    channel = grpc.insecure_channel(proxy.address)
    before = server.metric("longspan_requests_finished_total", reason="aborted")
    call = inference_pb2_grpc.InferenceStub(channel).Generate(request([6], 250))
    next(call)
    proxy.frozen.set()
    wait_until(lambda: server.metric("longspan_requests_finished_total", reason="aborted") == before + 1,
               "the keepalive finds out")
    proxy.close()
    channel.close()
    del call
