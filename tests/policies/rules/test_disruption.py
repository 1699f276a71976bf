"""disruption: bounded runs keep their node, and servers with several replicas have a PodDisruptionBudget."""

from typing import Any

import msgspec

from policies.finding import Severity
from policies.pods.label_selector import LabelSelector
from policies.pods.patch import PodPatch
from policies.pods.workload import NO_OWNER, Owner
from policies.rule import Phase
from policies.rules.disruption import (
    DisruptionOptions,
    PDBSpec,
    ServingWorkload,
    check_pdb,
    check_workload,
    may_stop_at_once,
    mutate,
)
from tests.builders import (
    JSON,
    apply,
    container,
    context,
    deployment,
    gpu_container,
    manifest,
    pod,
    view,
    workload,
)
from tests.cases import cases

KARPENTER, AUTOSCALER = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/safe-to-evict"
BOTH = {KARPENTER: "true", AUTOSCALER: "false"}
BOUNDED: JSON = {"restartPolicy": "Never", "activeDeadlineSeconds": 60}
OPTIONS = DisruptionOptions()
PORTS = [{"containerPort": 8888}]


def kept(document: JSON, owner: Owner = NO_OWNER, **tweaks: Any) -> JSON:
    """Return the annotations of the pod afterwards; a second pass adds no more."""
    known = context(Phase.MUTATE, owner=owner, **tweaks)
    patch = PodPatch(view(document))
    assert list(mutate(patch, OPTIONS, known)) == []
    again = PodPatch(patch.pod)
    list(mutate(again, OPTIONS, known))
    assert again.changes == []
    annotations: JSON = apply(document, patch)["metadata"].get("annotations", {})
    return annotations


def run(annotations: JSON | None = None, **spec: Any) -> JSON:
    return pod(gpu_container(), annotations=annotations, **{**BOUNDED, **spec})


@cases(
    ("document", "owner", "want"),
    bounded=(run(), NO_OWNER, BOTH),
    bounded_by_its_job=(run(activeDeadlineSeconds=None), Owner("Job", completes=True, deadline=60), BOTH),
    what_the_author_says_stays=(run({KARPENTER: "false"}), NO_OWNER, {KARPENTER: "false", AUTOSCALER: "false"}),
    not_bounded=(run(activeDeadlineSeconds=None), Owner("Job", completes=True), {}),
    not_known_to_be_bounded=(run(activeDeadlineSeconds=None), Owner("Job", completes=True, deadline_is_known=False), {}),
    a_bounded_server=(run(restartPolicy="Always"), NO_OWNER, {}),
    a_bounded_notebook=(pod(gpu_container(ports=PORTS), **BOUNDED), NO_OWNER, {}),
    no_gpu=(pod(container(), **BOUNDED), NO_OWNER, {}),
)  # fmt: skip
def test_what_a_pod_gets(document: JSON, owner: Owner, want: JSON) -> None:
    assert kept(document, owner) == want


def selectors(*budgets: JSON) -> tuple[LabelSelector, ...]:
    return tuple(msgspec.convert(each, LabelSelector) for each in budgets)


def server(replicas: int = 2, **spec: Any) -> JSON:
    made = deployment("chat", gpu_container(), replicas=replicas, labels={"app": "chat"})
    made["spec"]["template"]["spec"].update(spec)
    return made


LWS = manifest(
    "leaderworkerset.x-k8s.io/v1",
    "LeaderWorkerSet",
    "chat",
    {
        "replicas": 2,
        "leaderWorkerTemplate": {
            "size": 2, "workerTemplate": {"metadata": {"labels": {"app": "chat"}}, "spec": {"containers": [gpu_container()]}}
        },
    },
)  # fmt: skip
OF_A_GROUP = {"matchLabels": {"leaderworkerset.sigs.k8s.io/name": "chat"}}
OPERATED = manifest(
    "production-stack.vllm.ai/v1", "VLLMRuntime", "chat", {"replicas": 2, "resources": {"gpu": "1"}}
)
OWNED = server()
OWNED["metadata"]["ownerReferences"] = [{"kind": "Rollout", "name": "chat", "controller": True}]


@cases(
    ("document", "budgets", "is_warned"),
    no_budget=(server(), (), True),
    a_budget_of_others=(server(), selectors({"matchLabels": {"app": "other"}}), True),
    a_label_that_no_controller_adds=(server(), selectors({"matchLabels": {"app.kubernetes.io/name": "chat"}}), True),
    another_of_the_labels=(
        server(), selectors({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["chat"]}]}), True,
    ),
    a_budget_of_its_pods=(server(), selectors({"matchLabels": {"app": "chat"}}), False),
    a_budget_of_all=(server(), selectors({}), False),
    a_budget_by_an_expression=(server(), selectors({"matchExpressions": [{"key": "app", "operator": "Exists"}]}), False),
    a_group_without_budget=(LWS, (), True),
    a_label_of_the_controllers=(LWS, selectors(OF_A_GROUP), False),
    an_expression_of_such_a_label=(
        LWS, selectors({"matchExpressions": [
            {"key": "leaderworkerset.sigs.k8s.io/worker-index", "operator": "In", "values": ["0"]}
        ]}), False,
    ),
    budgets_are_not_known=(server(), None, False),
    one_replica=(server(1), (), False),
    an_operator_chooses_the_labels=(OPERATED, (), False),
    its_owner_is_checked=(OWNED, (), False),
    a_run=(server(restartPolicy="Never"), (), False),
    no_gpu=(server(containers=[container()]), (), False),
)  # fmt: skip
def test_servers_without_a_budget(
    document: JSON, budgets: tuple[LabelSelector, ...] | None, is_warned: bool
) -> None:
    subject, held = workload(document), context(Phase.TEMPLATE, pdb_selectors=budgets)
    is_checked = may_stop_at_once(subject, held.resource_mapping)
    found = list(check_workload(subject, OPTIONS, held)) if is_checked else []

    assert [(each.severity, each.sentence()) for each in found] == is_warned * [
        (
            Severity.WARNING,
            'spec.replicas = "2": create one with the labels of the pods and maxUnavailable: 1; a drain of nodes may stop all '
            "replicas at once: no PodDisruptionBudget selects them",
        )
    ]


CHAT = {"matchLabels": {"app": "chat"}}
SCALER = "HorizontalPodAutoscaler chat"


def said(spec: JSON, *servers: ServingWorkload, no_other_pods: bool = True) -> list[str]:
    budget = msgspec.convert(spec, PDBSpec)
    found = check_pdb(budget, servers, context().resource_mapping, no_other_pods=no_other_pods)
    return [each.sentence() for each in found]


def blocks(
    field: str, value: str, pods: int, why: str = "in all", advice: str = "set maxUnavailable: 1"
) -> list[str]:
    return [
        f'spec.{field} = "{value}": {advice}; a drain of a node never ends: no pod of Deployment chat may be evicted '
        f"({pods} {why}) [disruption]"
    ]


INSTEAD = "remove minAvailable and set maxUnavailable: 1"


@cases(
    ("spec", "least", "want"),
    no_pod_may_go=({"maxUnavailable": 0}, None, blocks("maxUnavailable", "0", 3)),
    no_percent_may_go=({"maxUnavailable": "0%"}, None, blocks("maxUnavailable", "0%", 3)),
    a_part_of_a_pod_is_one=({"maxUnavailable": "1%"}, None, []),
    all_must_stay=({"minAvailable": "100%"}, None, blocks("minAvailable", "100%", 3, advice=INSTEAD)),
    as_many_as_there_are=({"minAvailable": 3}, None, blocks("minAvailable", "3", 3, advice=INSTEAD)),
    more_than_there_are=({"minAvailable": 4}, None, blocks("minAvailable", "4", 3, advice=INSTEAD)),
    rounded_up_to_all=({"minAvailable": "67%"}, None, blocks("minAvailable", "67%", 3, advice=INSTEAD)),
    one_may_go=({"minAvailable": "66%"}, None, []),
    two_must_stay=({"minAvailable": 2}, None, []),
    the_least_of_its_autoscaler=(
        {"minAvailable": 2},
        2,
        blocks("minAvailable", "2", 2, f"at the least, by {SCALER}", INSTEAD),
    ),
    fewer_than_its_least=({"minAvailable": 1}, 2, []),
    scaled_to_none_the_first_must_stay=(
        {"minAvailable": 1},
        0,
        blocks("minAvailable", "1", 1, f"at the least, by {SCALER}", INSTEAD),
    ),
    scaled_to_none_no_pod_may_go=({"maxUnavailable": 0}, 0, blocks("maxUnavailable", "0", 1)),
    neither=({}, None, []),
    no_number=({"minAvailable": "some"}, None, []),
    a_number_as_text=({"minAvailable": "300"}, None, []),
    more_digits_than_python_reads=({"minAvailable": "9" * 5000 + "%"}, None, []),
)
def test_budgets_that_block_drains(spec: JSON, least: int | None, want: list[str]) -> None:
    chat = ServingWorkload(workload(server(3)), least, SCALER if least is not None else "")

    assert said({"selector": CHAT, **spec}, chat) == want


def test_a_budget_of_two_servers() -> None:
    both = [ServingWorkload(workload({**server(3), "metadata": {"name": name}})) for name in ("chat", "code")]

    assert said({"selector": CHAT, "maxUnavailable": 0}, *both) == [
        'spec.maxUnavailable = "0": set maxUnavailable: 1; a drain of a node never ends: no pod of Deployment chat and '
        "Deployment code may be evicted (6 in all) [disruption]"
    ]


OTHER_LABELS = [
    "spec.selector: set the labels of the pods; selects no pod, so it protects none: Deployment chat has other labels "
    "[disruption]"
]


@cases(
    ("spec", "document", "no_other_pods", "want"),
    of_other_pods=({"selector": {"matchLabels": {"app": "caht"}}}, server(), True, OTHER_LABELS),
    of_pods_that_may_be_elsewhere=({"selector": {"matchLabels": {"app": "caht"}}}, server(), False, []),
    without_a_selector=({}, server(), False, OTHER_LABELS),
    of_all_pods=({"selector": {}}, server(), True, []),
    of_a_server_without_gpus=({"selector": CHAT}, server(containers=[container()]), True, []),
    of_a_run=({"selector": CHAT}, server(restartPolicy="Never"), True, []),
    of_a_group=({"selector": OF_A_GROUP, "maxUnavailable": 1}, LWS, True, []),
)
def test_what_a_budget_selects(spec: JSON, document: JSON, no_other_pods: bool, want: list[str]) -> None:
    assert said(
        {"maxUnavailable": 0, **spec}, ServingWorkload(workload(document)), no_other_pods=no_other_pods
    )[:1] == (want or blocks("maxUnavailable", "0", 2) * ("selector" in spec and spec["selector"] == {}))
