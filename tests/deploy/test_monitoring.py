"""Alerts and dashboard speak of metrics that there are."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import CHART, template
from tests.metrics import metrics_defined

RULES = CHART / "files" / "alerts.yaml"
DASHBOARD = CHART / "files" / "dashboard.json"
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# What the API server counts about any webhook; tests/cluster/deploy/test_reach.py finds them there.
OF_THE_API_SERVER = {
    "apiserver_admission_webhook_rejection_count",
    "apiserver_admission_webhook_fail_open_count",
    "apiserver_admission_webhook_admission_duration_seconds_bucket",
}
METRIC = re.compile(r"\b(?:gpu_admission|apiserver)_[a-z_]+")


@cache
def exposed() -> dict[str, tuple[str, ...]]:
    """Return the labels of every time series that the code makes, by name."""
    return {
        f"{name}{suffix}": labels for name, kind, _, labels in metrics_defined() for suffix in SUFFIXES[kind]
    }


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


@pytest.mark.parametrize(("name", "expression"), [pytest.param(*each, id=each[0]) for each in expressions()])
def test_its_metrics_exist(name: str, expression: str) -> None:
    known = exposed()
    used = set(METRIC.findall(expression))

    assert used, name
    assert not used - OF_THE_API_SERVER - set(known)
    ours = [known[metric] for metric in used & set(known)]
    for label in {*re.findall(r'(\w+)=~?"', expression), *grouped(expression)} if ours else ():
        assert any(label in words_of for words_of in ours), f"{name}: no {label}"


def grouped(expression: str) -> set[str]:
    by = re.findall(r"\bby \(([^)]*)\)", expression)
    return {label.strip() for group in by for label in group.split(",")} - {"le"}


def test_alerts_say_what_is_wrong() -> None:
    names = [rule["alert"] for rule in alerts()]

    assert len(set(names)) == len(names)
    for rule in alerts():
        assert rule["labels"]["severity"] in {"warning", "critical"}, rule["alert"]
        assert rule["annotations"]["summary"].endswith("."), rule["alert"]
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert label in grouped(rule["expr"]), f"{rule['alert']}: {label} is summed away"


def test_rules_for_pages_are_about_calls_certificates_configuration_canary_and_quotas() -> None:
    every = " ".join(METRIC.findall(" ".join(rule["expr"] for rule in alerts())))

    for metric in (
        *OF_THE_API_SERVER,
        "gpu_admission_certificate_not_after_timestamp_seconds",
        "gpu_admission_config_valid",
        "gpu_admission_canary_success",
        "gpu_admission_canary_last_success_timestamp_seconds",
        "gpu_admission_quota_condition",
        "gpu_admission_quota_last_recount_timestamp_seconds",
        "gpu_admission_quota_conflicts_total",
        "gpu_admission_audit_lines_lost_total",
    ):
        assert metric in every


@pytest.mark.usefixtures("rendering")
def test_the_chart_carries_them_unchanged() -> None:
    rendered = yaml.safe_load_all(template("-f", CHART / "values-production.yaml"))
    by_kind = {(d["kind"], d["metadata"]["name"]): d for d in rendered if d}

    assert by_kind["PrometheusRule", "gpu-admission"]["spec"] == yaml.safe_load(RULES.read_text())
    carried = by_kind["ConfigMap", "gpu-admission-dashboard"]["data"]["gpu-admission.json"]
    assert json.loads(carried) == json.loads(DASHBOARD.read_text())
    monitor = by_kind["ServiceMonitor", "gpu-admission"]["spec"]
    services = [document for (kind, _), document in by_kind.items() if kind == "Service"]
    scraped = [
        service["metadata"]["name"]
        for service in services
        if {(p["name"]) for p in service["spec"]["ports"]} == {monitor["endpoints"][0]["port"]}
        and monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    assert scraped == ["gpu-admission-controller-metrics", "gpu-admission-webhook-metrics"]
