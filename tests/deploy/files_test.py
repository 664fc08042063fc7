"""Deployment files without a cluster: Kubernetes schemas and our own promises, promtool, the dashboard, metric names."""

import itertools
import json
import pathlib
import re
import shutil
import subprocess

import kubernetes_validate
import pytest
import yaml

from monitoring_names import DASHBOARD, DEPLOY, ROOT, RULES, exported_names, panels, queries, used_names

KUBERNETES = DEPLOY / "kubernetes"
OLDEST_KUBERNETES = "1.29"  # the first with native sidecars on by default
MARGIN_BYTES = 150 << 20  # what the server needs besides weights and pool
MODEL_BYTES = 98_362_432  # the example of the manifests
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def documents(name):
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


def find(name, kind):
    return next(document for document in documents(name) if document["kind"] == kind)


def pod(name):
    return find(name, "Deployment")["spec"]["template"]


def longspan_container(name):
    spec = pod(name)["spec"]
    return next(c for c in spec.get("initContainers", []) + spec["containers"] if c["name"] == "longspan")


def flags(container):
    """--a=b -> {"a": "b"}; a switch is "true"."""
    return {flag[2:].split("=")[0]: (flag.split("=") + ["true"])[1] for flag in container["args"]}


def num_bytes(text):
    count, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()
    return int(count) * UNITS[unit]


BOTH = pytest.mark.parametrize("name", ["sidecar.yaml", "deployment.yaml"])


@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, kubernetes_validate.latest_version()])
@BOTH
def test_manifests_are_valid(name, version):
    for document in documents(name):
        kubernetes_validate.validate(document, version, strict=True)


def test_an_invalid_manifest_is_caught():
    broken = find("deployment.yaml", "Deployment")
    broken["spec"]["template"]["spec"]["containers"][0]["imagePullPolciy"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, kubernetes_validate.latest_version(), strict=True)


@BOTH
def test_Fault_T12_every_container_runs_without_rights(name):
    spec = pod(name)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec.get("initContainers", []) + spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


@BOTH
def test_Fault_T12_the_memory_limit_holds_weights_pool_and_margin(name):
    container = longspan_container(name)
    limit = num_bytes(container["resources"]["limits"]["memory"])
    assert limit >= MODEL_BYTES + num_bytes(flags(container)["kv-cache-memory-bytes"]) + MARGIN_BYTES


@BOTH
def test_only_the_run_folder_is_writable(name):
    container = longspan_container(name)
    volumes = {volume["name"]: volume for volume in pod(name)["spec"]["volumes"]}
    for mount in container["volumeMounts"]:
        if "emptyDir" in volumes[mount["name"]]:
            assert mount["mountPath"] == "/run/longspan"
        else:
            assert mount["readOnly"] is True and flags(container)["model"].startswith(mount["mountPath"] + "/")


@BOTH
def test_the_grace_period_is_longer_than_the_drain(name):
    container, spec = longspan_container(name), pod(name)["spec"]
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1]) if "lifecycle" in container else 0
    assert spec["terminationGracePeriodSeconds"] > before + float(flags(container)["drain-timeout"]) + 5


@BOTH
def test_probes_ask_the_server_and_do_not_cut_a_drain(name):
    container = longspan_container(name)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["exec"]["command"] == ["longspan", "health"]
        assert container[probe]["timeoutSeconds"] > 5  # the client's own limit
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > float(flags(container)["drain-timeout"]) + 5


@BOTH
def test_every_flag_exists(name):
    table = (ROOT / "server" / "options.cc").read_text()
    for flag in flags(longspan_container(name)):
        assert re.search(rf'\(\s*"{flag}"', table), f"--{flag} is not in server/options.cc"


def test_a_sidecar_listens_on_loopback_and_stays():
    container = longspan_container("sidecar.yaml")
    assert container["restartPolicy"] == "Always"
    assert container in pod("sidecar.yaml")["spec"]["initContainers"]
    assert flags(container)["listen"].startswith("127.0.0.1:")
    front_end = pod("sidecar.yaml")["spec"]["containers"][0]
    assert {"name": "LONGSPAN_SERVER", "value": flags(container)["listen"]} in front_end["env"]


def test_a_service_without_authentication_has_a_network_policy():
    policy, labels = find("deployment.yaml", "NetworkPolicy")["spec"], pod("deployment.yaml")["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["egress"] == []
    for rule in policy["ingress"]:
        assert rule["ports"] and rule["from"], "a rule without callers lets everybody in"
    service = find("deployment.yaml", "Service")["spec"]
    assert service["selector"].items() <= labels.items()
    ports = {port["name"] for port in longspan_container("deployment.yaml")["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports


@BOTH
def test_the_pod_monitor_finds_the_pods(name):
    (monitor,) = documents("podmonitor.yaml")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod(name)["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    ports = {port["name"]: port["containerPort"] for port in longspan_container(name)["ports"]}
    assert flags(longspan_container(name))["metrics-listen"] == f"0.0.0.0:{ports[endpoint['port']]}"


def test_the_image_matches_the_manifests():
    text = (DEPLOY / "Containerfile").read_text()
    user = pod("deployment.yaml")["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}:" in text and "STOPSIGNAL SIGTERM" in text
    version = re.search(r"project\(longspan VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
    assert f"ARG VERSION={version}" in text
    for name in ("sidecar.yaml", "deployment.yaml"):
        assert longspan_container(name)["image"] == f"longspan:{version}"


def test_the_image_passes_its_revision_to_the_build():
    build, runtime = (DEPLOY / "Containerfile").read_text().split("AS runtime")
    for stage in (build, runtime):
        assert "ARG REVISION=" in stage
    assert '-DLONGSPAN_COMMIT="${REVISION}"' in build
    assert "LONGSPAN_COMMIT" in (ROOT / "server" / "CMakeLists.txt").read_text()


def promtool(*arguments):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is missing: apt-get install prometheus (scripts/setup)")
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", DEPLOY / "prometheus" / "prometheus.yml"),
        ("check", "rules", *RULES),
        ("test", "rules", pathlib.Path(__file__).with_name("rules_test.yml")),
    ],
    ids=["config", "rules", "unit tests"],
)
def test_promtool(arguments):
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_and_record_has_a_test():
    rules = [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    tested = pathlib.Path(__file__).with_name("rules_test.yml").read_text()
    for rule in rules:
        assert rule.get("alert") or rule["record"] in tested, rule["record"]
        if "alert" in rule:
            assert f"alertname: {rule['alert']}," in tested and f'alertname="{rule["alert"]}"' in tested, rule["alert"]
            assert rule["labels"]["severity"] in ("page", "ticket") and "for" in rule
            assert set(rule["annotations"]) == {"summary", "description"}


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_rules_use_names_that_the_server_exports(path):
    rules = [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
    used = set().union(*(used_names(rule["expr"]) for rule in rules))
    assert used and used <= exported_names(), used - exported_names()


def test_alerts_use_records_that_exist():
    recorded = {r["record"] for group in yaml.safe_load(RULES[0].read_text())["groups"] for r in group["rules"]}
    used = set(re.findall(r"\binstance\w*:longspan[\w:]+", RULES[1].read_text() + RULES[0].read_text()))
    assert used == recorded


def test_dashboard_uses_names_that_the_server_exports():
    used = set().union(*(used_names(expr) for _, expr in queries()))
    assert used and used <= exported_names(), used - exported_names()


def test_dashboard_shows_what_operators_ask_for():
    used = set().union(*(used_names(expr) for _, expr in queries()))
    assert used >= {
        "longspan_generation_tokens_total", "longspan_time_to_first_token_seconds_bucket",
        "longspan_time_per_output_token_seconds_bucket", "longspan_kv_cache_usage_ratio",
        "longspan_attention_kv_bandwidth_bytes_per_second", "longspan_attention_kv_bandwidth_ratio",
        "longspan_requests_waiting", "longspan_preemptions_total",
    }
    assert any("context_bucket" in expr for _, expr in queries())


def test_a_name_that_is_not_exported_is_caught():
    assert not used_names("rate(longspan_tokens_generated_total[5m])") <= exported_names()
    assert used_names("instance:longspan_x:rate5m + vllm:y") == {"vllm:y"}


def test_dashboard_is_sound():
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["uid"] == "longspan" and "id" not in dashboard and dashboard["schemaVersion"] >= 36
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels(dashboard):
        assert panel["datasource"]["uid"] == "${datasource}" and panel["title"] and panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(references) == len(set(references))
        for target in panel["targets"]:
            used = set(re.findall(r"\$\{?(\w+)", target["expr"])) - {"__rate_interval"}
            assert used == {"instance"} and used <= variables and target["legendFormat"]
            assert "rate(" not in target["expr"] or "[$__rate_interval]" in target["expr"]


def test_dashboard_panels_do_not_overlap():
    def cells(panel):
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        return set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))

    taken = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        assert not taken & cells(panel), panel["title"]
        taken |= cells(panel)
