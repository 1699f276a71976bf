"""What keeps a pod from a node, and what it asks of a quota."""

from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from policies.placement.nodes import NO_NODES
from policies.pods.pod import Toleration
from policies.quota.amounts import Hard
from policies.quota.demand import UnclassifiedPods
from policies.quota.spec import QuotaSpec
from tests.builders import JSON, gpu_container, node_affinity, view
from tests.cases import cases
from webhook.cluster.capacity import ClassCapacity, ClassTotals, GPUNode
from webhook.configuration.loader import load_directory
from webhook.quota.documents import IdleGPUs, IdleHolder, QuotaRecord, QuotaStatus
from webhook.tools.status.listed_capacity import node_index, pod_amounts
from webhook.tools.status.quotas import quota_status
from webhook.tools.why.fit import classes_for, idle_owner, node_fits, quota_fit, requested_gpus

CONFIGURATION = load_directory(None)
GPU, A100 = "nvidia.com/gpu", "nvidia-a100-80gb"
TAINT = Toleration(key="dedicated", value="ml", effect="NoSchedule")
PREFERRED = Toleration(key="dedicated", value="ml", effect="PreferNoSchedule")
ASK_WHERE = "if its pods belong there, add to spec.tolerations: "


def node(name: str = "a", *, used: str | dict[str, Fraction] | None = "0", **tweaks: Any) -> GPUNode:
    return GPUNode(
        **{
            "name": name,
            "classes": (A100,),
            "family": "nvidia-a100",
            "labels": {"accelerator": A100, "zone": "a"},
            "taints": (),
            "is_ready": True,
            "is_schedulable": True,
            "allocatable": {GPU: Fraction(8)},
            "used": {GPU: Fraction(used)} if isinstance(used, str) else used,
            "weights": {GPU: Fraction(1)},
            **tweaks,
        }
    )


def one_of_three(**tweaks: Any) -> GPUNode:
    """Return what stands for three nodes that may not be listed, of whose labels only `accelerator` is known."""
    known, labels = frozenset(("accelerator",)), {"accelerator": A100}
    whole = ClassTotals(ClassCapacity(nodes=3), None)
    return node("", labels=labels, known=known, number=3, stands_for=whole, **tweaks)


def pod(gpus: str = "4", **spec: Any) -> JSON:
    return {"spec": {"containers": [gpu_container(gpus, "x")], **spec}}


IN_B, ANY_ZONE, NOT_IN_A = [("zone", "In", "b")], [("zone", "Exists")], [("zone", "NotIn", "a")]
REMOVE_AFFINITY = "if the pod may run there, remove its required node affinity"
UNMATCHED = ("does not match the required node affinity",)
BY_NAME = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}


@cases(
    ("asking", "there", "against", "remedy"),
    fits=(pod(), node(), (), ""),
    fits_as_far_as_is_known=(pod(), node(used=None), (), ""),
    too_few_free=(
        pod(),
        node(used="5"),
        (f"has 3 of 8 {GPU} free, and the pod requests 4",),
        "wait until 4 are free on one node",
    ),
    one_is_lacking=(
        pod("1"),
        node(used="8"),
        (f"has 0 of 8 {GPU} free, and the pod requests 1",),
        "wait until 1 is free on one node",
    ),
    larger_than_the_node=(
        pod("16"),
        node(),
        (f"has 8 {GPU} in all, and the pod requests 16",),
        f"request 8 or less of {GPU}",
    ),
    a_vendor_that_the_node_does_not_have=(
        pod(containers=[{"name": "m", "resources": {"limits": {"amd.com/gpu": "1"}}}]),
        node(taints=(TAINT,)),
        (
            f"has 0 amd.com/gpu in all, but 8 {GPU}, and the pod requests 1",
            "has the taint dedicated=ml:NoSchedule, which the pod does not tolerate",
        ),
        f"request {GPU}, and {ASK_WHERE}{{key: dedicated, operator: Equal, value: ml, effect: NoSchedule}}",
    ),
    whole_cards_where_all_are_slices=(
        pod("1"),
        node(allocatable={GPU: Fraction(0), "nvidia.com/mig-1g.10gb": Fraction(7)}),
        (f"has 0 {GPU} in all, but 7 nvidia.com/mig-1g.10gb, and the pod requests 1",),
        "request nvidia.com/mig-1g.10gb",
    ),
    whole_cards_where_some_are_shared_and_some_sliced=(
        pod("1"),
        node(allocatable={"nvidia.com/gpu.shared": Fraction(4), "nvidia.com/mig-1g.10gb": Fraction(7)}),
        (
            f"has 0 {GPU} in all, but 4 nvidia.com/gpu.shared, 7 nvidia.com/mig-1g.10gb, and the pod requests 1",
        ),
        "request nvidia.com/gpu.shared",
    ),
    whole_cards_where_all_are_shared=(
        pod("1"),
        node(allocatable={"nvidia.com/gpu.shared": Fraction(4)}),
        (f"has 0 {GPU} in all, but 4 nvidia.com/gpu.shared, and the pod requests 1",),
        "request nvidia.com/gpu.shared",
    ),
    a_node_whose_plugin_offers_nothing=(
        pod("1"),
        node(allocatable={GPU: Fraction(0)}),
        (f"has 0 {GPU} in all, and the pod requests 1",),
        "ask why the device plugin of Node a offers none",
    ),
    a_node_that_offers_none_of_two_kinds=(
        pod(containers=[{"name": "m", "resources": {"limits": {GPU: "1", "amd.com/gpu": "1"}}}]),
        node(allocatable={GPU: Fraction(0)}),
        (
            f"has 0 {GPU} in all, and the pod requests 1",
            "has 0 amd.com/gpu in all, and the pod requests 1",
        ),
        "",
    ),
    nodes_whose_plugins_offer_nothing=(
        pod("1"),
        node(name="", number=3, allocatable={}),
        (f"has 0 {GPU} in all, and the pod requests 1",),
        "ask why the device plugin of these nodes offers none",
    ),
    a_taint=(
        pod(),
        node(taints=(TAINT,)),
        ("has the taint dedicated=ml:NoSchedule, which the pod does not tolerate",),
        ASK_WHERE + "{key: dedicated, operator: Equal, value: ml, effect: NoSchedule}",
    ),
    a_taint_without_a_value=(
        pod(),
        node(taints=(Toleration(key="gpu", effect="NoExecute"),)),
        ("has the taint gpu:NoExecute, which the pod does not tolerate",),
        ASK_WHERE + "{key: gpu, operator: Exists, effect: NoExecute}",
    ),
    a_taint_that_goes_by_itself=(
        pod(),
        node(taints=(Toleration(key="node.cilium.io/agent-not-ready", value="true", effect="NoExecute"),)),
        ("has the taint node.cilium.io/agent-not-ready=true:NoExecute, which goes by itself",),
        "wait until Node a has lost this taint",
    ),
    a_taint_whose_value_is_no_text_in_yaml=(
        pod(),
        node(taints=(Toleration(key="example.com/reserved", value="true", effect="NoSchedule"),)),
        ("has the taint example.com/reserved=true:NoSchedule, which the pod does not tolerate",),
        ASK_WHERE + '{key: example.com/reserved, operator: Equal, value: "true", effect: NoSchedule}',
    ),
    a_taint_that_it_tolerates=(
        pod(tolerations=[{"key": "dedicated", "operator": "Exists"}]),
        node(taints=(TAINT,)),
        (),
        "",
    ),
    a_taint_that_keeps_nobody_away=(pod(), node(taints=(PREFERRED,)), (), ""),
    cordoned=(
        pod(),
        node(is_schedulable=False),
        ("is cordoned",),
        "kubectl uncordon a, if it should take pods again",
    ),
    not_ready=(
        pod(),
        node(is_ready=False, taints=(Toleration(key="node.kubernetes.io/not-ready", effect="NoExecute"),)),
        ("is not Ready",),
        "wait until Node a is Ready",
    ),
    cordoned_as_kubectl_does=(
        pod(),
        node(
            is_schedulable=False,
            taints=(Toleration(key="node.kubernetes.io/unschedulable", effect="NoSchedule"),),
        ),
        ("is cordoned",),
        "kubectl uncordon a, if it should take pods again",
    ),
    a_node_that_an_autoscaler_removes=(
        pod(),
        node(taints=(Toleration(key="ToBeDeletedByClusterAutoscaler", value="1795", effect="NoSchedule"),)),
        ("has the taint ToBeDeletedByClusterAutoscaler=1795:NoSchedule, for it will be removed",),
        "wait until there is another node",
    ),
    a_taint_where_all_gpus_are_used=(
        pod(),
        node(taints=(TAINT,), used="8"),
        (
            "has the taint dedicated=ml:NoSchedule, which the pod does not tolerate",
            f"has 0 of 8 {GPU} free, and the pod requests 4",
        ),
        ASK_WHERE
        + "{key: dedicated, operator: Equal, value: ml, effect: NoSchedule}, and wait until 4 are free on one node",
    ),
    of_a_class_too_few_are_free=(
        pod(),
        one_of_three(used="5"),
        (f"has 3 of 8 {GPU} free, and the pod requests 4",),
        "wait until 4 are free on one node",
    ),
    larger_than_any_of_a_class=(
        pod("16"),
        one_of_three(),
        (f"has 8 {GPU} in all, and the pod requests 16",),
        f"request 8 or less of {GPU}",
    ),
    of_a_class_no_node_takes_pods=(
        pod(),
        one_of_three(is_schedulable=False),
        ("is cordoned",),
        "ask to uncordon one of them",
    ),
    of_a_class_all_have_a_taint=(
        pod(),
        one_of_three(taints=(TAINT,)),
        ("has the taint dedicated=ml:NoSchedule, which the pod does not tolerate",),
        ASK_WHERE + "{key: dedicated, operator: Equal, value: ml, effect: NoSchedule}",
    ),
    of_a_class_all_are_starting=(
        pod(),
        one_of_three(taints=(Toleration(key="node.cilium.io/agent-not-ready", effect="NoExecute"),)),
        ("has the taint node.cilium.io/agent-not-ready:NoExecute, which goes by itself",),
        "wait until one of them has lost this taint",
    ),
    other_labels_than_those_of_classes_are_not_known=(
        pod(nodeSelector={"zone": "b"}, affinity=node_affinity(IN_B)),
        one_of_three(),
        (),
        "",
    ),
    a_node_by_name_is_not_known=(pod(affinity=node_affinity(BY_NAME)), one_of_three(), (), ""),
    labels=(
        pod(nodeSelector={"zone": "b", "disk": "ssd"}),
        node(),
        (
            "has no label disk, and nodeSelector demands ssd",
            "has the label zone=a, and nodeSelector demands b",
        ),
        "if the pod may run there, remove nodeSelector disk and zone",
    ),
    one_of_the_terms_is_met=(pod(affinity=node_affinity(IN_B, ANY_ZONE)), node(), (), ""),
    no_term_is_met=(pod(affinity=node_affinity(NOT_IN_A, {})), node(), UNMATCHED, REMOVE_AFFINITY),
    another_node_by_name=(pod(affinity=node_affinity(BY_NAME)), node(), UNMATCHED, REMOVE_AFFINITY),
    the_node_by_name=(pod(affinity=node_affinity(BY_NAME)), node("b"), (), ""),
)
def test_what_keeps_a_pod_from_a_node(
    asking: JSON, there: GPUNode, against: tuple[str, ...], remedy: str
) -> None:
    requested = requested_gpus(view(asking), CONFIGURATION.resource_mapping)
    (found,) = node_fits(view(asking), [there], requested)
    assert (found.against, found.remedy) == (against, remedy)


ROOM = {
    "cpu": 8,
    "memory": 32 * 2**30,
    "pods": 58,
    "ephemeral-storage": 100 * 2**30,
    "vpc.amazonaws.com/efa": 4,
}


def requesting(limits: JSON, **requests: str) -> JSON:
    return {"name": "m", "resources": {"limits": {GPU: "1", **limits}, "requests": {GPU: "1", **requests}}}


@cases(
    ("containers", "used", "against", "remedy", "edits"),
    fits=([requesting({"cpu": "8", "memory": "32Gi"})], {}, (), "", {}),
    more_cores_than_the_node_has=(
        [requesting({"cpu": "32"}, cpu="17")],
        {},
        ("has 8 cpu in all, and the pod requests 17",),
        "request 8 or less of cpu",
        {"limits[cpu]": "8", "requests[cpu]": "8"},
    ),
    more_memory_than_the_node_has_for_two_containers=(
        [requesting({"memory": "20Gi"}), requesting({}, memory="20001Mi")],
        {},
        ("has 32Gi memory in all, and the pod requests 40481Mi",),
        "request 32Gi or less of memory",
        {"limits[memory]": "16Gi", "requests[memory]": "16Gi"},
    ),
    a_disk_that_is_too_small=(
        [requesting({"ephemeral-storage": "150Gi"})],
        {},
        ("has 100Gi ephemeral-storage in all, and the pod requests 150Gi",),
        "request 100Gi or less of ephemeral-storage",
        {"limits[ephemeral-storage]": "100Gi"},
    ),
    fewer_network_cards_than_requested=(
        [requesting({"vpc.amazonaws.com/efa": "32"}, **{"vpc.amazonaws.com/efa": "32"})],
        {},
        ("has 4 vpc.amazonaws.com/efa in all, and the pod requests 32",),
        "request 4 or less of vpc.amazonaws.com/efa",
        {"limits[vpc.amazonaws.com/efa]": 4, "requests[vpc.amazonaws.com/efa]": 4},
    ),
    what_no_node_has=(
        [requesting({"rdma/hca": "1", "hugepages-2Mi": "1Gi"})],
        {},
        (
            "has 0 rdma/hca in all, and the pod requests 1",
            "has 0 hugepages-2Mi in all, and the pod requests 1Gi",
        ),
        "remove rdma/hca from its resources, and remove hugepages-2Mi from its resources",
        {"limits[rdma/hca]": None, "limits[hugepages-2Mi]": None},
    ),
    too_little_is_free=(
        [requesting({}, cpu="4")],
        {"cpu": 5},
        ("has 3 of 8 cpu free, and the pod requests 4",),
        "wait until 4 are free on one node",
        {},
    ),
)
def test_what_a_node_lacks_besides_gpus(
    containers: list[JSON], used: dict[str, int], against: tuple[str, ...], remedy: str, edits: JSON
) -> None:
    asking = view(pod(containers=containers))
    room = {name: Fraction(amount) for name, amount in ROOM.items()}
    there = node(room=room, used={name: Fraction(amount) for name, amount in used.items()} or None)
    (found,) = node_fits(asking, [there], {GPU: Fraction(1)}, (), pod_amounts(asking))
    assert (found.against, found.remedy) == (against, remedy)
    assert {each.path.rpartition("resources.")[2]: each.value for each in found.way.edits} == edits


def test_nothing_is_said_of_what_is_not_known_of_a_node() -> None:
    (found,) = node_fits(view(pod()), [node(room=None)], {GPU: Fraction(4)}, (), {"cpu": Fraction(99)})
    assert found.against == ()


def test_a_startup_taint_of_a_node_pool_goes_by_itself() -> None:
    starting = Toleration(key="example.com/gpu-checks", effect="NoSchedule")
    asking, there = view(pod()), node(taints=(replace(starting, value="running"),))
    requested = requested_gpus(asking, CONFIGURATION.resource_mapping)
    (found,) = node_fits(asking, [there], requested, [starting])
    assert found.against == ("has the taint example.com/gpu-checks=running:NoSchedule, which goes by itself",)


def test_the_node_with_the_least_against_it_comes_first() -> None:
    nodes = [node("a", used="6", is_ready=False), node("c", used="6"), node("b", used="6")]
    asking = view(pod())
    found = node_fits(asking, nodes, requested_gpus(asking, CONFIGURATION.resource_mapping))
    assert [each.name for each in found] == ["b", "c", "a"]


def test_of_a_bound_pod_only_its_own_node_is_shown() -> None:
    found = node_fits(view(pod(nodeName="b")), [node("a"), node("b", used="8")], {GPU: Fraction(4)})
    assert [(each.name, each.free, each.against) for each in found] == [("b", {GPU: Fraction(0)}, ())]


def test_the_classes_of_a_pod() -> None:
    no_nodes, unlabelled = node_index([], CONFIGURATION), node_index([node()], CONFIGURATION)
    labels = {"accelerator": A100, "kubernetes.io/hostname": "a"}
    labelled = node_index([node(labels=labels)], CONFIGURATION)
    by_name = view(pod(nodeSelector={"kubernetes.io/hostname": "a"}))
    assert classes_for(view(pod(nodeSelector={"accelerator": A100})), no_nodes, CONFIGURATION) == (A100,)
    assert classes_for(by_name, unlabelled, CONFIGURATION) == ()
    assert classes_for(by_name, labelled, CONFIGURATION) == (A100,)
    assert classes_for(view(pod()), unlabelled, CONFIGURATION) == ()


@cases(
    ("names", "idle", "want"),
    an_idle_holder=({"Job/a", "Notebook/ana"}, True, "Notebook/ana"),
    one_that_works=({"Job/a"}, True, None),
    where_use_is_not_measured=({"Notebook/ana"}, False, None),
)
def test_who_is_known_to_be_idle(names: set[str], idle: bool, want: str | None) -> None:
    holder = IdleHolder("Notebook/ana", Fraction(2), "2026-11-22T02:00:00Z")
    status = QuotaStatus(idle=IdleGPUs(gpus=Fraction(2), holders=(holder,)) if idle else None)
    spec = QuotaSpec(hard=Hard(gpus=8))
    quota = QuotaRecord(namespace="team", uid="", version="", spec=spec, status=status)
    found = idle_owner(quota_status(quota, None), names)
    assert (found and found.owner) == want
    assert idle_owner(None, names) is None


NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
AT_EIGHT, LATELY = "2026-11-22T08:00:00Z", "2026-11-22T08:50:00Z"


@cases(
    ("created", "spec", "is_held", "unbound_since"),
    of_a_pod_that_does_not_exist=(None, {}, False, None),
    of_one_that_runs=(AT_EIGHT, {"nodeName": "a"}, True, None),
    of_one_without_a_node_for_ten_minutes=(LATELY, {}, True, None),
    of_one_without_a_node_for_longer=(AT_EIGHT, {}, True, datetime(2026, 11, 22, 8, 0, tzinfo=UTC)),
    of_one_that_waits_in_line=(AT_EIGHT, {}, False, None),
)
def test_what_a_pod_asks_of_a_quota(
    created: str | None, spec: JSON, is_held: bool, unbound_since: datetime | None
) -> None:
    hard, total = Hard(gpus=8, classes={"nvidia-t4": 8}), UnclassifiedPods.TOTAL_ONLY
    granted = QuotaSpec(hard=hard, stated_unclassified_pods=total)
    quota = QuotaRecord(namespace="team", uid="", version="", spec=granted)
    stored = view({**pod(**spec), "metadata": {"name": "a", "creationTimestamp": created}})
    status = quota_status(quota, None)
    found = quota_fit(stored, quota, status, NO_NODES, CONFIGURATION, NOW, is_held=is_held)
    assert found is not None
    # A node that is not known may be of any class.
    keys = ["gpus", *(["classes/nvidia-t4"] if spec else [])]
    assert [(row.key, row.requested) for row in found.rows] == [(key, Fraction(4)) for key in keys]
    assert found.unbound_since == unbound_since
