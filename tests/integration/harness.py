"""A longspan-server process under test: start, talk, look inside, stop.

Everything that a test needs of the outside: the ready file, gRPC stubs, metrics, /proc, and the health triple
that every fault test ends with. Tests assert counts and states; the only waits are for a state to come.
"""

import functools
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from longspan.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from grpc_health_v1 import Health, HealthCheckRequest, SERVING

PATIENCE = 60.0  # seconds until a state that never comes is a failure
CANARY_PROMPT = list(range(1, 21))
CODE = grpc.StatusCode

# The small server of the fault matrix: 64 blocks of 4 tokens, at most 8 sequences, chunks of 16.
SMALL = {
    "block-size": 4,
    "kv-blocks": 64,
    "max-num-seqs": 8,
    "max-num-batched-tokens": 16,
    "threads": 1,
}


def wait_until(condition, what, patience=PATIENCE):
    """Polls until condition() is true; returns its value."""
    end = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.005)


@functools.lru_cache
def sanitizer_of(binary):
    """The sanitizer that the binary was built with, or None."""
    with open(binary, "rb") as file:
        code = file.read()
    symbols = {b"__asan_init": "AddressSanitizer", b"__tsan_init": "ThreadSanitizer"}
    return next((name for symbol, name in symbols.items() if symbol in code), None)


def skip_under(sanitizer, what):
    """Ends the test as skipped when there is a sanitizer; what came before it in the test has been asserted."""
    if sanitizer:
        pytest.skip(f"{what} means nothing under {sanitizer}; the rest of the test held")


def request(prompt, max_tokens=8, **fields):
    """A greedy GenerateRequest; prompt is text or ids; dotted fields as in stop__strings=[...]."""
    out = inference_pb2.GenerateRequest()
    if isinstance(prompt, str):
        out.text = prompt
    elif prompt is not None:
        out.token_ids.ids.extend(prompt)
    out.sampling.temperature = 0.0
    if max_tokens is not None:
        out.stop.max_tokens = max_tokens
    for name, value in fields.items():
        target, *path = out, *name.split("__")
        for part in path[:-1]:
            target = getattr(target, part)
        if isinstance(value, list):
            getattr(target, path[-1]).extend(value)
        elif isinstance(value, dict):
            for key, item in value.items():
                getattr(target, path[-1])[key] = item
        else:
            setattr(target, path[-1], value)
    return out


def is_repeated(field):
    """Of a field descriptor: the newer protobuf has no label, the older no is_repeated."""
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


class Answer:
    """What one Generate call said, in order."""

    def __init__(self):
        self.responses = []
        self.code = None
        self.message = ""
        self.details = b""

    def add(self, response):
        self.responses.append(response)

    def ids(self, index=0):
        return [
            i
            for r in self.responses
            if r.HasField("chunk") and r.chunk.index == index
            for i in r.chunk.token_ids
        ]

    def text(self, index=0):
        return "".join(
            r.chunk.text for r in self.responses if r.HasField("chunk") and r.chunk.index == index
        )

    def logprobs(self, index=0):
        return [
            entry
            for r in self.responses
            if r.HasField("chunk") and r.chunk.index == index
            for entry in r.chunk.logprobs
        ]

    def prompt_logprobs(self):
        out = []
        for r in self.responses:
            if r.HasField("prompt_logprobs"):
                assert r.prompt_logprobs.start == len(out)
                out.extend(r.prompt_logprobs.entries)
        return out

    @property
    def started(self):
        return next((r.started for r in self.responses if r.HasField("started")), None)

    @property
    def queued(self):
        return next((r.queued for r in self.responses if r.HasField("queued")), None)

    def finished(self, index=0):
        found = [
            r.finished
            for r in self.responses
            if r.HasField("finished") and r.finished.index == index
        ]
        assert len(found) <= 1, "a sequence ends once"
        return found[0] if found else None

    def reason(self, index=0):
        end = self.finished(index)
        return inference_pb2.FinishReason.Name(end.reason)[len("FINISH_REASON_") :] if end else None

    def fields(self):
        """The fields that google.rpc.BadRequest names."""
        return [v.field for v in self._detail(error_details_pb2.BadRequest()).field_violations]

    def retry_seconds(self):
        return self._detail(error_details_pb2.RetryInfo()).retry_delay.ToNanoseconds() / 1e9

    def _detail(self, message):
        status = status_pb2.Status.FromString(self.details)
        for detail in status.details:
            if detail.Unpack(message):
                break
        return message


def drain(call, answer=None, on_response=None):
    """Reads a call to its end."""
    answer = answer or Answer()
    try:
        for response in call:
            answer.add(response)
            if on_response:
                on_response(answer)
    except grpc.RpcError:
        pass
    answer.code = call.code()
    answer.message = call.details() or ""
    for key, value in call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            answer.details = value
    return answer


class Job(threading.Thread):
    """A Generate call on a thread of its own."""

    def __init__(self, server, message, **call_options):
        super().__init__(daemon=True)
        self.answer = Answer()
        self.call = server.inference.Generate(message, **call_options)
        self.start()

    def run(self):
        drain(self.call, self.answer)

    def result(self):
        self.join(PATIENCE)
        assert not self.is_alive(), "the call never ended"
        return self.answer

    def wait_tokens(self, count):
        wait_until(lambda: len(self.answer.ids()) >= count or not self.is_alive(), f"{count} tokens")

    def wait_started(self):
        wait_until(lambda: self.answer.started or not self.is_alive(), "the first step")


class Server:
    """One process. Use as a context manager; flags are given without dashes, True and False are switches."""

    def __init__(self, binary, model, wait_ready=True, environment=None, launcher=(), **flags):
        self.folder = tempfile.TemporaryDirectory(prefix="longspan-it-")
        self.ready_file = os.path.join(self.folder.name, "ready")
        self.log_path = os.path.join(self.folder.name, "log")
        values = {
            "model": model,
            "listen": "127.0.0.1:0",
            "admin-listen": "unix:" + os.path.join(self.folder.name, "admin"),
            "metrics-listen": "127.0.0.1:0",
            "ready-file": self.ready_file,
            "served-model-name": "toy",
            **SMALL,
            **{name.replace("_", "-"): value for name, value in flags.items()},
        }
        command = [*launcher, binary]
        for name, value in values.items():
            if value is True or value is False:
                command.append(f"--{'' if value else 'no-'}{name}")
            elif value is not None:
                command += [f"--{name}", str(value)]
        self.sanitizer = sanitizer_of(binary)
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        self.channel = None
        self.canary = None
        if wait_ready:
            self.wait_ready()

    def wait_ready(self):
        wait_until(lambda: os.path.exists(self.ready_file) or self.process.poll() is not None, "ready")
        assert self.process.poll() is None, self.log_text()
        with open(self.ready_file, encoding="utf-8") as file:
            places = dict(line.split(" ", 1) for line in file.read().splitlines())
        self.address, self.admin_address = places["listen"], places["admin"]
        self.metrics_address = places["metrics"]
        self.connect()

    def connect(self):
        # A channel of its own: channels to one address otherwise share a connection, and with it its buffers.
        self.channel = self.new_channel()
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        self.admin_channel = grpc.insecure_channel(self.admin_address)
        self.admin = admin_pb2_grpc.AdminStub(self.admin_channel)

    def new_channel(self, *options):
        return grpc.insecure_channel(
            self.address,
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_metadata_size", 1 << 20), *options],
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """SIGKILL for what a test did not end itself. Sanitizers report at the end of a process: there it is SIGTERM
        until it ends, and a report fails the test."""
        if self.channel:
            self.channel.close()
            self.admin_channel.close()
            self.channel = None
        if self.sanitizer:
            self.end_gently()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()
        report = self.sanitizer_report()
        self.folder.cleanup()
        assert not report, report

    def end_gently(self):
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < end:
            self.process.terminate()  # the second one stops a drain
            try:
                self.process.wait(0.2)
            except subprocess.TimeoutExpired:
                pass

    def sanitizer_report(self):
        """The log from a sanitizer's first line on; empty without one."""
        text = self.log_text()
        found = re.search(r"^.*(?:ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:)", text, re.MULTILINE)
        return text[found.start() :] if found else ""

    def signal(self, number):
        self.process.send_signal(number)

    def resume(self):
        """After --start-paused."""
        self.signal(signal.SIGUSR1)

    def wait_exit(self, patience=PATIENCE):
        return self.process.wait(patience)

    def log_text(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    # ---- Requests

    def generate(self, prompt, max_tokens=8, call_options=None, on_response=None, **fields):
        message = prompt
        if not isinstance(prompt, inference_pb2.GenerateRequest):
            message = request(prompt, max_tokens, **fields)
        call = self.inference.Generate(message, **{"timeout": PATIENCE, **(call_options or {})})
        return drain(call, on_response=on_response)

    def start(self, prompt, max_tokens=8, call_options=None, **fields):
        message = prompt
        if not isinstance(prompt, inference_pb2.GenerateRequest):
            message = request(prompt, max_tokens, **fields)
        return Job(self, message, **(call_options or {}))

    def alone(self, prompt, max_tokens=8, **fields):
        """The same request without the prefix cache; the caller sees to it that nothing else runs."""
        return self.generate(prompt, max_tokens, prefix_cache=inference_pb2.PREFIX_CACHE_POLICY_BYPASS, **fields)

    def start_together(self, messages):
        """After --start-paused: all of them wait before the first step runs. Once per server."""
        jobs = [Job(self, message) for message in messages]
        count = sum(message.n if message.HasField("n") else 1 for message in messages)
        wait_until(lambda: self.load().waiting_requests == count, "all wait")
        self.resume()
        return jobs

    # ---- Looking inside

    def load(self):
        return self.inference.GetLoad(inference_pb2.GetLoadRequest(), timeout=PATIENCE)

    def health(self, service=""):
        return Health(self.channel, HealthCheckRequest(service=service), timeout=PATIENCE)

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.metrics_address}/metrics", timeout=PATIENCE) as page:
            text = page.read().decode()
        out = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                out[name] = float(value)
        return out

    def metric(self, name, **labels):
        """Sum over all series of this name whose labels include the given ones."""
        total, found = 0.0, False
        for series, value in self.metrics().items():
            base, _, rest = series.partition("{")
            if base == name and all(f'{k}="{v}"' in rest for k, v in labels.items()):
                total, found = total + value, True
        assert found or labels, f"no metric {name}"
        return total

    def rss(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            text = file.read()
        return sum(int(v) * 1024 for v in re.findall(r"(?:RssAnon|VmSwap):\s+(\d+)", text))

    def peak_rss(self):
        """The most that was ever resident, shared and file pages included."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return int(re.search(r"VmHWM:\s+(\d+)", file.read()).group(1)) * 1024

    def forget_peak(self):
        """peak_rss() begins anew."""
        with open(f"/proc/{self.process.pid}/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")

    def is_idle(self):
        load = self.load()
        return load.running_requests == load.waiting_requests == load.used_blocks == 0

    def remember_canary(self):
        self.canary = self.alone(CANARY_PROMPT, 8).ids()
        assert len(self.canary) == 8

    def check_health(self):
        """The health triple."""
        wait_until(self.is_idle, "idle: nothing runs, waits or holds blocks")
        assert self.alone(CANARY_PROMPT, 8).ids() == self.canary, "the canary"
        wait_until(self.is_idle, "idle after the canary")
        assert self.metric("longspan_kv_blocks_leaked") == 0
        assert self.health() == SERVING
        assert self.process.poll() is None
        assert not self.sanitizer_report(), self.sanitizer_report()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Lateness(threading.Thread):
    """The control beside a bound in time: how late this machine is while something else is measured. It sleeps 10 ms and
    asks the server for its load, over and over; worst() is the longest that one such turn took, less the sleep."""

    SLEEP = 0.01

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.turns, self.over = server, [], threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            start = time.monotonic()
            time.sleep(self.SLEEP)
            self.server.load()
            self.turns.append(time.monotonic() - start - self.SLEEP)

    def worst(self):
        self.over.set()
        self.join(PATIENCE)
        assert self.turns
        return max(self.turns)


class FreezingProxy(threading.Thread):
    """A TCP proxy that can stop forwarding without closing anything: a peer that vanished."""

    def __init__(self, address):
        super().__init__(daemon=True)
        host, port = address.rsplit(":", 1)
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.frozen = threading.Event()
        self.sockets = []
        self.start()

    def run(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            self.sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    def pump(self, source, sink):
        try:
            while data := source.recv(65536):
                if self.frozen.is_set():
                    continue  # swallowed
                sink.sendall(data)
        except OSError:
            pass

    def close(self):
        self.listener.close()
        for s in self.sockets:
            s.close()
