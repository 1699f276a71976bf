"""Changes of the pods, claims and nodes of a cluster in any order, with the sums that are kept and a full count."""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from policies.gpus.device_types import DeviceType, DeviceTypes
from policies.gpus.mapping_spec import DerivedMappingSpec
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import HOSTNAME, NamedNode, NodeIndex
from policies.quota.amounts import ZERO, Amounts, total
from policies.quota.catalogue import PublishedCatalogue
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import Holder
from policies.quota.ledger.reservations import Reservation
from tests.builders import JSON, gpu_container, pod, quota_ledger
from webhook.configuration.loader import load_directory
from webhook.controller.namespace_sum import anchored_clock
from webhook.controller.usage_sums import UsageSums
from webhook.quota.counted_records import ClaimHistory, CountedClaim, CountedPod, CountedRecord

BUILT_IN = load_directory(None)
KINDS = DeviceTypes((DeviceType("gpu.nvidia.com"), DeviceType("gpu.nvidia.com", card_parts=720)))
CATALOGUES_CONFIG_MAP = PublishedCatalogue(
    BUILT_IN.classes,
    ResourceMapping(
        (
            DerivedMappingSpec(
                device_types=KINDS, types_by_class={"gpu.nvidia.com": (0, 1), "slice.nvidia.com": (1,)}
            ),
            *BUILT_IN.resource_mapping.specs,
        )
    ),
)
DEVICES = ("card", "slice")
HARD = {
    key: Fraction(9) for key in ("gpus", "classes/nvidia-t4", "classes/nvidia-l4", "resources/nvidia.com/gpu")
}
NAMES, NODES, SPACES = "ab", "xy", ("team", "other")
UIDS = [f"{name}{number}" for name in NAMES for number in (1, 2, 3)]
"""Of two objects of each name in the first namespace, one after the other, and of one in the second."""
DEVICE = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
uids = st.sampled_from(UIDS)
requests = st.sampled_from(
    [("nvidia.com/gpu", "1"), ("nvidia.com/mig-1g.10gb", "3"), (DEVICE, "1"), (DEVICE, "2")]
)
places = st.sampled_from(
    [
        {},
        {"nodeName": "x"},
        {"nodeName": "y"},
        {"nodeSelector": {HOSTNAME: "x"}},
        {"nodeSelector": {"accelerator": "nvidia-t4"}},
    ]
)
label_sets = st.sampled_from([(), (("accelerator", "nvidia-t4"),), (("accelerator", "nvidia-l4"),)])


def raw(document: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(document))


class Stored:
    """What a cluster has, and a count of all of it."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        """What slices say of devices."""
        self.sums = UsageSums(
            CATALOGUES_CONFIG_MAP, ClaimHistory(), lambda *names: self.kinds.get(names[-1]), anchored_clock()
        )
        self.bound: dict[str, int] = {}
        """By uid of a pod: its version when it was first seen with a node and claims."""
        self.reached: defaultdict[str, int] = defaultdict(int)
        self.pods: dict[str, CountedPod] = {}
        self.claims: dict[str, CountedClaim] = {}
        self.final: dict[str, str] = {}
        """By uid of a claim that has its devices for good: that of its pod."""
        self.nodes: dict[str, NamedNode] = {}
        self.gone: dict[str, NamedNode] = {}

    def objects(
        self, namespace: str, unclassified_pods: UnclassifiedPods
    ) -> dict[str, tuple[CountedRecord, Amounts]]:
        """Return each live object and its demand, by uid."""
        nodes = NodeIndex(
            CATALOGUES_CONFIG_MAP.classes.label_keys, (*self.nodes.values(), *self.gone.values())
        )
        live = {
            uid: (each, self.sums.reader.demand_of_pod(each, unclassified_pods, nodes))
            for uid, each in self.pods.items()
            if each.namespace == namespace and not each.is_terminal
        }
        counted = {(uid, each.extended_claim): demand for uid, (each, demand) in live.items()}
        claims = {
            uid: (
                each,
                self.sums.reader.demand_of_claim(each, unclassified_pods, counted, self.kinds_of(each)),
            )
            for uid, each in self.claims.items()
            if each.namespace == namespace
        }
        return {**live, **claims}

    def kinds_of(self, claim: CountedClaim) -> tuple[int | None, ...]:
        """Return the kinds of the devices that a claim has for good."""
        kinds = tuple(self.kinds.get(each.name) for each in claim.devices)
        return kinds if self.is_final(claim) and any(kind is not None for kind in kinds) else ()

    def is_final(self, claim: CountedClaim) -> bool:
        if self.final.get(claim.uid) == claim.pod and {*claim.reserved_for} <= {claim.pod}:
            return True
        pod = self.pods.get(claim.pod)
        if pod is None or pod.is_terminal or not pod.node_name or pod.namespace != claim.namespace:
            return False
        is_of_pod = claim.name in {pod.extended_claim, *pod.generated_claims}
        is_reached = self.bound.get(pod.uid, 0) <= self.reached[pod.namespace]
        return is_of_pod and is_reached and pod.uid in claim.reserved_for

    def note_final(self) -> None:
        final = {uid: claim.pod for uid, claim in self.claims.items() if self.is_final(claim)}
        self.final = {uid: pod for uid, pod in (self.final | final).items() if uid in self.claims}

    def forget_nodes(self) -> None:
        left = {each.node_name for each in self.pods.values()}
        self.gone = {name: node for name, node in self.gone.items() if name in left}


def largest(objects: dict[str, tuple[CountedRecord, Amounts]], key: str) -> tuple[Holder, ...]:
    held: defaultdict[str, Fraction] = defaultdict(Fraction)
    for record, demand in objects.values():
        if demand.get(key):
            held[record.holder] += demand[key]
    first = heapq.nsmallest(5, held.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(Holder(name, str(amount)) for name, amount in first)


class Changes(RuleBasedStateMachine):
    """Whatever comes in whatever order, the sums are those of a full count."""

    def __init__(self) -> None:
        super().__init__()
        self.stored = Stored()
        self.version = 0

    @rule(
        uid=uids,
        requested=requests,
        place=places,
        phase=st.sampled_from(["Pending", "Running", "Running", "Succeeded"]),
        owner=st.sampled_from(["", "train", "serve"]),
        claim=st.sampled_from(["", "claim-a", "claim-b"]),
        generated=st.sampled_from(["", "claim-a", "claim-b"]),
        late=st.booleans(),
    )
    def a_pod_is_there(
        self,
        uid: str,
        requested: tuple[str, str],
        place: dict[str, Any],
        phase: str,
        owner: str,
        claim: str,
        *,
        late: bool,
        generated: str = "",
    ) -> None:
        document = pod(gpu_container(requested[1], resource=requested[0]), **place)
        document["metadata"] = self.metadata(uid)
        if owner:
            document["metadata"]["ownerReferences"] = [{"kind": "Job", "name": owner, "controller": True}]
        status: JSON = {"phase": phase, "extendedResourceClaimStatus": {"resourceClaimName": claim}}
        if generated:
            status["resourceClaimStatuses"] = [
                {"name": "gpu", "resourceClaimName": generated},
                {"name": "no"},
            ]
        document["status"] = status
        other_of_its_name = uid.translate(str.maketrans("13", "31"))
        becomes = [(uid, self.stored.sums.reader.read_pod(raw(document))), (other_of_its_name, None)]
        for each in becomes if late else reversed(becomes):
            self.pod_becomes(*each)

    @rule(uid=uids)
    def a_pod_goes(self, uid: str) -> None:
        self.pod_becomes(uid, None)

    def pod_becomes(self, uid: str, after: CountedPod | None) -> None:
        before = self.stored.pods.pop(uid, None)
        if after is not None:
            self.stored.pods[uid] = after
            if after.node_name and (after.extended_claim or after.generated_claims):
                was = before is not None and before.node_name
                if not (was and before and (before.extended_claim or before.generated_claims)):
                    self.stored.bound[uid] = after.version
        self.stored.sums.pod_changed(before, after)
        self.stored.forget_nodes()

    @rule(
        uid=uids,
        extended_pod=uids | st.just(""),
        count=st.integers(1, 3),
        is_marked=st.booleans(),
        devices=st.lists(st.sampled_from(DEVICES), max_size=3),
        reserved_for=uids,
    )
    def a_claim_is_there(
        self,
        uid: str,
        extended_pod: str,
        count: int,
        *,
        is_marked: bool = True,
        devices: Sequence[str] = (),
        reserved_for: str = "",
        device_class: str = "gpu.nvidia.com",
    ) -> None:
        requests = [{"name": "r", "exactly": {"deviceClassName": device_class, "count": count}}]
        metadata = self.metadata(f"claim-{uid}")
        if extended_pod:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": extended_pod, "controller": True}
            metadata["ownerReferences"] = [owner]
        if extended_pod and is_marked:
            metadata["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
        names = {"request": "r", "driver": "gpu.nvidia.com", "pool": "x"}
        results = [{**names, "device": each} for each in devices]
        consumer = {"resource": "pods", "name": "p", "uid": reserved_for}
        status = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [consumer] if reserved_for else [],
        }
        document = {"metadata": metadata, "spec": {"devices": {"requests": requests}}, "status": status}
        self.claim_becomes(f"claim-{uid}", self.stored.sums.reader.read_claim(raw(document)))

    @rule(uid=uids)
    def a_claim_goes(self, uid: str) -> None:
        self.claim_becomes(f"claim-{uid}", None)

    def claim_becomes(self, uid: str, after: CountedClaim | None) -> None:
        before = self.stored.claims.pop(uid, None)
        if after is not None:
            is_lost = before is not None and not after.devices and self.stored.is_final(after)
            kept = before.devices if before is not None and is_lost else after.devices
            self.stored.claims[uid] = msgspec.structs.replace(after, devices=kept)
        self.stored.sums.claim_changed(before, after)

    @rule(
        name=st.sampled_from(NODES),
        number=st.integers(1, 2),
        labels=label_sets,
        hostname=st.sampled_from("xy"),
    )
    def a_node_is_there(self, name: str, number: int, labels: Any, hostname: str) -> None:
        before, after = self.stored.nodes.get(name), NamedNode(f"{name}{number}", name, hostname, labels)
        if before is not None and before.uid != after.uid:
            self.a_node_goes(name)
            before = None
        self.stored.nodes[name] = after
        self.stored.gone.pop(name, None)
        self.stored.sums.node_changed(before, after)

    @rule(name=st.sampled_from(NODES))
    def a_node_goes(self, name: str) -> None:
        before = self.stored.nodes.pop(name, None)
        if before is not None:
            self.stored.gone[name] = before
            self.stored.forget_nodes()
        self.stored.sums.node_changed(before, None)

    @rule(kinds=st.dictionaries(st.sampled_from(DEVICES), st.integers(0, 1)))
    def slices_change(self, kinds: dict[str, int]) -> None:
        self.stored.kinds = kinds
        self.stored.sums.slices_changed()

    @rule(namespace=st.sampled_from(SPACES), ago=st.integers(0, 3))
    def claims_are_listed(self, namespace: str, ago: int) -> None:
        """List the claims some versions ago."""
        sums, revision = self.stored.sums, self.version - ago
        bound = [
            self.stored.bound[uid]
            for uid, pod in self.stored.pods.items()
            if pod.namespace == namespace and uid in self.stored.bound
        ]
        sums.claims_reached(namespace, revision)
        if namespace in sums._namespaces:
            self.stored.reached[namespace] = max(self.stored.reached[namespace], revision)
        assert sums.last_binding(namespace) in {0, *bound}

    @rule()
    def what_nobody_counts_is_forgotten(self) -> None:
        self.stored.sums.keep([("team", UnclassifiedPods.MOST_EXPENSIVE)])

    @rule(namespace=st.sampled_from(SPACES), keys=st.sets(st.sampled_from(sorted(HARD)), min_size=1))
    def it_is_counted(self, namespace: str, keys: set[str]) -> None:
        for unclassified_pods in UnclassifiedPods:
            self.check(namespace, unclassified_pods, {key: HARD[key] for key in keys})

    @invariant()
    def all_is_counted(self) -> None:
        self.stored.note_final()
        self.check("team", UnclassifiedPods.MOST_EXPENSIVE, HARD)
        assert self.stored.sums.recount("team")

    def check(self, namespace: str, unclassified_pods: UnclassifiedPods, hard: Amounts) -> None:
        objects = self.stored.objects(namespace, unclassified_pods)
        names = [f"pods/{name}" for name in NAMES]
        wanted = [Reservation(uid, {"gpus": Fraction(1)}, name=names[0]) for uid in (*UIDS, "never-seen")]
        by_name = [Reservation(f"n{each}", {"gpus": Fraction(1)}, name=each) for each in names]
        of = quota_ledger(*wanted, *by_name, hard=hard)

        counted, holders, found_by_uid = self.stored.sums.sum(namespace, unclassified_pods, of)

        used = total(demand for _, demand in objects.values())
        assert counted == {key: used.get(key, ZERO) for key in of.dimensions}
        shown = {key: largest(objects, key) for key in hard}
        assert holders == {key: each for key, each in shown.items() if each}
        pods = {uid: each for uid, each in self.stored.pods.items() if each.namespace == namespace}
        assert found_by_uid.keys() == pods.keys()
        for uid, each in pods.items():
            found = found_by_uid[uid]
            assert (found.terminal, found.version) == (each.is_terminal, each.version)
            assert found.name == f"pods/{each.name}"
            assert each.is_terminal or found.demand == objects[uid][1]

    def used(self, key: str) -> Fraction:
        self.all_is_counted()
        return self.stored.sums.sum("team", UnclassifiedPods.MOST_EXPENSIVE, quota_ledger(hard=HARD))[0][key]

    def metadata(self, uid: str) -> dict[str, Any]:
        """Return the metadata of the next version of an object: its namespace and name are of its uid."""
        self.version += 1
        name, namespace = uid[:-1], SPACES[uid.endswith("2")]
        return {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(self.version)}
