"""What evaluations come to: effects by rule, findings by the highest owner, whose denials they are, and bounds."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from policies.quota.amounts import GPUS
from tests.builders import container, gpu_container
from tests.cases import cases
from tests.webhook.tools.scan.evaluated import BY, UNKNOWN, evaluated_pod
from webhook.tools.scan import tally as tallies
from webhook.tools.scan.report import Effect
from webhook.tools.scan.tally import Tally
from webhook.tools.stored_objects import Evaluation, evaluate

PLUGINS = {"name": "plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}


def evaluated_deployment(name: str, **template: Any) -> Evaluation:
    document = {"metadata": {"name": name}, "spec": {"replicas": 1, "template": template}}
    return evaluate("apps", "Deployment", "team", msgspec.json.encode(document), BY)


def test_pods_and_the_template_of_their_owner_share_a_finding() -> None:
    tally = Tally()
    tally.add_owner("team", "ReplicaSet/chat-5d9f", "Deployment/chat")
    spec = {"containers": [gpu_container()]}
    tally.add_workload(evaluated_deployment("chat", metadata={"annotations": UNKNOWN}, spec=spec))
    for index in range(2):
        made = evaluated_pod(f"chat-{index}", owner="ReplicaSet/chat-5d9f", annotations=UNKNOWN)
        tally.add_pod(made, {GPUS: Fraction(1)}, requests_gpus=True)

    (found,) = tally.problems()

    assert (found.owner, found.rule, found.effect) == ("Deployment/chat", "gpu-class", Effect.DENIED)
    assert (found.pods, found.is_written) == (2, True)
    assert found.sentence.startswith("template.metadata.annotations[gpu-admission.dev/gpu-class]")
    assert tally.pod_effects == {Effect.DENIED: 2, Effect.CHANGED: 2}
    assert tally.workload_effects == {Effect.DENIED: 1, Effect.CHANGED: 1}
    (use,) = tally.uses()
    assert (use.gpus, use.pods, use.gpu_pods, use.policy) == (Fraction(2), 2, 2, "built-in")


@cases(
    ("evaluation", "of_stack"),
    a_pod_by_hand=(evaluated_pod("a", annotations=UNKNOWN), False),
    of_a_daemonset=(evaluated_pod("a", annotations=UNKNOWN, owner="DaemonSet/a"), True),
    a_device_plugin=(evaluated_pod(
            "a", gpu_container(volumeMounts=[{"name": "plugins", "mountPath": "/p"}]),
            annotations=UNKNOWN, volumes=[PLUGINS],
        ),
        True),
)  # fmt: skip
def test_whose_pods_a_rule_denies(evaluation: Evaluation, of_stack: bool) -> None:
    tally = Tally()

    tally.add_pod(evaluation, {}, requests_gpus=True)

    denials = (tally.stack_denials, tally.other_denials)
    assert [("team", "gpu-class") in found for found in denials] == [of_stack, not of_stack]


def test_a_denial_that_a_mode_softens_is_one_all_the_same() -> None:
    tally = Tally()
    shown = container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])

    tally.add_pod(evaluated_pod("peek", shown), {}, requests_gpus=False)

    assert tally.pod_effects == {Effect.LOGGED: 1}
    assert tally.other_denials == {("team", "gpu-isolation")}


def test_problems_begin_with_the_worst_effect_and_the_most_pods() -> None:
    tally = Tally()
    peek = evaluated_pod("peek", container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]))
    few, many = (evaluated_pod("a", owner=f"Job/{name}", annotations=UNKNOWN) for name in ("few", "many"))
    for evaluation in (peek, peek, peek, few, many, many):
        tally.add_pod(evaluation, {}, requests_gpus=True)

    assert [(each.effect, each.owner, each.pods, each.is_written) for each in tally.problems()] == [
        (Effect.DENIED, "Job/many", 2, False),
        (Effect.DENIED, "Job/few", 1, False),
        (Effect.LOGGED, "Pod/peek", 3, False),
    ]


def test_so_many_are_listed_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "MAX_LISTED", 2)
    tally = Tally()
    for index in range(5):
        tally.add_pod(evaluated_pod(f"typo-{index}", annotations=UNKNOWN), {}, requests_gpus=True)

    assert len(tally.problems()) == len(list(tally.changes())) == 2
    assert tally.left_out == 6
    assert tally.pod_effects[Effect.DENIED] == 5


def test_controllers_that_name_each_other_end() -> None:
    tally = Tally()
    tally.add_owner("team", "A/a", "B/b")
    tally.add_owner("team", "B/b", "A/a")

    tally.add_pod(evaluated_pod("typo", owner="A/a", annotations=UNKNOWN), {}, requests_gpus=True)

    assert {each.owner for each in tally.problems()} == {"A/a"}
