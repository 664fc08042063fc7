"""What the server exports, read out of server/metrics.cc, and which names a PromQL text uses."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "longspan.json"
RULES = [DEPLOY / "prometheus" / name for name in ("recording.yml", "alerts.yml")]

EXPORTED = re.compile(r'"((?:longspan_|process_|vllm:)[a-z0-9_]+)"')
HISTOGRAM = re.compile(r'AddHistogram\(\s*"([a-z0-9_:]+)"')
USED = re.compile(r"(?<![\w:])((?:longspan_|process_|vllm:)[a-z0-9_]+)")
SELECTOR = re.compile(r"(?<![\w:])((?:longspan_|process_|vllm:)[a-z0-9_]+)\s*\{([^}]*)\}")


def exported_names():
    """Names of series as a scrape shows them: a histogram is its three series."""
    source = (ROOT / "server" / "metrics.cc").read_text()
    histograms = set(HISTOGRAM.findall(source))
    assert histograms, "server/metrics.cc no longer says AddHistogram(name"
    names = set(EXPORTED.findall(source)) - histograms
    return names | {name + suffix for name in histograms for suffix in ("_bucket", "_sum", "_count")}


def used_names(promql):
    return set(USED.findall(promql))


def panels(dashboard=None):
    """Panels with queries."""
    dashboard = dashboard or json.loads(DASHBOARD.read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries():
    """(panel title, PromQL) of every query of the dashboard."""
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
