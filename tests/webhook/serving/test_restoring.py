"""Updates at /mutate: what was injected at creation is put back if today's rules would inject it, and nothing is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import Mock

import jsonpatch
import msgspec
import pytest

from tests.builders import JSON, gpu_container, pod
from tests.cases import cases
from tests.webhook.serving.served import admission, lines_of, request
from webhook.cluster.namespaces import NamespaceUnknown
from webhook.configuration.documents import Document
from webhook.evaluation.facts import Facts
from webhook.serving.admission_review import AdmissionResponse
from webhook.serving.dispatch import Admission

OWN = {"key": "own", "operator": "Exists"}
LATER = (datetime.now(UTC) + timedelta(days=1)).isoformat()


def by_policy(spec: JSON | None = None, **cluster: Any) -> Admission:
    return admission(Document("GPUPolicy", "default", spec or {}), **cluster)


def authored(**spec: Any) -> JSON:
    return pod(gpu_container(), **{"tolerations": [OWN], **spec})


@pytest.fixture(scope="module")
def stored() -> JSON:
    """Return the pod as it is created under the built-in rules, and bound."""
    answered = by_policy().mutate(request(authored()), monotonic() + 10)
    created: JSON = jsonpatch.apply_patch(authored(), msgspec.json.decode(answered.patch or b"[]"))
    assert len(created["spec"]["tolerations"]) == 2
    created["spec"]["nodeName"] = "gpu-0"
    return created


def update(
    served: Admission, stored: JSON, sent: JSON, deadline: float | None = None, **tweaks: Any
) -> AdmissionResponse:
    return served.mutate(
        request(sent, operation="UPDATE", oldObject=stored, **tweaks), deadline or monotonic() + 10
    )


@pytest.mark.parametrize("dry_run", [False, True])
def test_the_stored_pod_results(stored: JSON, dry_run: bool) -> None:
    answer = update(by_policy(), stored, authored(nodeName="gpu-0"), dryRun=dry_run)

    assert answer.allowed
    assert (
        jsonpatch.apply_patch(authored(nodeName="gpu-0"), msgspec.json.decode(answer.patch or b"")) == stored
    )
    assert answer.audit_annotations is not None
    assert answer.audit_annotations["injected-by"] == "gpu-toleration"


def test_a_warning_about_the_value_that_stays_names_the_pod() -> None:
    served = by_policy({"rules": {"readiness-delay": {"mode": "enforce", "modelLoadSeconds": 60}}})
    probed = authored()
    probed["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 80}, "initialDelaySeconds": 5}
    created = served.mutate(request(probed), monotonic() + 10)
    before = jsonpatch.apply_patch(probed, msgspec.json.decode(created.patch or b""))

    answer = update(served, before, probed)

    assert answer.warnings == (
        'pod ml-training/trainer: spec.containers[0].readinessProbe.initialDelaySeconds = "5": stays 72: '
        "it was raised when the pod was created, and cannot be changed since [readiness-delay]",
    )


@cases(
    ("managed", "is_restored"),
    its_author=([{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:nodeName": {}}}}], True),
    the_scheduler=([], False),
)  # fmt: skip
def test_who_chose_the_node_decides_what_is_injected(managed: JSON, is_restored: bool) -> None:
    """KAI serves no pod that was created with a nodeName: its container got NVIDIA_VISIBLE_DEVICES=void."""
    served = by_policy({"rules": {"gpu-isolation": {"mode": "enforce"}}})
    metadata = {"name": "part", "annotations": {"gpu-fraction": "0.5"}}
    spec = {"containers": [{"name": "app"}], "schedulerName": "kai-scheduler", "nodeName": "gpu-0"}
    bound = {"metadata": metadata, "spec": spec}
    created = served.mutate(request(bound), monotonic() + 10)
    before = jsonpatch.apply_patch(bound, msgspec.json.decode(created.patch or b""))
    before["metadata"]["managedFields"] = managed

    answer = update(served, before, bound)

    assert (b"/spec/containers/0/env" in (answer.patch or b"")) is is_restored


def test_the_audit_line_says_what_was_put_back(tmp_path: Path, stored: JSON) -> None:
    (line,) = lines_of(tmp_path, lambda served: update(served, stored, authored()))

    assert (line["phase"], line["operation"], line["verdict"]) == ("mutate", "UPDATE", "patched")
    assert line["injected"] == [{"rule": "gpu-toleration", "what": "toleration nvidia.com/gpu:NoSchedule"}]


@cases(
    "spec",
    the_rule_only_warns={"rules": {"gpu-toleration": {"mode": "warn"}}},
    the_rule_is_disabled={"rules": {"gpu-toleration": {"mode": "disabled"}}},
    the_policy_is_paused={"pausedUntil": LATER},
    the_namespace_is_exempt={"exemptions": [{"namespaces": ["ml-training"], "reason": "x"}]},
    the_rule_injects_something_else=(
        {"rules": {"gpu-toleration": {"tolerations": [{"key": "nvidia.com/gpu", "value": "present"}]}}}),
)  # fmt: skip
def test_what_todays_rules_do_not_inject_is_not_put_back(stored: JSON, spec: JSON) -> None:
    answer = update(by_policy(spec), stored, authored())

    assert (answer.allowed, answer.patch, answer.warnings) == (True, None, None)


def without_annotation(document: JSON) -> JSON:
    metadata = {key: value for key, value in document["metadata"].items() if key != "annotations"}
    return {**document, "metadata": metadata}


def test_what_the_annotation_does_not_name_is_not_put_back(stored: JSON) -> None:
    assert update(by_policy(), without_annotation(stored), authored()).patch is None


def test_the_annotation_of_the_update_is_not_believed(stored: JSON) -> None:
    sent = authored()
    sent["metadata"]["annotations"] = stored["metadata"]["annotations"]

    assert update(by_policy(), without_annotation(stored), sent).patch is None


TOO_LONG = [{"key": f"k{n}", "operator": "Exists"} for n in range(300)]


@cases(
    ("sent", "tweaks", "restored"),
    what_a_rule_denies_at_creation=(pod(gpu_container("0.5"), tolerations=[OWN]), {}, True),
    too_many_tolerations=(authored(tolerations=TOO_LONG), {}, False),
    not_a_pod=({"metadata": {"name": 7}}, {}, False),
    stored_is_not_a_pod=(authored(), {"stored": {"spec": []}}, False),
    nothing_stored=(authored(), {"stored": None}, False),
    too_late=(authored(), {"deadline": monotonic() - 1}, False),
    ephemeral_containers=(authored(), {"subResource": "ephemeralcontainers"}, False),
    a_resize=(authored(), {"subResource": "resize"}, False),
)
def test_nothing_is_refused(stored: JSON, sent: JSON, tweaks: JSON, restored: bool) -> None:
    answer = update(by_policy(), **{"stored": stored, "sent": sent, **tweaks})

    assert (answer.allowed, answer.status, answer.patch is not None) == (True, None, restored)


def test_a_namespace_whose_labels_are_unknown_is_left_alone(stored: JSON) -> None:
    selected = {"match": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}
    answer = update(
        by_policy(selected, facts=lambda _: Facts(labels_of=Mock(side_effect=NamespaceUnknown("no route")))),
        stored,
        authored(),
    )

    assert (answer.allowed, answer.patch) == (True, None)
