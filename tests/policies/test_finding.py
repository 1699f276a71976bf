"""The sentence of a finding, and the way to a pod template in it."""

from typing import Any

from policies.finding import Finding, short_path
from policies.policy import Policy, PolicySet, PolicySpec
from tests.cases import cases


@cases(
    ("path", "want"),
    {
        "of-a-pod": ("spec.containers[0].env[1]", "spec.containers[0].env[1]"),
        "of-a-deployment": ("spec.template.spec.containers[0].env[1]", "containers[0].env[1]"),
        "of-a-cronjob": ("spec.jobTemplate.spec.template.spec.containers[0]", "containers[0]"),
        "of-no-pod-template": (
            "spec.jobTemplate.spec.initContainers",
            "spec.jobTemplate.spec.initContainers",
        ),
        "metadata": ("spec.template.metadata.annotations[a/b]", "template.metadata.annotations[a/b]"),
        "one-of-several": (
            "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]",
            "Worker…containers[0]",
        ),
        "whole-of-several": ("spec.workerGroupSpecs[1].template.spec", "workerGroupSpecs[1]…spec"),
        "whole": ("spec.template.spec", "template.spec"),
        "by-its-own-name": (
            "spec.leaderWorkerTemplate.workerTemplate.spec.volumes",
            "workerTemplate…volumes",
        ),
        "a-key": ("metadata.annotations[template.spec.x]", "metadata.annotations[template.spec.x]"),
    },
)
def test_the_way_to_a_template_is_short(path: str, want: str) -> None:
    assert short_path(path) == want


@cases(
    ("parts", "want"),
    {
        "why": ({}, "must hold [r]"),
        "what-to-write-first": ({"remedy": "set a: 1"}, "set a: 1; must hold [r]"),
        "a-question": ({"remedy": "did you mean a?"}, "did you mean a? Must hold [r]"),
        "whom-to-ask": ({"ask": "for more"}, "must hold; ask the platform team for more [r]"),
        "what-why-whom": (
            {"remedy": "set a: 1", "ask": "for more"},
            "set a: 1; must hold; or ask the platform team for more [r]",
        ),
        "after-the-field": (
            {"path": "spec.x", "container": "main", "value": "500m", "reads": "0.5", "remedy": "set a: 1"},
            'spec.x (container "main") = "500m" (0.5): set a: 1; must hold [r]',
        ),
    },
)
def test_a_sentence_says_what_to_write_then_why_then_escalation(parts: dict[str, Any], want: str) -> None:
    assert Finding(rule="r", message="must hold", **parts).sentence() == want


@cases(
    ("contact", "want"),
    {
        "nobody-is-named": ("", "ask the platform team for more"),
        "a-contact": ("#gpu-support", "ask #gpu-support for more"),
        "a-url": (
            "https://wiki.example.com/gpu",
            "ask the platform team (https://wiki.example.com/gpu) for more",
        ),
    },
)
def test_a_policy_says_escalation(contact: str, want: str) -> None:
    policy = PolicySet([Policy(name="default", version="1", spec=PolicySpec(help=contact))]).for_namespace(
        "ml"
    )

    assert (
        Finding(rule="r", message="must hold", ask="for more").with_contact(policy.contact).escalation == want
    )
