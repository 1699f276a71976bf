"""Another mutating webhook, called after ours: what it adds is looked at, what it takes out is noticed, and nothing loops."""

from collections.abc import Iterator

import pytest

from tests.builders import JSON, container, gpu_container, pod
from tests.cluster.applying import apply, named, stored
from tests.cluster.configuration import default_policy
from tests.cluster.other_webhook import Change, OtherWebhook
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, serving

POLICY = default_policy(
    {"gpu-requests": {"maxPerContainer": 8}, "gpu-class": {"default": "nvidia-a100-80gb"}}
)
NAMESPACE = "shared"
TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[Webhook]:
    with serving(plane, POLICY, NAMESPACE) as running:
        yield running


@pytest.fixture(scope="module")
def other(
    plane: ControlPlane,
    webhook: Webhook,  # noqa: ARG001  it has to be registered first
) -> Iterator[OtherWebhook]:
    with OtherWebhook(plane, NAMESPACE) as other:
        yield other


def adds(added: JSON) -> Change:
    """Return the change of an injector: its container, unless the pod has it."""

    def change(document: JSON) -> None:
        containers = document["spec"]["containers"]
        if not any(present["name"] == added["name"] for present in containers):
            containers.append(added)

    return change


def strips(document: JSON) -> None:
    document["spec"]["tolerations"] = [
        t for t in document["spec"].get("tolerations", []) if t["key"] != TOLERATION["key"]
    ]


def creating(plane: ControlPlane, name: str, *containers: JSON) -> tuple[bool, str]:
    return apply(plane, named(name, pod(*containers), NAMESPACE))


def lines_of(webhook: Webhook, name: str) -> list[tuple[str, str]]:
    return [(line["phase"], line["verdict"]) for line in webhook.audit() if line["name"] == name]


WRONG = gpu_container("9", "helper")
TOLD = ('(container "helper") = "9"', "at most 8 per container")


def test_a_wrong_container_added_to_a_gpu_pod_is_refused_when_we_are_asked_again(
    plane: ControlPlane, other: OtherWebhook
) -> None:
    with other.in_force(adds(WRONG)):
        accepted, said = creating(plane, "injected", gpu_container())

    assert not accepted
    assert 'admission webhook "pods.mutate.gpu-admission.dev" denied the request' in said
    assert all(words in said for words in TOLD), said


def test_a_wrong_container_added_to_a_pod_that_we_never_mutated_is_refused_by_validate(
    plane: ControlPlane, other: OtherWebhook
) -> None:
    # Without a GPU it did not concern us, so there is no second call to /mutate either.
    with other.in_force(adds(WRONG)):
        accepted, said = creating(plane, "injected", container())

    assert not accepted
    assert 'admission webhook "pods.validate.gpu-admission.dev" denied the request' in said
    assert all(words in said for words in TOLD), said


def test_a_sound_container_added_to_a_pod_that_we_never_mutated_is_told_what_it_lacks(
    plane: ControlPlane, other: OtherWebhook
) -> None:
    with other.in_force(adds(gpu_container("1", "helper"))):
        accepted, said = creating(plane, "late", container())

    assert accepted, said
    assert ": toleration nvidia.com/gpu:NoSchedule is missing from the final pod" in said
    assert "[gpu-toleration]" in said


def test_both_converge(plane: ControlPlane, webhook: Webhook, other: OtherWebhook) -> None:
    with other.in_force(adds(gpu_container("1", "helper")), reinvocation="IfNeeded"):
        accepted, said = creating(plane, "both", gpu_container("1", "train"))

    assert accepted, said
    assert "Warning" not in said
    spec = stored(plane, "both", NAMESPACE)["spec"]
    assert [each["name"] for each in spec["containers"]] == ["train", "helper"]
    assert spec["tolerations"].count(TOLERATION) == 1
    assert lines_of(webhook, "both") == [
        ("mutate", "patched"),
        ("mutate", "allowed"),
        ("validate", "allowed"),
    ]
    assert other.calls == 1


def test_what_is_stripped_once_is_added_again(
    plane: ControlPlane, webhook: Webhook, other: OtherWebhook
) -> None:
    with other.in_force(strips):
        accepted, said = creating(plane, "stripped-once", gpu_container())

    assert accepted, said
    assert TOLERATION in stored(plane, "stripped-once", NAMESPACE)["spec"]["tolerations"]
    assert lines_of(webhook, "stripped-once") == [
        ("mutate", "patched"),
        ("mutate", "patched"),
        ("validate", "allowed"),
    ]
    assert other.calls == 1


def test_what_is_stripped_every_time_does_not_loop_and_is_told(
    plane: ControlPlane, webhook: Webhook, other: OtherWebhook
) -> None:
    with other.in_force(strips, reinvocation="IfNeeded"):
        accepted, said = creating(plane, "stripped", gpu_container())

    assert accepted, said
    assert TOLERATION not in stored(plane, "stripped", NAMESPACE)["spec"]["tolerations"]
    assert ": toleration nvidia.com/gpu:NoSchedule is missing from the final pod" in said
    assert "a mutating webhook after gpu-admission took it out" in said
    assert other.calls == 2
    lines = [line for line in webhook.audit() if line["name"] == "stripped"]
    assert [(line["phase"], line["verdict"]) for line in lines] == [
        ("mutate", "patched"),
        ("mutate", "patched"),
        ("validate", "warned"),
    ]
    [finding] = lines[-1]["findings"]
    assert (finding["rule"], finding["outcome"]) == ("gpu-toleration", "warned")
