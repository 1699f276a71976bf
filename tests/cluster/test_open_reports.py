"""Reports (openreports.io) of the controller on a real API server, with the rights that the chart gives it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import JSON, container, gpu_container
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane
from tests.controlplane.gpuquota import CRDS, install_quota_kind
from tests.deploy.manifests import of_kind, rendered
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.configuration.loader import Configuration, load_directory
from webhook.controller.reports import MOST_RESULTS, ReportLoop

GROUP, VERSION = "openreports.io", "v1alpha1"
CONTROLLER = "gpu-admission-controller"
UNKNOWN = {"gpu-admission.dev/gpu-class": "a1000"}


def kind() -> JSON:
    """Return a minimal CRD of Report: only what the schema of openreports/reports-api demands of what we write."""
    text, number, anything = (
        {"type": "string"},
        {"type": "integer"},
        {"x-kubernetes-preserve-unknown-fields": True},
    )
    outcomes = {"type": "string", "enum": ["pass", "fail", "warn", "error", "skip"]}
    result = {
        "type": "object",
        "required": ["policy"],
        "properties": {
            **dict.fromkeys(("source", "policy", "rule", "category", "message"), text),
            "severity": {"type": "string", "enum": ["critical", "high", "low", "medium", "info"]},
            "result": outcomes,
            "scored": {"type": "boolean"},
            "properties": {"type": "object", "additionalProperties": text},
            "resources": {"type": "array", "items": {"type": "object", **anything}},
        },
    }
    limits = {"maxResults": number, "statusFilter": {"type": "array", "items": outcomes}}
    summary = dict.fromkeys(("pass", "fail", "warn", "error", "skip"), number)
    schema = {
        "type": "object",
        "properties": {
            "source": text,
            "configuration": {
                "type": "object",
                "required": ["limits"],
                "properties": {"limits": {"type": "object", "properties": limits}},
            },
            "summary": {"type": "object", "properties": summary},
            "results": {"type": "array", "items": result},
        },
    }
    names = {"plural": "reports", "singular": "report", "kind": "Report", "listKind": "ReportList"}
    version = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": f"reports.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[ControlPlane]:
    plane = ControlPlane()
    plane.add_user(CONTROLLER)
    with plane:
        install_quota_kind(plane.client())
        grant(plane)
        yield plane


def grant(plane: ControlPlane) -> None:
    """Give the user the rights of the controller's ServiceAccount in the chart, with reports."""
    roles = of_kind("ClusterRole", rendered("--set", "openReports.enabled=true"))
    (role,) = (each for each in roles if each["metadata"]["name"] == CONTROLLER)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": CONTROLLER}
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": CONTROLLER}
    binding = {"metadata": {"name": CONTROLLER}, "roleRef": reference, "subjects": [subject]}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    create(plane, f"{rbac}/clusterroles", role)
    create(plane, f"{rbac}/clusterrolebindings", binding)


def create(plane: ControlPlane, path: str, body: JSON) -> None:
    status, answer = plane.client().post(path, body)
    assert status == 201, answer


def create_pod(plane: ControlPlane, namespace: str, name: str, *containers: JSON, **metadata: Any) -> None:
    body = {
        "metadata": {"name": name, **metadata},
        "spec": {"containers": list(containers or (gpu_container(),))},
    }
    create(plane, f"/api/v1/namespaces/{namespace}/pods", body)


def loop(plane: ControlPlane, configuration: Configuration) -> ReportLoop:
    api = ApiClient(load_access(str(plane.kubeconfig(CONTROLLER))))
    return ReportLoop(api, lambda: configuration, lambda: True, 600)


def report(plane: ControlPlane, namespace: str) -> Any:
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/reports/gpu-admission"
    status, found = plane.client().get(path)
    return found if status == 200 else None


def serve_reports(plane: ControlPlane) -> None:
    plane.client().post(CRDS, kind())
    assert eventually(lambda: plane.client().get(f"/apis/{GROUP}/{VERSION}/reports")[0] == 200, seconds=60)


def test_without_the_kind_nothing_is_written(cluster: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    writing = loop(cluster, load_directory(None))
    with caplog.at_level(logging.WARNING):
        assert [writing.write(), writing.write()] == [0, 0]

    assert [each.message for each in caplog.records] == [
        "the API server does not serve reports.openreports.io/v1alpha1: no report is written"
    ]


def test_one_report_for_each_namespace_in_which_something_would_be_refused(cluster: ControlPlane) -> None:
    serve_reports(cluster)
    for namespace in ("typos", "fine"):
        create(cluster, "/api/v1/namespaces", {"metadata": {"name": namespace}})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}
    for index in range(12):
        made_by = {"annotations": UNKNOWN, "ownerReferences": [owner]}
        create_pod(cluster, "typos", f"train-{index:02}", **made_by)
    create_pod(cluster, "typos", "web", container())
    create_pod(cluster, "fine", "chat")
    writing = loop(cluster, load_directory(None))

    assert [writing.write(), writing.write()] == [1, 0]

    assert report(cluster, "fine") is None
    found = report(cluster, "typos")
    assert found["source"] == "gpu-admission"
    assert found["summary"] == {"pass": 1, "fail": 12, "warn": 0, "error": 0, "skip": 0}
    (result,) = found["results"]
    assert {key: result[key] for key in ("policy", "rule", "result", "severity", "scored")} == {
        "policy": "built-in",
        "rule": "gpu-class",
        "result": "fail",
        "severity": "high",
        "scored": True,
    }
    assert result["properties"] == {"owner": "Job/train", "pods": "12"}
    assert result["message"].startswith('metadata.annotations[gpu-admission.dev/gpu-class] = "a1000": ')
    assert [each["name"] for each in result["resources"]] == [f"train-{index:02}" for index in range(10)]
    # Not one pod less: what was refused is over, and the report says so.
    for index in range(12):
        path = f"/api/v1/namespaces/typos/pods/train-{index:02}"
        assert cluster.client().delete(path, {"gracePeriodSeconds": 0})[0] == 200
    assert [writing.write(), writing.write()] == [1, 0]
    found = report(cluster, "typos")
    assert (found["summary"]["fail"], found["summary"]["pass"], found.get("results")) == (0, 1, [])


def test_a_report_is_bounded_and_counts_everything(cluster: ControlPlane) -> None:
    serve_reports(cluster)
    create(cluster, "/api/v1/namespaces", {"metadata": {"name": "many"}})
    for index in range(MOST_RESULTS + 5):
        create_pod(cluster, "many", f"typo-{index}", annotations=UNKNOWN)

    loop(cluster, load_directory(None)).write()

    found = report(cluster, "many")
    assert (len(found["results"]), found["summary"]["fail"]) == (MOST_RESULTS, MOST_RESULTS + 5)
    assert found["configuration"]["limits"]["maxResults"] == MOST_RESULTS


def test_long_names_of_owners_keep_no_report_from_being_written(cluster: ControlPlane) -> None:
    serve_reports(cluster)
    create(cluster, "/api/v1/namespaces", {"metadata": {"name": "long"}})
    for index in range(7):
        owner = {"apiVersion": "example.com/v1", "kind": "Strange", "uid": "1", "controller": True}
        made_by = {"annotations": UNKNOWN, "ownerReferences": [{**owner, "name": f"{index}{'x' * 250_000}"}]}
        create_pod(cluster, "long", f"typo-{index}", **made_by)

    loop(cluster, load_directory(None)).write()

    assert {len(each["properties"]["owner"]) for each in report(cluster, "long")["results"]} == {256}


def test_policies_that_select_by_labels_are_those_of_the_namespace(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    serve_reports(cluster)
    selector = {"matchLabels": {"team": "exempt"}}
    exemption = {"namespaces": ["*"], "namespaceSelector": selector, "reason": "test"}
    policy = {
        "apiVersion": "gpu-admission.dev/v1alpha1",
        "kind": "GPUPolicy",
        "metadata": {"name": "default"},
    }
    (tmp_path / "policy.json").write_text(json.dumps({**policy, "spec": {"exemptions": [exemption]}}))
    for name in ("exempt", "held"):
        create(cluster, "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"team": name}}})
        create_pod(cluster, name, "typo", annotations=UNKNOWN)

    loop(cluster, load_directory(tmp_path)).write()

    assert report(cluster, "exempt") is None
    assert report(cluster, "held")["summary"]["fail"] == 1


def test_rights_to_reports_come_with_the_value_and_not_before() -> None:
    def groups(*values: str) -> set[str]:
        roles = of_kind("ClusterRole", rendered(*values))
        return {group for role in roles for rule in role["rules"] for group in rule["apiGroups"]}

    assert GROUP not in groups()
    assert GROUP in groups("--set", "openReports.enabled=true")


def test_the_value_becomes_the_flag() -> None:
    def arguments(*values: str) -> list[str]:
        (found,) = (
            each
            for each in of_kind("Deployment", rendered(*values))
            if each["metadata"]["name"] == CONTROLLER
        )
        return list(found["spec"]["template"]["spec"]["containers"][0]["args"])

    flag = "--report-seconds=600"
    assert flag not in arguments()
    assert flag in arguments("--set", "openReports.enabled=true")
