"""The sentence of a finding, and the way to a pod template in it."""

from typing import Any

import pytest

from policies.finding import Finding, short_path
from policies.policy import Policy, PolicySet, PolicySpec


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param("spec.containers[0].env[1]", "spec.containers[0].env[1]", id="of-a-pod"),
        pytest.param("spec.template.spec.containers[0].env[1]", "containers[0].env[1]", id="of-a-deployment"),
        pytest.param("spec.jobTemplate.spec.template.spec.containers[0]", "containers[0]", id="of-a-cronjob"),
        pytest.param(
            "spec.jobTemplate.spec.initContainers",
            "spec.jobTemplate.spec.initContainers",
            id="of-no-pod-template",
        ),
        pytest.param(
            "spec.template.metadata.annotations[a/b]", "template.metadata.annotations[a/b]", id="metadata"
        ),
        pytest.param(
            "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]",
            "Worker…containers[0]",
            id="one-of-several",
        ),
        pytest.param(
            "spec.workerGroupSpecs[1].template.spec", "workerGroupSpecs[1]…spec", id="whole-of-several"
        ),
        pytest.param("spec.template.spec", "template.spec", id="whole"),
        pytest.param(
            "spec.leaderWorkerTemplate.workerTemplate.spec.volumes",
            "workerTemplate…volumes",
            id="by-its-own-name",
        ),
        pytest.param(
            "metadata.annotations[template.spec.x]", "metadata.annotations[template.spec.x]", id="a-key"
        ),
    ],
)
def test_the_way_to_a_template_is_short(path: str, want: str) -> None:
    assert short_path(path) == want


@pytest.mark.parametrize(
    ("parts", "want"),
    [
        pytest.param({}, "must hold [r]", id="why"),
        pytest.param({"remedy": "set a: 1"}, "set a: 1; must hold [r]", id="what-to-write-first"),
        pytest.param({"remedy": "did you mean a?"}, "did you mean a? Must hold [r]", id="a-question"),
        pytest.param({"ask": "for more"}, "must hold; ask the platform team for more [r]", id="whom-to-ask"),
        pytest.param(
            {"remedy": "set a: 1", "ask": "for more"},
            "set a: 1; must hold; or ask the platform team for more [r]",
            id="what-why-whom",
        ),
        pytest.param(
            {"path": "spec.x", "container": "main", "value": "500m", "reads": "0.5", "remedy": "set a: 1"},
            'spec.x (container "main") = "500m" (0.5): set a: 1; must hold [r]',
            id="after-the-field",
        ),
    ],
)
def test_a_sentence_says_what_to_write_then_why_then_whom_to_ask(parts: dict[str, Any], want: str) -> None:
    assert Finding(rule="r", message="must hold", **parts).sentence() == want


@pytest.mark.parametrize(
    ("contact", "want"),
    [
        pytest.param("", "ask the platform team for more", id="nobody-is-named"),
        pytest.param("#gpu-support", "ask #gpu-support for more", id="a-contact"),
        pytest.param(
            "https://wiki.example.com/gpu",
            "ask the platform team (https://wiki.example.com/gpu) for more",
            id="a-url",
        ),
    ],
)
def test_a_policy_says_whom_to_ask(contact: str, want: str) -> None:
    policy = PolicySet([Policy(name="default", version="1", spec=PolicySpec(help=contact))]).for_namespace(
        "ml"
    )

    assert Finding(rule="r", message="must hold", ask="for more").with_contact(policy.contact).request == want
