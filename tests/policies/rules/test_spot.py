"""spot: GPU pods that can be interrupted run on the spot pool, and no others."""

from typing import Any

from policies.finding import Severity
from policies.placement.nodes import NodeFacts
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rule import Mode, Phase
from policies.rules.spot import SpotOptions, SpotPods, check, mutate
from tests.builders import JSON, apply, container, context, gpu_container, pod, view
from tests.cases import cases

SPOT = "gpu-admission.dev/spot"
PHASE = "gpu-admission.dev/model-phase"
KEY = "cloud.google.com/gke-spot"
POOL: dict[str, Any] = {
    "mode": Mode.ENFORCE,
    "node_selector": {KEY: "true"},
    "tolerations": (Toleration(key=KEY, operator="Equal", value="true", effect="NoSchedule"),),
    "min_termination_seconds": 120,
}
ANNOTATED = SpotOptions(**POOL)
ALL = SpotOptions(**POOL, pods=SpotPods.ALL)
SERVING = SpotOptions(**POOL, pods=SpotPods.ALL, serving=True)
TOLERATION = {"key": KEY, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
MOVED = {"nodeSelector": {KEY: "true"}, "tolerations": [TOLERATION], "terminationGracePeriodSeconds": 120}


def job(annotation: str | None = "true", **spec: Any) -> JSON:
    """Return the GPU pod of a Job, with the annotation."""
    annotations = {SPOT: annotation} if annotation is not None else None
    return pod(gpu_container(), annotations=annotations, **{"restartPolicy": "Never", **spec})


def moved(document: JSON, options: SpotOptions, **tweaks: Any) -> JSON:
    """Return what /mutate adds to the spec; a second pass adds nothing, and nothing is said of what moved."""
    known = context(Phase.MUTATE, **tweaks)
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, known)) == []
    again = PodPatch(patch.pod)
    list(mutate(again, options, known))
    assert again.changes == []
    assert not patch.changes or list(check(patch.pod, options, known)) == []
    before, after = document["spec"], apply(document, patch)["spec"]
    return {key: value for key, value in after.items() if before.get(key) != value}


@cases(
    ("document", "options", "want"),
    annotated_job=(job(), ANNOTATED, MOVED),
    every_job_of_the_namespace=(job(None), ALL, MOVED),
    declared_training_that_always_restarts=(
        pod(gpu_container(), annotations={PHASE: "training"}, restartPolicy="Always"),
        ALL,
        MOVED,
    ),
    server_where_the_policy_says_so=(pod(gpu_container()), SERVING, MOVED),
    longer_grace_period_stays=(
        job(terminationGracePeriodSeconds=600),
        ANNOTATED,
        {"nodeSelector": {KEY: "true"}, "tolerations": [TOLERATION]},
    ),
    what_is_there_already=(
        job(
            terminationGracePeriodSeconds=30,
            nodeSelector={KEY: "true"},
            tolerations=[{"operator": "Exists"}],
        ),
        ANNOTATED,
        {"terminationGracePeriodSeconds": 120},
    ),
    default_grace_period_is_enough=(
        job(nodeSelector={"zone": "a"}),
        SpotOptions(mode=Mode.ENFORCE, node_selector={KEY: "true"}, min_termination_seconds=30),
        {"nodeSelector": {"zone": "a", KEY: "true"}},
    ),
)
def test_moved(document: JSON, options: SpotOptions, want: JSON) -> None:
    assert moved(document, options) == want


CLAIMING = pod(restartPolicy="Never", resourceClaims=[{"name": "it", "resourceClaimName": "it"}])


def test_a_claim_of_gpus_is_moved() -> None:
    assert moved(CLAIMING, ALL, device_classes=("gpu.nvidia.com",)) == MOVED


NO_POOL = NodeFacts(keys=frozenset({KEY}), label_sets=frozenset({()}))
NO_ROOM = NodeFacts(
    keys=frozenset({KEY, "zone"}), label_sets=frozenset({((KEY, "true"), ("zone", "b")), (("zone", "a"),)})
)


@cases(
    ("document", "options", "tweaks"),
    not_annotated=(job(None), ANNOTATED, {}),
    annotated_false=(job("false"), ANNOTATED, {}),
    no_gpu=(pod(container(), annotations={SPOT: "true"}), ALL, {}),
    a_claim_that_nobody_knows=(CLAIMING, ALL, {"device_classes": ()}),
    server=(pod(gpu_container(), restartPolicy="Always"), ALL, {}),
    restart_policy_left_out_is_always=(pod(gpu_container()), ALL, {}),
    phase_that_is_not_valid=(pod(gpu_container(), annotations={PHASE: "dreaming"}), ALL, {}),
    on_demand_by_its_own_selector=(job(None, nodeSelector={KEY: "false"}), ALL, {}),
    daemonset=(job(None), ALL, {"made_by_daemonset": True}),
    node_name=(job(None, nodeName="node-1"), ALL, {}),
    gated=(job(None, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]), ALL, {}),
    no_spot_node_in_its_zone=(job(None, nodeSelector={"zone": "a"}), ALL, {"nodes": NO_ROOM}),
)
def test_left_where_it_is(document: JSON, options: SpotOptions, tweaks: Any) -> None:
    assert moved(document, options, **tweaks) == {}


@cases(
    ("document", "tweaks", "want"),
    server=(
        pod(gpu_container(), annotations={SPOT: "true"}),
        {},
        f'declare {PHASE}: "training" where it does not serve; has no effect: the pod restarts always, so it may serve; '
        "or ask the platform team to set spot.serving: true in the GPUPolicy",
    ),
    server_that_no_spot_node_takes=(
        pod(gpu_container(), annotations={SPOT: "true"}, nodeSelector={"zone": "a"}),
        {"nodes": NO_ROOM},
        f'declare {PHASE}: "training" where it does not serve; has no effect: the pod restarts always, so it may serve',
    ),
    constrained=(
        job(nodeSelector={KEY: "false"}),
        {},
        f"remove the constraint; has no effect: the pod constrains node label {KEY} itself",
    ),
    placed=(
        job(nodeName="node-1"),
        {},
        "set the tolerations and the nodeSelector of the pool; has no effect: spec.nodeName says where the pod runs",
    ),
    no_spot_node=(
        job(),
        {"nodes": NO_POOL},
        f"has no effect: no node has the labels of the spot pool ({KEY}=true); ask the platform team for nodes with these labels",
    ),
    no_spot_node_in_its_zone=(
        job(nodeSelector={"zone": "a"}),
        {"nodes": NO_ROOM},
        "remove one of them; has no effect: no node of the spot pool meets the pod's own constraints",
    ),
)
def test_an_annotation_that_has_no_effect(document: JSON, tweaks: Any, want: str) -> None:
    found = list(check(view(document), ANNOTATED, context(**tweaks)))

    sentence = f'metadata.annotations[{SPOT}] = "true": {want}'
    assert [(each.severity, each.sentence()) for each in found] == [(Severity.WARNING, sentence)]


def test_only_the_author_knows_whether_the_pod_serves() -> None:
    server = pod(gpu_container(), annotations={SPOT: "true"})

    [found] = check(view(server), ANNOTATED, context())

    assert (len(found.choices), found.fix) == (1, ())


@cases(
    ("text", "advice"),
    yes=("yes", '"true"'),
    no=("No", '"false"'),
    neither=("cheap", '"true" or "false"'),
)
def test_an_annotation_that_is_not_valid_is_denied(text: str, advice: str) -> None:
    (found,) = check(view(job(text)), ANNOTATED, context())

    assert found.severity is Severity.DENIAL
    assert found.sentence() == (
        f'metadata.annotations[{SPOT}] = "{text}": set {SPOT}: {advice}; must be true or false'
    )


@cases(
    ("options", "want"),
    defaults=(SpotOptions(), []),
    pool=(ALL, []),
    no_pool=(SpotOptions(mode=Mode.WARN), [("nodeSelector", "must have the labels of the spot pool")]),
    everything_wrong=(
        SpotOptions(
            node_selector={"-": "a b"},
            tolerations=(Toleration(operator="Exists"),),
            min_termination_seconds=0,
        ),
        [
            ("tolerations[0].key", "is required: a toleration without a key tolerates every taint"),
            ("nodeSelector[-]", "must be a label key"),
            ("nodeSelector[-]", 'must be a label value, not "a b"'),
            ("minTerminationSeconds", "must be from 1 to 3600, not 0"),
        ],
    ),
)
def test_options(options: SpotOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want
