"""What the scheduler says of a pod besides GPUs, taints and labels: what it means, and what helps."""

from policies.finding import ContactEdit, Edit
from tests.builders import JSON, gpu_container, view
from tests.cases import cases
from webhook.tools.why.explanation import Awaited, Remedy
from webhook.tools.why.unschedulable import UnschedulablePod, insufficient

VOLUME = {"name": "home", "persistentVolumeClaim": {"claimName": "home-ana"}}
POD = view({"spec": {"containers": [gpu_container("1", "x")], "volumes": [VOLUME, {"name": "tmp"}]}})
ENDED, SPREAD = Remedy(awaits=(Awaited.END_OF_POD,)), "spec.topologySpreadConstraints"
AFFINITY, ANTI_AFFINITY = (
    f"spec.affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution"
    for kind in ("podAffinity", "podAntiAffinity")
)
ELSEWHERE = (
    "Node a has free GPUs for it, but the volume of PersistentVolumeClaim home-ana is not there",
    "use a PersistentVolumeClaim whose volume is on nodes with free GPUs (in a cloud, in their zone), or ask #gpus for nodes "
    "with GPUs where the volume is",
    (Remedy(contact_edits=(ContactEdit("Node"),)),),
)
OF_ITS_OWN = "use a PersistentVolumeClaim that several pods may use, or one for each pod"
IN_USE = (
    "Node a has free GPUs for it, but another pod uses the volume of PersistentVolumeClaim home-ana, which only one may use",
    f"{OF_ITS_OWN}, or wait until that pod has ended",
    (ENDED,),
)


def said(
    reasons: str, node: str = "Node a", *, has_siblings: bool = False
) -> list[tuple[str, str, tuple[Remedy, ...]]]:
    words = f"0/3 nodes are available: {reasons}"
    unscheduled = UnschedulablePod(words, POD, ("nvidia.com/gpu",), "#gpus")
    causes = unscheduled.causes(node, has_siblings=has_siblings)
    return [(each.message, each.remedy, each.ways) for each in causes]


@cases(
    ("reasons", "want"),
    a_volume_in_another_zone=(
        "1 node(s) didn't match PersistentVolume's node affinity, 2 Insufficient nvidia.com/gpu",
        ELSEWHERE,
    ),
    a_volume_in_another_zone_as_older_schedulers_say=(
        "1 node(s) had volume node affinity conflict",
        ELSEWHERE,
    ),
    a_volume_with_the_label_of_a_zone=("1 node(s) had no available volume zone", ELSEWHERE),
    a_local_volume=("1 node(s) didn't find available persistent volumes to bind", ELSEWHERE),
    a_node_without_storage=("1 node(s) did not have enough free storage", ELSEWHERE),
    a_volume_of_one_pod=(
        "1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
        IN_USE,
    ),
    a_disk_of_one_pod=("1 node(s) had no available disk", IN_USE),
    too_many_volumes=(
        "1 node(s) exceed max volume count",
        (
            "Node a has free GPUs for it, but it can mount no more volumes",
            "wait until a pod with volumes has ended",
            (ENDED,),
        ),
    ),
    too_many_pods=(
        "1 Too many pods",
        (
            "Node a has free GPUs for it, but it has as many pods as it can",
            "wait until one of them has ended",
            (ENDED,),
        ),
    ),
    spread_over_nodes_without_gpus=(
        "1 node(s) didn't match pod topology spread constraints (missing required label)",
        (
            f"Node a has free GPUs for it, but {SPREAD} count nodes without free GPUs, too",
            f"select the nodes with GPUs in spec.nodeSelector, or remove {SPREAD}, or set whenUnsatisfiable: "
            "ScheduleAnyway in it",
            (Remedy(edits=(Edit(SPREAD),)),),
        ),
    ),
    beside_a_pod_on_a_node_without_gpus=(
        "2 node(s) didn't match pod affinity rules",
        (
            f"Node a has free GPUs for it, but the pods that {AFFINITY} names are elsewhere",
            f"remove {AFFINITY}, or create those pods again on such a node",
            (Remedy(edits=(Edit(AFFINITY),)),),
        ),
    ),
    apart_from_a_pod=(
        "1 node(s) didn't match pod anti-affinity rules",
        (
            f"Node a has free GPUs for it, but {ANTI_AFFINITY} keeps it from a pod there",
            f"remove {ANTI_AFFINITY}, or wait until that pod has ended",
            (Remedy(edits=(Edit(ANTI_AFFINITY),)), ENDED),
        ),
    ),
    kept_away_by_a_pod=(
        "1 node(s) didn't satisfy existing pods anti-affinity rules",
        (
            "Node a has free GPUs for it, but the podAntiAffinity of a pod there keeps it away",
            "wait until that pod has ended",
            (ENDED,),
        ),
    ),
    a_port_of_the_host=(
        "1 node(s) didn't have free ports for the requested pod ports",
        (
            "Node a has free GPUs for it, but another pod has its host ports",
            "remove hostPort and hostNetwork, or wait until that pod has ended",
            (ENDED,),
        ),
    ),
    what_the_node_lacks_besides_gpus=(
        "1 Insufficient cpu, 1 Insufficient memory, 1 Insufficient nvidia.com/gpu",
        (
            "Node a has free GPUs for it, but too little cpu and memory",
            "request less cpu and memory, or wait until it is free",
            (Remedy(awaits=(Awaited.ROOM,)),),
        ),
    ),
    a_claim_without_a_volume=(
        "pod has unbound immediate PersistentVolumeClaims. not found",
        ("PersistentVolumeClaim home-ana has no volume yet", "kubectl describe pvc says why", ()),
    ),
    a_claim_whose_volume_is_gone=(
        "3 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
        (
            "the volume of PersistentVolumeClaim home-ana is gone",
            "create the PersistentVolumeClaim again",
            (),
        ),
    ),
    a_claim_that_does_not_exist=(
        'persistentvolumeclaim "home-ana" not found. not found',
        (
            "PersistentVolumeClaim home-ana is not there",
            "create it, or correct spec.volumes",
            (),
        ),
    ),
)
def test_what_keeps_a_pod_from_a_node_with_free_gpus(
    reasons: str, want: tuple[str, str, tuple[Remedy, ...]]
) -> None:
    assert said(reasons) == [want]


@cases(
    ("volumes", "want"),
    two_claims=(
        [VOLUME, {"name": "data", "persistentVolumeClaim": {"claimName": "data-ana"}}],
        "PersistentVolumeClaim home-ana or data-ana has no volume yet",
    ),
    the_claim_of_an_ephemeral_volume=(
        [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}],
        "the PersistentVolumeClaim of a volume has no volume yet",
    ),
)
def test_which_claim_has_no_volume(volumes: list[JSON], want: str) -> None:
    pod = view({"spec": {"containers": [gpu_container("1", "x")], "volumes": volumes}})
    words = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    (cause,) = UnschedulablePod(words, pod, ("nvidia.com/gpu",), "#gpus").causes("", has_siblings=False)
    assert cause.message == want


@cases(
    ("reasons", "remedy"),
    a_port=(
        "1 node(s) didn't have free ports for the requested pod ports",
        "remove hostPort and hostNetwork",
    ),
    a_volume=("1 node(s) had no available disk", OF_ITS_OWN),
    apart=("1 node(s) didn't match pod anti-affinity rules", f"remove {ANTI_AFFINITY}"),
)
def test_a_pod_does_not_wait_for_another_of_its_object(reasons: str, remedy: str) -> None:
    ((_, found, ways),) = said(reasons, has_siblings=True)
    assert (found, ENDED in ways) == (remedy, False)


def test_nothing_is_said_of_a_node_that_has_other_obstacles() -> None:
    assert said("1 node(s) didn't match pod anti-affinity rules, 1 Insufficient cpu", node="") == []


def test_the_resources_that_nodes_have_too_little_of() -> None:
    words = "0/2 nodes are available: 1 Insufficient rdma/hca_1, 2 Insufficient hugepages-2Mi."
    assert [*insufficient(words)] == ["rdma/hca_1", "hugepages-2Mi"]
