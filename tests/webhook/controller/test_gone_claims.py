"""A deleted claim keeps its demand until the pods that use its devices have ended, in whatever order that is seen."""

import json
import logging
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.reservations import Reservation
from tests import builders
from tests.builders import JSON, container, quota_ledger
from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, status
from tests.webhook.controller.counters import slices_of
from webhook.cluster.collection import ObjectVersion, Position
from webhook.configuration.loader import load_directory
from webhook.controller.namespace_sum import anchored_clock
from webhook.controller.usage_counter import DELETED_OBJECT, UsageCounter, UsageEvents
from webhook.quota.counted_records import ClaimHistory

TEAM = "team"
GPUS = {"gpus": Fraction(9)}


class Cluster:
    """What watches and lists of one namespace show to any number of counters."""

    def __init__(self, server: ApiServer) -> None:
        self.history = ClaimHistory()
        self._server = server
        self._revision = 10

    def counter(self) -> UsageCounter:
        of = UsageCounter(
            self._server.client(),
            load_directory(None),
            UsageEvents(),
            history=self.history,
            slices=slices_of(),
            clock=anchored_clock(),
        )
        self.list(of)
        return of

    def after(self, claimed: JSON, *pods: JSON) -> UsageCounter:
        """Return a counter that was shown a claim, these pods and the deletion of the claim."""
        of = self.counter()
        self.shows(of, claimed, *pods)
        self.shows(of, claimed, deleted=True)
        return of

    def list(self, of: UsageCounter, *, pods: tuple[JSON, ...] = (), claims: tuple[JSON, ...] = ()) -> None:
        """Have lists begin now that show these objects and no others."""
        assert of.claims is not None
        for informer, documents in ((of.pods, pods), (of.claims, claims)):
            record: Any = of.sums.reader.read_pod if informer is of.pods else of.sums.reader.read_claim
            with informer.reading() as started:
                lines = [self._line(each, record) for each in documents]
                self._revision += 1
                informer.merge(TEAM, Position(self._revision, started), lines)

    def shows(self, of: UsageCounter, *documents: JSON, deleted: bool = False) -> None:
        """Have the watch show objects as they are now, or were when they were deleted."""
        assert of.claims is not None
        for document in documents:
            if document["kind"] == "Pod":
                of.pods.event(self._line(document, of.sums.reader.read_pod), deleted=deleted)
            else:
                of.claims.event(self._line(document, of.sums.reader.read_claim), deleted=deleted)

    def _line(self, document: JSON, record: Any) -> ObjectVersion[Any]:
        self._revision += 1
        document["metadata"]["resourceVersion"] = str(self._revision)
        uid = document["metadata"]["uid"]
        return ObjectVersion(
            TEAM, hash(uid), self._revision, record(msgspec.Raw(json.dumps(document).encode()))
        )


def used(of: UsageCounter, *reservations: str) -> int:
    ledger = quota_ledger(*(Reservation(uid, {"gpus": Fraction(1)}) for uid in reservations), hard=GPUS)
    counted = of.count(TEAM, ledger, UnclassifiedPods.TOTAL_ONLY, of.deleted(TEAM), {})
    assert [counted.listing.objects[uid] for uid in reservations] == [DELETED_OBJECT] * len(reservations)
    return int(counted.listing.used["gpus"])


def pod(uid: str = "pod-1", phase: str = "Running") -> JSON:
    uses = [{"name": "gpu", "resourceClaimName": "taken"}]
    document = builders.pod(container("train"), nodeName="x", resourceClaims=uses)
    document["metadata"] |= {"namespace": TEAM, "uid": uid}
    return {**document, "status": {"phase": phase}}


def claim(*pods: str, uid: str = "claim-1", gpus: int = 2) -> JSON:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": gpus}}]
    return {
        "kind": "ResourceClaim",
        "metadata": {"name": "taken", "namespace": TEAM, "uid": uid},
        "spec": {"devices": {"requests": requests}},
        "status": {"reservedFor": [{"resource": "pods", "name": each, "uid": each} for each in pods]},
    }


def in_group(document: JSON, name: str) -> JSON:
    document["spec"]["schedulingGroup"] = {"podGroupName": name}
    return document


def claim_of_group(name: str) -> JSON:
    """Return a claim that the resource-claim controller made for a PodGroup (feature gate DRAWorkloadResourceClaims)."""
    consumer = {
        "apiGroup": "scheduling.k8s.io",
        "resource": "podgroups",
        "name": name,
        "uid": f"uid-of-{name}",
    }
    owner = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": name, "controller": True}
    made = claim() | {"status": {"reservedFor": [consumer]}}
    made["metadata"]["ownerReferences"] = [owner | {"uid": f"uid-of-{name}"}]
    return made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    def answer(request: Request) -> Answer:
        if request.path != "/apis/resource.k8s.io":
            return status(404, "not served")
        return Answer(json.dumps({"versions": [{"version": "v1"}]}).encode())

    with ApiServer(tmp_path, answer) as server:
        yield Cluster(server)


@pytest.mark.parametrize("end", [pod(phase="Succeeded"), None], ids=["it-succeeds", "it-is-deleted"])
def test_a_deleted_claim_counts_until_its_pod_has_ended(cluster: Cluster, end: JSON | None) -> None:
    of = cluster.after(claim("pod-1"), pod())

    assert used(of, "claim-1") == 2
    cluster.shows(of, end or pod(), deleted=end is None)
    assert used(of) == 0
    assert cluster.history.namespaces() == []


def test_a_claim_that_no_pod_has_any_more_is_free_at_once(cluster: Cluster) -> None:
    """As it mostly is: the resource-claim controller takes the pod off it first."""
    of = cluster.counter()
    cluster.shows(of, claim("pod-1"), pod(), claim())
    cluster.shows(of, claim(), deleted=True)

    assert used(of) == 0


def test_the_last_of_several_pods_frees_it(cluster: Cluster) -> None:
    of = cluster.after(claim("pod-1", "pod-2"), pod("pod-1"), pod("pod-2"))

    cluster.shows(of, pod("pod-1"), deleted=True)
    assert used(of) == 2
    cluster.shows(of, pod("pod-2"), deleted=True)
    assert used(of) == 0


def test_a_claim_of_a_pod_group_counts_once_while_its_pods_come_and_go(cluster: Cluster) -> None:
    of = cluster.counter()

    cluster.shows(of, claim_of_group("ring"), *(in_group(pod(each), "ring") for each in ("pod-1", "pod-2")))

    assert used(of) == 2
    cluster.shows(of, pod("pod-1"), pod("pod-2"), deleted=True)
    assert used(of) == 2, "the group has the devices until it is deleted"
    cluster.shows(of, claim_of_group("ring"), deleted=True)
    assert used(of) == 0


def test_a_deleted_claim_of_a_pod_group_counts_until_the_pods_of_the_group_have_ended(
    cluster: Cluster,
) -> None:
    other = in_group(pod("pod-3"), "other")
    of = cluster.after(
        claim_of_group("ring"), in_group(pod("pod-1"), "ring"), in_group(pod("pod-2"), "ring"), other
    )

    assert used(of, "claim-1") == 2
    cluster.shows(of, in_group(pod("pod-1"), "ring"), deleted=True)
    assert used(of) == 2
    cluster.shows(of, in_group(pod("pod-2", phase="Failed"), "ring"))
    assert used(of) == 0, "pods of another group are none of its"


def test_a_pod_that_has_ended_stays_ended(cluster: Cluster) -> None:
    """Watches remember a deletion for two minutes only."""
    cluster.after(claim("pod-1", "pod-2"))

    assert cluster.history.gone(TEAM, lambda uid, _: uid == "pod-1").keys() == {"claim-1"}
    assert cluster.history.gone(TEAM, lambda uid, _: uid == "pod-2") == {}


def test_a_new_claim_of_the_same_name_counts_in_addition(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    of = cluster.after(claim("pod-1"), pod())
    assert used(of) == 2

    cluster.shows(of, claim(uid="claim-2", gpus=3), pod("pod-2"))

    with caplog.at_level(logging.ERROR):
        assert used(of) == 5
        of.recount(TEAM)
        assert used(of) == 5
        cluster.shows(of, pod(), deleted=True)
        assert used(of) == 3
        of.recount(TEAM)
    assert caplog.messages == []


def test_a_pod_that_the_watch_has_not_shown_yet_has_not_ended(cluster: Cluster) -> None:
    of = cluster.after(claim("pod-1"))
    assert used(of) == 2

    cluster.shows(of, pod())
    assert used(of) == 2

    cluster.list(of, pods=(pod(),))
    assert used(of) == 2
    gone = monotonic()
    cluster.list(of)
    assert of.pods.position(TEAM).list_started > gone
    assert used(of) == 0


def test_a_counter_that_starts_later_counts_it_too(cluster: Cluster) -> None:
    """A second catalogue: whichever counter hears first that the pod has ended, both know it."""
    first = cluster.after(claim("pod-1"), pod())

    later = cluster.counter()
    cluster.shows(later, pod())

    assert (used(first), used(later)) == (2, 2)
    cluster.shows(later, pod(), deleted=True)
    assert (used(later), used(first)) == (0, 0)


def test_a_process_that_counts_nothing_forgets_it_all_the_same(cluster: Cluster) -> None:
    of = cluster.after(claim("pod-1"), pod())
    of.keep(())
    assert cluster.history.namespaces() == [TEAM]

    cluster.shows(of, pod(), deleted=True)
    of.keep(())

    assert cluster.history.namespaces() == []


def test_a_deleted_claim_of_the_scheduler_keeps_its_demand_beyond_its_pod(cluster: Cluster) -> None:
    of = cluster.counter()
    asks, made = pod(), claim("pod-1", gpus=3)
    asks["spec"].pop("resourceClaims")
    limits = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}
    asks["spec"]["containers"][0]["resources"] = {"limits": limits}
    asks["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "taken"}
    made["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "trainer", "uid": "pod-1", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    cluster.shows(of, asks, made)
    assert used(of) == 3

    cluster.shows(of, made, deleted=True)

    assert used(of) == 3
    of.recount(TEAM)
    cluster.shows(of, asks, deleted=True)
    assert used(of) == 0
