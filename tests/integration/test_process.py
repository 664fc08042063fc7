"""The process: start, refusal to start, signals, addresses. Faults D1, D6, D9, P1 to P3, P5, T5, T6, U4,
case 54."""

import json
import os
import random
import signal
import subprocess

import pytest
from harness import CODE, SERVING, drain, free_port, request, sanitizer_of, skip_under, wait_until
from grpc_health_v1 import NOT_SERVING
from longspan.v1 import admin_pb2, inference_pb2, inference_pb2_grpc


def refused(launch, model, code, *words, **flags):
    """The server ends with this exit code and one line that has these words."""
    server = launch(model, wait_ready=False, **flags)
    try:
        assert server.wait_exit() == code, server.log_text()
        lines = [x for x in server.log_text().splitlines() if x.startswith("longspan-server:")]
        assert len(lines) == 1, server.log_text()
        for word in words:
            assert word in lines[0], lines[0]
        return lines[0]
    finally:
        server.stop()


def test_Fault_D1_MemoryTooSmall(launch, toy):
    refused(launch, toy, 3, "blocks fit", kv_blocks=1_000_000_000)
    skip_under(sanitizer_of(launch.binary), "a limit of address space")
    refused(launch, toy, 3, kv_blocks=8_000_000, launcher=("prlimit", "--as=1500000000"))


def test_Fault_D6_BrokenWeights(launch, models, tmp_path):
    import write_tiny_model

    folder = str(tmp_path / "model")
    write_tiny_model.write_model("toy_t", folder)
    weights = os.path.join(folder, "model.safetensors")
    good = open(weights, "rb").read()
    config_path = os.path.join(folder, "config.json")
    config = json.load(open(config_path))
    rng = random.Random(6)
    broken = [b"", good[:7], good[:-1], good + b"x", b"\xff" * 8 + good[8:], good[: len(good) // 2]]
    flipped = bytearray(good[:400])
    flipped[rng.randrange(8, 400)] = 0xFF
    broken.append(bytes(flipped) + good[400:])
    for data in broken:
        with open(weights, "wb") as file:
            file.write(data)
        refused(launch, folder, 4, "model.safetensors")
    with open(weights, "wb") as file:
        file.write(good)
    for change in ({"num_hidden_layers": 3}, {"hidden_size": 128}, {"model_type": "mystery",
                   "architectures": ["MysteryForCausalLM"]}, {"vocab_size": 511}):
        json.dump({**config, **change}, open(config_path, "w"))
        refused(launch, folder, 4)
    os.remove(config_path)
    refused(launch, folder, 4, "config.json")
    refused(launch, str(tmp_path / "nowhere"), 4, "nowhere")


def test_Fault_D9_LogsThatCannotBeWritten(launch, toy):
    """A full disk for logs, and a log pipe that nobody reads any more."""
    with launch(toy) as server:  # only to borrow a folder and its flags
        command = list(server.process.args)
    for where in ("full", "pipe"):
        ready = command[command.index("--ready-file") + 1] + "-" + where
        os.makedirs(os.path.dirname(ready), exist_ok=True)
        args = [ready if a == command[command.index("--ready-file") + 1] else a for a in command]
        args[args.index("--admin-listen") + 1] = "off"
        if where == "full":
            process = subprocess.Popen(args, stdout=open("/dev/full", "w"), stderr=open("/dev/full", "w"))
        else:
            read_end, write_end = os.pipe()
            process = subprocess.Popen(args, stdout=write_end, stderr=write_end)
            os.close(write_end)
            os.close(read_end)
        try:
            wait_until(lambda: os.path.exists(ready) or process.poll() is not None, where)
            assert process.poll() is None, where
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


def streams(server, count=8, tokens=50):
    jobs = [server.start([i + 1], tokens) for i in range(count)]
    for job in jobs:
        job.wait_tokens(10)
    return jobs


def test_Case_054_DrainLongEnough(launch, toy):
    with launch(toy, step_delay_ms=20, drain_timeout=30, kv_blocks=256) as server:
        jobs = streams(server)
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.health() == NOT_SERVING, "NOT_SERVING")
        assert server.generate([1], 2).code == CODE.UNAVAILABLE
        answers = [job.result() for job in jobs]
        assert all(a.code == CODE.OK and len(a.ids()) == 50 for a in answers)
        assert server.wait_exit() == 0


@pytest.mark.parametrize("timeout", [0, 0.3])
def test_Case_054_DrainTooShort(launch, toy, timeout):
    with launch(toy, step_delay_ms=20, drain_timeout=timeout, kv_blocks=512) as server:
        jobs = streams(server, tokens=200)
        server.signal(signal.SIGTERM)
        answers = [job.result() for job in jobs]
        assert all(a.code == CODE.UNAVAILABLE and len(a.ids()) >= 10 for a in answers)
        assert server.wait_exit() == 0


def test_Case_054_AFinishedAnswerIsNotCutWhileItsReaderIsSlow(launch, toy):
    """The engine is done, the client is not: the drain waits for the client, up to its timeout."""
    with launch(toy, drain_timeout=3600, kv_blocks=512, max_pending_tokens=100_000) as server:
        channel = server.new_channel(("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
        call = inference_pb2_grpc.InferenceStub(channel).Generate(request([1], 250, output__logprobs=20, n=8))
        next(call)
        wait_until(lambda: server.metric("longspan_requests_finished_total", reason="length") == 1, "the end")
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.health() == NOT_SERVING, "NOT_SERVING")
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait_exit(5)  # longer than the grace for what was cut
        answer = drain(call)
        assert answer.code == CODE.OK
        assert all(answer.finished(i) is not None and len(answer.ids(i)) == 250 for i in range(8))
        assert server.wait_exit() == 0
        assert "0 requests were open" in server.log_text()
        channel.close()


def test_Case_054_ALaterRequestShortensADrain(launch, toy):
    with launch(toy, step_delay_ms=20, drain_timeout=0, kv_blocks=512) as server:
        jobs = streams(server, tokens=240)
        server.admin.Drain(admin_pb2.DrainRequest(timeout_seconds=86400))
        wait_until(lambda: server.health() == NOT_SERVING, "NOT_SERVING")
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert all(job.result().code == CODE.UNAVAILABLE for job in jobs)
        assert "8 requests were open" in server.log_text()


def test_TheReadyFileSaysWhetherTheServerServes(launch, toy):
    with launch(toy, step_delay_ms=20, drain_timeout=3600, kv_blocks=512) as server:
        jobs = streams(server, tokens=100)
        server.signal(signal.SIGTERM)
        wait_until(lambda: not os.path.exists(server.ready_file), "it goes when the drain begins")
        assert server.process.poll() is None
        assert all(job.result().code == CODE.OK for job in jobs)


def test_ServerInfoShowsWhatWasChosen(launch, toy):
    with launch(toy, threads=None, kv_blocks=None, kv_cache_memory_bytes="1MiB", metrics_listen="off") as server:
        flags = server.inference.GetServerInfo(inference_pb2.GetServerInfoRequest()).flags
        info = server.inference.GetModelInfo(inference_pb2.GetModelInfoRequest())
        assert flags["listen"] == server.address and flags["admin-listen"] == server.admin_address
        assert flags["metrics-listen"] == "off" and flags["block-size"] == "4"
        assert flags["max-model-len"] == str(info.context_length)
        assert 1 <= int(flags["threads"]) <= os.cpu_count()
        assert int(flags["kv-blocks"]) == server.load().total_blocks
        assert 0 < int(flags["kv-cache-memory-bytes"]) <= 1 << 20
        assert flags["kv-cache-dtype"] == info.kv_dtype


def test_Fault_P1_SecondSignalStopsNow(launch, toy):
    with launch(toy, step_delay_ms=20, drain_timeout=3600, kv_blocks=512) as server:
        jobs = streams(server, tokens=240)
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.health() == NOT_SERVING, "NOT_SERVING")
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert all(job.result().code == CODE.UNAVAILABLE for job in jobs)


def test_Fault_P2_SignalsAtOddMoments(launch, toy):
    for number in (signal.SIGTERM, signal.SIGINT):
        server = launch(toy, wait_ready=False)
        wait_until(lambda: "listening" in server.log_text(), "bound")
        server.signal(number)
        assert server.wait_exit() == 0
        server.stop()
    with launch(toy) as server:
        server.remember_canary()
        server.signal(signal.SIGHUP)
        server.check_health()
        server.signal(signal.SIGINT)
        assert server.wait_exit() == 0


def test_Fault_P3_KillAndRestart(launch, toy, tmp_path):
    """SIGKILL leaves a socket file; the next start takes its place."""
    path = f"unix:{tmp_path}/socket"
    for _ in range(5):
        with launch(toy, listen=path) as server:
            server.remember_canary()
            server.check_health()
            server.signal(signal.SIGKILL)
            server.wait_exit()
        assert os.path.exists(tmp_path / "socket")
    with launch(toy, listen=path) as server:
        assert len(server.generate([1], 3).ids()) == 3


def test_Fault_P5_TwoServersOnOneAddress(launch, toy, tmp_path):
    for listen in (f"127.0.0.1:{free_port()}", f"unix:{tmp_path}/shared"):
        with launch(toy, listen=listen) as first:
            first.remember_canary()
            refused(launch, toy, 3, listen=listen)
            first.check_health()


def test_Fault_T5_OpenBindsNeedAFlag(launch, toy):
    refused(launch, toy, 2, "insecure-bind", listen="0.0.0.0:0")
    refused(launch, toy, 2, "insecure-bind", metrics_listen="0.0.0.0:0")
    with launch(toy, listen="0.0.0.0:0", insecure_bind=True) as server:
        assert server.health() == SERVING
    refused(launch, toy, 2, "HOST:PORT", metrics_listen="unix:/x")


def test_Fault_T6_AdminOverTcpNeedsAFlag(launch, toy):
    """The mode of the socket file is the credential; loopback has none."""
    refused(launch, toy, 2, "insecure-bind", admin_listen="127.0.0.1:0")
    with launch(toy, admin_listen="127.0.0.1:0", insecure_bind=True) as server:
        server.admin.ListRequests(admin_pb2.ListRequestsRequest())
    with launch(toy) as server:
        assert os.stat(server.admin_address[len("unix:"):]).st_mode & 0o777 == 0o600


def test_AStraySignalIsIgnored(launch, toy):
    with launch(toy) as server:
        server.signal(signal.SIGUSR2)
        server.remember_canary()
        server.check_health()
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0


def test_Fault_U4_HostileConfigFields(launch, models, tmp_path):
    import write_tiny_model

    folder = str(tmp_path / "model")
    write_tiny_model.write_model("toy_t", folder, shards=2)
    config_path = os.path.join(folder, "config.json")
    config = json.load(open(config_path))
    config.update(auto_map={"AutoModel": "evil.Model"}, custom_code="../../x", _name_or_path="/etc/passwd")
    json.dump(config, open(config_path, "w"))
    with launch(folder) as server:
        server.remember_canary()
        server.check_health()
        assert "passwd" not in server.log_text()
    index_path = os.path.join(folder, "model.safetensors.index.json")
    index = json.load(open(index_path))
    first = next(iter(index["weight_map"]))
    for name in ("../x.safetensors", "/etc/passwd", "a/b.safetensors", ".."):
        bad = json.loads(json.dumps(index))
        bad["weight_map"][first] = name
        json.dump(bad, open(index_path, "w"))
        refused(launch, folder, 4)
