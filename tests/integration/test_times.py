"""Rows of the fault matrix and of the cases that name a time: S2, S8, P1, P2, case 54. All are marked slow: they run in
scripts/test --all, on a machine that has nothing else to do; everything else of these rows is asserted without time."""

import signal
import socket
import threading
import time

import pytest
import write_tiny_model
from grpc_health_v1 import NOT_SERVING
from harness import CODE, Job, sanitizer_of, skip_under, wait_until
from test_capacity import STORM

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def without_sanitizer(launch):
    skip_under(sanitizer_of(launch.binary), "time")


def percentile(values, share):
    values = sorted(values)
    return values[min(int(len(values) * share), len(values) - 1)]


def test_Fault_S2_TheStormTakesAtMostThreeTimesSerial(launch, toy):
    with launch(toy) as server:
        server.generate(STORM[0])
        start = time.monotonic()
        for message in STORM:
            server.generate(message)
        serial = time.monotonic() - start
    with launch(toy, start_paused=True) as server:
        jobs = [Job(server, message) for message in STORM]
        wait_until(lambda: server.load().waiting_requests == len(STORM), "all wait")
        start = time.monotonic()
        server.resume()
        for job in jobs:
            assert job.result().code == CODE.OK
        together = time.monotonic() - start
    print(f"32 requests: {serial:.3f} s one after the other, {together:.3f} s all at once")
    assert together <= 3 * serial


class Scraper(threading.Thread):
    """Scrapes so often a second until told to stop."""

    def __init__(self, server, per_second):
        super().__init__(daemon=True)
        self.server, self.pause, self.seconds, self.over = server, 1 / per_second, [], threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(self.pause):
            start = time.perf_counter()
            self.server.metrics()
            self.seconds.append(time.perf_counter() - start)


def gaps(server, tokens):
    stamps = []
    answer = server.generate([1, 2, 3], tokens, on_response=lambda _: stamps.append(time.perf_counter()))
    assert len(answer.ids()) == tokens
    return [b - a for a, b in zip(stamps[2:], stamps[3:])]


def test_Fault_S8_AHundredScrapesASecond(launch, toy):
    """20 scrapers, 100 scrapes a second in all, and one that never reads: scrape p99 below 50 ms. The growth of the
    token p99 is printed; on two cores client and scrapers share them with the server."""
    with launch(toy, step_delay_ms=10, kv_blocks=256) as server:
        host, port = server.metrics_address.rsplit(":", 1)
        gaps(server, 50)
        quiet = percentile(gaps(server, 240) + gaps(server, 240), 0.99)
        hung = socket.create_connection((host, int(port)))
        hung.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        scrapers = [Scraper(server, 5) for _ in range(20)]
        loaded = percentile(gaps(server, 240) + gaps(server, 240), 0.99)
        for scraper in scrapers:
            scraper.over.set()
        for scraper in scrapers:
            scraper.join(60)
        seconds = [s for scraper in scrapers for s in scraper.seconds]
        hung.close()
        print(f"{len(seconds)} scrapes, p99 {percentile(seconds, 0.99) * 1e3:.1f} ms; token p99 {quiet * 1e3:.2f} ms "
              f"without, {loaded * 1e3:.2f} ms with")
        assert len(seconds) > 200 and percentile(seconds, 0.99) < 0.05


@pytest.mark.parametrize("timeout, tokens", [(0, 200), (0.3, 200), (2, 200), (10, 50), (30, 50)])
def test_Case_054_Fault_P1_TimesOfADrain(launch, toy, timeout, tokens):
    """8 streams of 20 ms a token, SIGTERM at token 10: NOT_SERVING within 100 ms, a call after 100 ms is UNAVAILABLE,
    the end within 2 s of the last token or of the timeout."""
    with launch(toy, step_delay_ms=20, drain_timeout=timeout, kv_blocks=512) as server:
        other = server.new_channel()
        jobs = [server.start([i + 1], tokens) for i in range(8)]
        for job in jobs:
            job.wait_tokens(10)
        server.health()
        term = time.monotonic()
        server.signal(signal.SIGTERM)
        if timeout >= 2:
            wait_until(lambda: server.health() == NOT_SERVING, "NOT_SERVING")
            assert time.monotonic() - term < 0.1
            time.sleep(max(0.0, 0.1 - (time.monotonic() - term)))
            assert server.generate([1], 2).code == CODE.UNAVAILABLE
        answers = [job.result() for job in jobs]
        last = time.monotonic()
        assert server.wait_exit() == 0
        end = time.monotonic()
        other.close()
        print(f"drain {timeout} s: last answer after {last - term:.2f} s, exit after {end - term:.2f} s")
        if timeout >= 10:
            assert all(a.code == CODE.OK and len(a.ids()) == tokens for a in answers)
            assert end - last < 2
        else:
            assert all(a.code == CODE.UNAVAILABLE and len(a.ids()) >= 10 for a in answers)
            assert timeout - 0.05 <= last - term and end - term < timeout + 2


def big_dummy(folder):
    """A model whose weights take a second or so to make."""
    config = write_tiny_model.llama_config(hidden_size=1024, intermediate_size=4096, num_hidden_layers=16,
                                           num_attention_heads=16, num_key_value_heads=16, head_dim=64,
                                           torch_dtype="bfloat16")
    write_tiny_model.write_json(folder + "/config.json", config)
    return folder


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGHUP, signal.SIGTERM],
                                     [signal.SIGTERM, signal.SIGTERM]])
def test_Fault_P2_ASignalWhileLoadingEndsWithinTwoSeconds(launch, tmp_path, signals):
    server = launch(big_dummy(str(tmp_path)), load_format="dummy", wait_ready=False)
    try:
        wait_until(lambda: "loading" in server.log_text(), "it loads")
        start = time.monotonic()
        for number in signals:
            server.signal(number)
        assert server.wait_exit() == 0
        assert time.monotonic() - start < 2
        assert "stopped while loading" in server.log_text()
    finally:
        server.stop()
