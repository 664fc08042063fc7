"""A device that fails or hangs under a running server, injected by --fault. Faults D3, D4."""

import signal
import threading

import grpc
import pytest
from grpc_health_v1 import NOT_SERVING, SERVING, HealthCheckRequest, Watch
from harness import CODE, wait_until


@pytest.fixture(scope="module", autouse=True)
def compiled_in(launch):
    server = launch("nowhere", wait_ready=False, fault="step-error@1")
    code = server.wait_exit()
    text = server.log_text()
    server.stop()
    if "no fault injection" in text:
        assert code == 2
        pytest.skip("the server was built without LONGSPAN_FAULTS")


class HealthWatch(threading.Thread):
    """All that a health watcher was told, until its stream ended."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.statuses = []
        self.stream = Watch(server.channel, HealthCheckRequest())
        self.start()
        wait_until(lambda: self.statuses == [SERVING], "SERVING")

    def run(self):
        try:
            for status in self.stream:
                self.statuses.append(status)
        except grpc.RpcError:
            pass


def lost_answers(server, jobs):
    answers = [job.result() for job in jobs]
    assert all(a.code == CODE.UNAVAILABLE for a in answers), [(a.code, a.message) for a in answers]
    assert all(a.finished() is None for a in answers)
    assert server.wait_exit() == 1, server.log_text()
    assert "injected device error" in server.log_text()
    return answers


def test_Fault_D3_DeviceErrorEndsRequestsAndTheProcess(launch, toy):
    with launch(toy, step_delay_ms=20, fault="step-error@40", max_num_seqs=2) as server:
        watch = HealthWatch(server)
        jobs = [server.start([i + 1], 100) for i in range(2)]
        for job in jobs:
            job.wait_tokens(5)
        jobs.append(server.start([9], 100))  # waits for a slot until the device is gone
        answers = lost_answers(server, jobs)
        assert all(len(a.ids()) >= 5 for a in answers[:2]) and answers[2].ids() == []
        watch.join(60)
        assert watch.statuses[:2] == [SERVING, NOT_SERVING]


def test_Fault_D3_DeviceErrorWhileDraining(launch, toy):
    with launch(toy, step_delay_ms=20, fault="step-error@40", drain_timeout=60) as server:
        jobs = [server.start([i + 1], 100) for i in range(2)]
        for job in jobs:
            job.wait_tokens(5)
        server.signal(signal.SIGTERM)
        wait_until(lambda: "draining" in server.log_text(), "the drain")
        lost_answers(server, jobs)


@pytest.mark.parametrize("draining", [False, True])
def test_Fault_D4_AStuckStepEndsTheProcess(launch, toy, draining):
    with launch(toy, step_delay_ms=20, fault="step-stuck@60", step_timeout=1) as server:
        jobs = [server.start([i + 1], 100) for i in range(2)]
        for job in jobs:
            job.wait_tokens(5)
        if draining:
            server.signal(signal.SIGTERM)
        answers = [job.result() for job in jobs]
        assert all(a.code == CODE.UNAVAILABLE and len(a.ids()) >= 5 for a in answers)
        assert server.wait_exit() == 1, server.log_text()
        assert "the engine is stuck" in server.log_text()


@pytest.mark.parametrize("fault", ["nonsense", "step-error@", "step-error@0", "step-error@-1", "step-error@1x", "step-stuck@-2"])
def test_Fault_D3_UnknownFaultsAreRefused(launch, toy, fault):
    server = launch(toy, wait_ready=False, fault=fault)
    try:
        assert server.wait_exit() == 2, server.log_text()
        assert f'--fault: "{fault}"' in server.log_text()
    finally:
        server.stop()
