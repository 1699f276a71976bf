"""Replay: pods of an audit log, written by the webhook itself under one configuration, evaluated again under another."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from tests.builders import JSON, gpu_container, pod, uid
from webhook.commands.replay import replay
from webhook.configuration.loader import load_directory
from webhook.serving.admission import Admission
from webhook.serving.audit import AuditLog, Recorder
from webhook.serving.engine import Engine
from webhook.serving.metrics import Metrics
from webhook.serving.review import decode_request

POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules: RULES
"""
SELECTING = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: strict}
spec:
  priority: 10
  match: {namespaceSelector: {matchLabels: {tier: strict}}}
  rules: {gpu-requests: {maxPerPod: 1}}
"""
LENIENT, STRICT = "{gpu-requests: {mode: warn}}", "{gpu-requests: {maxPerPod: 2}}"

Log = Callable[..., str]


@pytest.fixture
def directory(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a policy of the rules and returns its directory."""

    def make(name: str, rules: str = "{}", *more: str) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text("---".join((POLICY.replace("RULES", rules), *more)))
        return str(tmp_path / name)

    return make


@pytest.fixture
def log(tmp_path: Path, directory: Callable[..., str]) -> Log:
    """Return a function that has pods reviewed by /mutate and /validate and returns the audit log."""

    def make(*pods: JSON, rules: str = "{}", with_pods: bool = True, namespace: str = "team") -> str:
        engine = Engine(load_directory(Path(directory("old", rules))))
        audit = AuditLog.to(str(tmp_path / "audit.jsonl"), lambda lines: lines)
        recorder = Recorder(Metrics(CollectorRegistry()), audit, with_pods=with_pods)
        admission = Admission(lambda: engine, recorder)
        for document in pods:
            fields = {
                "uid": uid("review"),
                "kind": {"version": "v1", "kind": "Pod"},
                "operation": "CREATE",
                "namespace": namespace,
                "userInfo": {"username": "ada"},
                "object": document,
            }
            envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields}
            request = decode_request(msgspec.json.encode(envelope))
            if admission.mutate(request, monotonic() + 60).allowed:
                admission.validate(request, monotonic() + 60)
        audit.stop()
        return str(tmp_path / "audit.jsonl")

    return make


def named(name: str, count: str = "1", owner: str = "", **spec: Any) -> JSON:
    document = pod(gpu_container(count), **spec)
    controller = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner,
        "uid": uid(owner),
        "controller": True,
    }
    metadata = {"name": name, **({"ownerReferences": [controller]} if owner else {})}
    return {**document, "metadata": metadata}


def replayed(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `gpu-admission replay -o json` and what it prints."""
    result = CliRunner(env={"COLUMNS": None}).invoke(
        replay, ["-o", "json", *arguments], catch_exceptions=False
    )
    assert result.exit_code in {0, 1}, result.output
    return result.exit_code, json.loads(result.stdout)


def test_a_stricter_rule_names_who_would_be_denied(log: Log, directory: Callable[..., str]) -> None:
    pods = [named(f"train-{number}", "4", "train") for number in range(3)]
    audit = log(*pods, named("small"), rules=LENIENT)

    code, found = replayed("--config", directory("new", STRICT), audit)

    assert code == 1
    assert (found["pods"], found["newlyDenied"], found["noLongerDenied"]) == (4, 3, 0)
    (hit,) = found["newly"]
    assert (hit["namespace"], hit["owner"], hit["rule"], hit["pods"]) == (
        "team",
        "Job/train",
        "gpu-requests",
        3,
    )
    assert "nvidia.com/gpu" in hit["message"]


def test_what_was_denied_and_would_not_be_any_more_is_named(log: Log, directory: Callable[..., str]) -> None:
    audit = log(named("large", "4"), named("small"), rules=STRICT)

    code, found = replayed("--config", directory("new", LENIENT), audit)

    assert code == 0
    assert (found["pods"], found["newlyDenied"], found["noLongerDenied"]) == (2, 0, 1)
    assert [(hit["owner"], hit["rule"]) for hit in found["noLonger"]] == [("Pod/large", "gpu-requests")]


PODS = [
    pytest.param(named("plain"), id="plain"),
    pytest.param(named("fraction", "500m"), id="half-a-gpu"),
    pytest.param(named("many", "64"), id="more-than-a-node-has"),
    pytest.param(named("tolerant", tolerations=[{"operator": "Exists"}]), id="that-tolerates-everything"),
    pytest.param(named("pinned", nodeSelector={"accelerator": "no-such-class"}), id="pinned-to-no-class"),
    pytest.param(named("bound", nodeName="gpu-1"), id="that-names-its-node"),
    pytest.param(
        {
            **pod(
                gpu_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
                {"name": "agent", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
            ),
            "metadata": {"name": "sees-all"},
        },
        id="that-shows-itself-devices",
    ),
    pytest.param(
        {**named("wrong"), "metadata": {"name": "w", "annotations": {"gpu-admission.dev/gpu-class": "l40"}}},
        id="that-asks-for-an-unknown-class",
    ),
]


@pytest.mark.parametrize("document", PODS)
def test_the_same_configuration_changes_nothing(
    log: Log, directory: Callable[..., str], document: JSON
) -> None:
    rules = "{gpu-isolation: {mode: enforce}, gpu-class: {mode: enforce, allowed: [nvidia-l4]}}"
    audit = log(document, rules=rules)

    code, found = replayed("--config", directory("new", rules), audit)

    assert (code, found["pods"], found["newly"], found["noLonger"]) == (0, 1, [], [])


def test_pods_without_what_rules_read_are_counted(log: Log, directory: Callable[..., str]) -> None:
    audit = log(named("a"), named("b"), with_pods=False)

    _, found = replayed("--config", directory("new"), audit)

    assert (found["pods"], found["withoutPod"]) == (0, 2)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param(None, (0, 0, {"team": 1}), id="not-known"),
        pytest.param({"tier": "strict"}, (1, 1, {}), id="that-select-the-policy"),
        pytest.param({}, (1, 0, {}), id="that-do-not"),
    ],
)
def test_labels_of_namespaces_choose_the_policy(
    tmp_path: Path,
    log: Log,
    directory: Callable[..., str],
    labels: dict[str, str] | None,
    expected: tuple[int, int, dict[str, int]],
) -> None:
    audit, new = log(named("two", "2")), directory("new", "{}", SELECTING)
    namespaces = tmp_path / "namespaces.json"
    items = [] if labels is None else [{"metadata": {"name": "team", "labels": labels}}]
    namespaces.write_text(json.dumps({"kind": "List", "items": items}))

    _, found = replayed("--config", new, "--namespaces", str(namespaces), audit)

    assert (found["pods"], found["newlyDenied"], found["notEvaluated"]) == expected


def test_a_quota_is_not_replayed(log: Log, directory: Callable[..., str], tmp_path: Path) -> None:
    audit = Path(log(named("a")))
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    lines[-1] |= {"verdict": "denied", "findings": [{"rule": "gpu-quota", "outcome": "denied"}]}
    (tmp_path / "changed.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))

    code, found = replayed("--config", directory("new"), str(tmp_path / "changed.jsonl"))

    assert (code, found["pods"], found["noLongerDenied"]) == (0, 1, 0)


def text(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": None}).invoke(replay, list(arguments), catch_exceptions=False)


def test_text_says_who_by_owner_and_rule(log: Log, directory: Callable[..., str]) -> None:
    pods = [named(f"train-{number}", "4", "train") for number in range(2)]
    audit = log(*pods, named("small"), rules=LENIENT)

    result = text("--config", directory("new", STRICT), audit)

    lines = result.stdout.splitlines()
    assert lines[0].startswith("3 new pods evaluated again, created from 20")
    assert lines[1:6] == [
        "       2  would be denied and were not",
        "       0  would not be denied any more",
        "       0  would be denied as before",
        "",
        "Would be denied",
    ]
    assert lines[6] == "  team/Job/train  2 pods  gpu-requests"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        pytest.param("spec: {rules: {gpu-request: {}}}", "gpu-requests", id="documents"),
        pytest.param("", "No such file", id="log"),
    ],
)
def test_bad_input_is_exit_2_and_says_where(
    tmp_path: Path, directory: Callable[..., str], broken: str, says: str
) -> None:
    new = directory("new")
    if broken:
        path = Path(new) / "policy.yaml"
        path.write_text(path.read_text().partition("spec:")[0] + broken)

    result = text("--config", new, str(tmp_path / "missing.jsonl"))

    assert result.exit_code == 2
    assert says in result.stderr
