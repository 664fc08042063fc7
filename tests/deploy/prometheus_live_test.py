"""A real Prometheus scrapes the running server on loopback, evaluates the rules, and every query of the dashboard
answers with data. Runs where Prometheus is installed, the binaries are given (LONGSPAN_SERVER_BINARY,
LONGSPAN_CLIENT_BINARY) and the model is there (LONGSPAN_TEST_MODEL, else where scripts/fetch-model puts it).
"""

import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request

import pytest
import yaml

from monitoring_names import DEPLOY, RULES, SELECTOR, exported_names, queries

SERVER = os.environ.get("LONGSPAN_SERVER_BINARY", "")
CLIENT = os.environ.get("LONGSPAN_CLIENT_BINARY", "")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
DEFAULT_MODEL = CACHE / "longspan" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = pathlib.Path(os.environ.get("LONGSPAN_TEST_MODEL") or DEFAULT_MODEL)
PATIENCE_SECONDS = 60  # for a state that must come; reaching it sooner ends the wait
RATE_INTERVAL = "20s"  # in place of Grafana's $__rate_interval; scrapes come every second

if shutil.which("prometheus") is None:
    pytest.skip("prometheus is missing: scripts/setup", allow_module_level=True)
if not (os.path.exists(SERVER) and os.path.exists(CLIENT)):
    pytest.skip("no server: set LONGSPAN_SERVER_BINARY and LONGSPAN_CLIENT_BINARY", allow_module_level=True)
if not MODEL.exists():
    pytest.skip("no model: run scripts/fetch-model", allow_module_level=True)


def wait_for(what, condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE_SECONDS} s"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("monitoring")


@pytest.fixture(scope="module")
def server(folder):
    """Addresses from the ready file: listen, admin, metrics."""
    ready = folder / "ready"
    process = subprocess.Popen(
        [SERVER, "--model", str(MODEL), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--log-level", "warn",
         "--admin-listen", f"unix:{folder}/admin.sock", "--ready-file", str(ready), "--kv-cache-memory-bytes", "64MiB"]
    )

    def is_ready():
        assert process.poll() is None, "the server ended while starting"
        return ready.exists()

    wait_for("the server", is_ready)
    yield dict(line.split(" ", 1) for line in ready.read_text().splitlines())
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def load(server):
    """Requests that share a prefix, one after another, for as long as the tests run."""
    command = [CLIENT, "--server", server["listen"], "bench", "--num-prompts", "100000", "--max-concurrency", "4",
               "--random-input-len", "48", "--random-prefix-len", "64", "--random-output-len", "24", "--no-progress"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def prometheus(folder, server, load):
    """get(path, **parameters) of the API of a Prometheus that runs our own configuration, only faster."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [server["metrics"]]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    for path in RULES:  # a window of five minutes is filled as well by twenty seconds
        (folder / path.name).write_text(path.read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with open(folder / "prometheus.log", "w") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address={address}"], stdout=log, stderr=log)

    def get(path, **parameters):
        url = f"http://{address}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            body = answer.read()
        return json.loads(body)["data"] if path.startswith("/api/") else body

    def is_up():
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        try:
            return get("/-/ready")
        except OSError:
            return None

    wait_for("Prometheus", is_up)
    yield get
    process.terminate()
    process.wait(timeout=30)


def numbers(get, promql):
    """The figures of an instant query that are figures."""
    result = get("/api/v1/query", query=promql)["result"]
    return [float(sample["value"][1]) for sample in result if not math.isnan(float(sample["value"][1]))]


def test_the_server_is_scraped_without_an_error(prometheus):
    def target():
        targets = prometheus("/api/v1/targets")["activeTargets"]
        return targets[0] if targets and targets[0]["health"] != "unknown" else None

    state = wait_for("the first scrape", target)
    assert state["health"] == "up" and state["lastError"] == ""


@pytest.mark.parametrize("title, expr", queries(), ids=[f"{i}-{title}" for i, (title, _) in enumerate(queries())])
def test_every_dashboard_query_answers_with_data(prometheus, title, expr):
    promql = expr.replace("$__rate_interval", RATE_INTERVAL).replace("$instance", ".*")
    assert "$" not in promql
    values = wait_for(f"data for {promql}", lambda: numbers(prometheus, promql))
    assert all(value >= 0 for value in values)


def test_figures_make_sense(prometheus):
    wait_for("tokens", lambda: sum(numbers(prometheus, f"rate(longspan_generation_tokens_total[{RATE_INTERVAL}])")) > 0)
    (usage,) = numbers(prometheus, "longspan_kv_cache_usage_ratio")
    assert 0 <= usage <= 1
    assert numbers(prometheus, "longspan_kv_blocks_leaked") == [0]
    assert numbers(prometheus, "sum(longspan_kv_blocks) == sum(longspan_kv_blocks_capacity)")
    (weights,) = numbers(prometheus, "longspan_weights_bytes")
    assert 0.5 * MODEL.stat().st_size < weights < 2 * MODEL.stat().st_size


def test_labels_in_rules_and_dashboard_exist(prometheus):
    used = {match for text in [*(path.read_text() for path in RULES), *(expr for _, expr in queries())]
            for match in SELECTOR.findall(text)}
    assert used
    for name, selector in used:
        for label, value in re.findall(r'(\w+)=~?"([^"]*)"', selector):
            if label in ("instance", "job"):
                continue
            seen = prometheus(f"/api/v1/label/{label}/values", **{"match[]": name})
            for one in value.split("|"):
                assert one in seen, f"{name} has no {label}={one}: {seen}"


def test_what_is_scraped_is_what_the_source_names(prometheus):
    scraped = {name for name in prometheus("/api/v1/label/__name__/values") if re.match(r"longspan_|process_|vllm:", name)}
    exported = exported_names()
    assert scraped <= exported, scraped - exported
    assert exported - scraped == set(), "named in the source but never exported"


def test_rules_evaluate_and_nothing_alarms(prometheus):
    def evaluated():
        rules = [rule for group in prometheus("/api/v1/rules")["groups"] for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    rules = wait_for("the rules", evaluated)
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
    for rule in rules:
        if rule["type"] == "recording":
            wait_for(f"data of {rule['name']}", lambda: numbers(prometheus, rule["name"]))
