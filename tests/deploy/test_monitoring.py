"""Alerts and dashboards speak of metrics that there are."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from tests.controlplane import helm
from tests.deploy.manifests import CHART, ROOT, of_kind, rendered
from tests.deploy.monitoring import RULES, THRESHOLDS
from tests.metrics import metrics_defined
from tests.yaml_files import load_yaml

DASHBOARDS = {
    "gpu-admission.json": CHART / "files" / "dashboard.json",
    "gpu-admission-tenants.json": CHART / "files" / "dashboard-tenants.json",
}
"""By their names in the ConfigMap."""
RUNBOOK = ROOT / "docs" / "operate" / "alerts.md"
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# What the API server counts about any webhook, with the labels that expressions about it and about us use;
# tests/cluster/deploy/test_reach.py finds them there.
OF_THE_API_SERVER: dict[str, tuple[str, ...]] = {
    "apiserver_admission_webhook_rejection_count": (),
    "apiserver_admission_webhook_fail_open_count": (),
    "apiserver_admission_webhook_admission_duration_seconds_bucket": (),
    # What it counts about its files: tests/cluster/static/test_broken_files.py.
    "apiserver_manifest_admission_config_controller_last_config_info": (),
    "apiserver_manifest_admission_config_controller_automatic_reload_last_timestamp_seconds": ("status",),
}
METRIC = re.compile(r"\b(?:gpu_admission|apiserver)_[a-z_]+")
CLUSTER = "cluster"
"""What a Prometheus of several clusters adds to every time series."""


@cache
def exposed() -> dict[str, tuple[str, ...]]:
    """Return the labels of every time series that the code makes, by name."""
    return {
        f"{name}{suffix}": labels for name, kind, _, labels in metrics_defined() for suffix in SUFFIXES[kind]
    }


def alerts() -> list[dict[str, Any]]:
    return [rule for group in load_yaml(RULES)["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for name, path in DASHBOARDS.items():
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{name} {panel['title']} {target['refId']}", target["expr"]


@pytest.mark.parametrize(("name", "expression"), [pytest.param(*each, id=each[0]) for each in expressions()])
def test_its_metrics_exist(name: str, expression: str) -> None:
    known = exposed()
    used = set(METRIC.findall(expression))

    assert used, name
    assert not used - set(OF_THE_API_SERVER) - set(known)
    ours = [known[metric] for metric in used & set(known)]
    labels = {*re.findall(r'(\w+)=~?"', expression), *grouped(expression)} - {CLUSTER}
    ours += [OF_THE_API_SERVER[metric] for metric in used & set(OF_THE_API_SERVER)] if ours else []
    for label in labels if ours else ():
        assert any(label in words_of for words_of in ours), f"{name}: no {label}"


@pytest.mark.parametrize(("name", "expression"), [pytest.param(*each, id=each[0]) for each in expressions()])
def test_no_aggregation_hides_a_cluster(name: str, expression: str) -> None:
    """max() is 1 while the canary of one of two clusters fails; absent() says nothing while one of them has the metric."""
    aggregations = re.findall(r"\b(?:sum|min|max|group)\b(?: by \(([^)]*)\))?", expression)

    assert all(CLUSTER in labels.split(", ") for labels in aggregations)
    for metric in re.findall(r"absent\((\w+)\)", expression):
        gone = f"group by (cluster) (present_over_time({metric}[1d])) unless group by (cluster) ({metric})"
        assert gone in " ".join(expression.split())
    if name.startswith(tuple(DASHBOARDS)):
        assert len(METRIC.findall(expression)) == expression.count('{cluster=~"$cluster"')


@pytest.mark.parametrize(("name", "expression"), [pytest.param(*each, id=each[0]) for each in expressions()])
def test_what_dry_runs_ask_counts_for_none(name: str, expression: str) -> None:
    known = exposed()

    for metric, selector in re.findall(r"\b(gpu_admission_[a-z_]+)(\{[^}]*\})?", expression):
        if "dry_run" in known[metric]:
            assert 'dry_run="false"' in selector, f"{name}: {metric}"


def test_findings_are_shown_by_the_reasons_that_docs_explain() -> None:
    (shown,) = (text for _, text in expressions() if "gpu_admission_findings_total" in text)

    assert grouped(shown) == {CLUSTER, "rule", "reason", "outcome"}


def test_classes_are_in_both_dashboards_and_the_one_of_tenants_asks_for_one_namespace() -> None:
    texts = {
        name: [t["expr"] for panel in json.loads(path.read_text())["panels"] for t in panel["targets"]]
        for name, path in DASHBOARDS.items()
    }
    tenants = json.loads(DASHBOARDS["gpu-admission-tenants.json"].read_text())
    variables = {each["name"]: each for each in tenants["templating"]["list"]}

    for name, found in texts.items():
        assert any('dimension=~"classes/.+"' in expression for expression in found), name
    for expression in texts["gpu-admission-tenants.json"]:
        selectors = re.findall(r"\bgpu_admission_[a-z_]+\{([^}]*)\}", expression)
        assert len(selectors) == len(METRIC.findall(expression))
        assert all('namespace="$namespace"' in selector for selector in selectors)
    assert variables["namespace"]["query"]["query"] == (
        'label_values(gpu_admission_quota_hard{cluster=~"$cluster"}, namespace)'
    )
    assert "namespace" in exposed()["gpu_admission_quota_hard"]


def test_no_two_panels_lie_on_each_other() -> None:
    for path in DASHBOARDS.values():
        panels = json.loads(path.read_text())["panels"]
        cells = [
            (x, y)
            for at in (panel["gridPos"] for panel in panels)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(set(cells)) == len(cells), path.name
        assert len({panel["id"] for panel in panels}) == len(panels), path.name


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


def test_the_page_of_alerts_has_each_and_no_other() -> None:
    headings = re.findall(r"^## (.+)$", RUNBOOK.read_text(), re.MULTILINE)

    assert headings == [rule["alert"] for rule in alerts()]


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
def test_the_chart_carries_them() -> None:
    by_kind = {
        (d["kind"], d["metadata"]["name"]): d for d in rendered("-f", CHART / "values-production.yaml")
    }
    text = RULES.read_text()
    for name, value in THRESHOLDS.items():
        assert f"${{{name}}}" in text
        text = text.replace(f"${{{name}}}", str(value))

    carried = by_kind["PrometheusRule", "gpu-admission"]["spec"]
    assert carried == yaml.safe_load(text)  # and no runbook_url, until somebody says where the page is
    dashboards = by_kind["ConfigMap", "gpu-admission-dashboards"]["data"]
    assert {name: json.loads(each) for name, each in dashboards.items()} == {
        name: json.loads(path.read_text()) for name, path in DASHBOARDS.items()
    }
    monitor = by_kind["ServiceMonitor", "gpu-admission"]["spec"]
    services = [document for (kind, _), document in by_kind.items() if kind == "Service"]
    scraped = [
        service["metadata"]["name"]
        for service in services
        if {(p["name"]) for p in service["spec"]["ports"]} == {monitor["endpoints"][0]["port"]}
        and monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    ]
    assert scraped == ["gpu-admission-controller-metrics", "gpu-admission-webhook-metrics"]


@pytest.mark.usefixtures("rendering")
def test_thresholds_and_the_page_are_values() -> None:
    rule = "monitoring.prometheusRule"
    values = (
        f"{rule}.enabled=true,{rule}.runbookURL=https://wiki.example.com/gpus,{rule}.thresholds.pausedFor=1h,"
    )
    documents = rendered("--set", f"{values}{rule}.thresholds.certificateDays=14")
    (installed,) = of_kind("PrometheusRule", documents)
    by_name = {each["alert"]: each for group in installed["spec"]["groups"] for each in group["rules"]}

    expires = by_name["GPUAdmissionCertificateExpires"]
    assert expires["expr"].endswith("- time() < 14 * 86400")
    assert "expires within 14 days" in expires["annotations"]["summary"]
    assert expires["annotations"]["runbook_url"] == (
        "https://wiki.example.com/gpus#gpuadmissioncertificateexpires"
    )
    assert by_name["GPUAdmissionPolicyPaused"]["for"] == "1h"
    assert "${" not in json.dumps(installed)


@pytest.mark.usefixtures("rendering")
def test_a_page_that_leads_nowhere_is_refused() -> None:
    rule = "monitoring.prometheusRule"
    with pytest.raises(helm.HelmFailed, match="runbookURL"):
        rendered("--set", f"{rule}.enabled=true,{rule}.runbookURL=docs/operate/alerts.md")
