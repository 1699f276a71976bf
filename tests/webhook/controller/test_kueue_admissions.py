"""Which waiting pods Kueue has admitted, and how much, by what an API server has of Kueue; and what a tenant can forge.

A Workload has two pods of one GPU each, if nothing else is said, and so has a pod.
"""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policies.quota.amounts import Amounts
from policies.quota.demand import UnclassifiedPods, pod_demand
from policies.quota.ledger.keeping_objects import Keeper
from tests import builders
from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, answering, group, status
from webhook.configuration.loader import load_directory
from webhook.controller import kueue_admissions
from webhook.controller.kueue_admissions import PODS, Admitted, KueueAdmissions
from webhook.quota.counted_records import CountedPod, WaitingPod
from webhook.workloads.gang_sources import GangSource

API = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{API}/namespaces/team/workloads"
GPU, AT, T4, A100 = "nvidia.com/gpu", "2026-11-22T08:02:00Z", "nvidia-t4", "nvidia-a100"
FLAVORS = [
    {"metadata": {"name": "t4"}, "spec": {"nodeLabels": {"accelerator": T4}}},
    {"metadata": {"name": "a100"}, "spec": {"nodeLabels": {"accelerator": A100}}},
    {"metadata": {"name": "any"}},
]


def waits(uid: str, owner: str = "", **fields: Any) -> CountedPod:
    """Return a pod that waits. `priority`, `since`, `may_start_by_kueue` and `demand` are said if they matter."""
    waiting = WaitingPod(
        0, has_other_gate=False, priority=0, may_start_by_kueue=fields.pop("may_start_by_kueue", True)
    )
    source = GangSource("batch/v1", "Job", owner, uid=owner) if owner else None
    known = {"waiting": waiting, "holds_quota": False, "priority": 0, "since": AT, "demand": gpus_of(T4)}
    found: Any = SimpleNamespace(uid=uid, namespace="team", owner=source, **{**known, **fields})
    record: CountedPod = found
    return record


def runs(uid: str, owner: str = "", **fields: Any) -> CountedPod:
    return waits(uid, owner, **{"waiting": None, "holds_quota": True, **fields})


def gpus_of(gpu_class: str = "", number: float = 1) -> dict[str, Fraction]:
    keys = "gpus", f"resources/{GPU}", *([f"classes/{gpu_class}"] if gpu_class else ())
    return dict.fromkeys(keys, Fraction(number))


def workload(owner: str, gpus: str = "2", state: str = "Admitted", **of: Any) -> JSON:
    conditions = [
        {"type": each, "status": "True", "reason": "x", "message": "", "lastTransitionTime": AT}
        for each in state.split()
    ]
    usage = of.pop("usage", {"cpu": "2", GPU: gpus})
    flavors = dict.fromkeys(usage, of.pop("flavor", "t4"))
    count = of.pop("count", 2)
    assigned = {"name": "main", "count": count, "flavors": flavors, "resourceUsage": usage}
    return {
        "metadata": {"name": owner, "ownerReferences": [{"uid": owner, "kind": "Job"}]},
        "status": {"conditions": conditions, "admission": {"podSetAssignments": [assigned]}, **of},
    }


def demand_if_started(pod: Any, by: UnclassifiedPods) -> Amounts:
    assert by is UnclassifiedPods.MOST_EXPENSIVE
    demand: Amounts = pod.demand
    return demand


def deleted(stored: JSON) -> JSON:
    return {
        **stored,
        "metadata": {**stored["metadata"], "deletionTimestamp": AT, "finalizers": ["example.com/keep"]},
    }


def admissions(
    server: ApiServer, pods: list[CountedPod] | None = None, *, respects: bool = True
) -> KueueAdmissions:
    jobset: Callable[..., Keeper | None] = lambda _namespace, reference, _late: (  # noqa: E731
        Keeper("v1", "JobSet", "s", "set") if reference and reference.name == "of-set" else None
    )
    keepers: Any = SimpleNamespace(of=jobset)
    configuration = load_directory(None)
    sums = SimpleNamespace(pods=lambda _namespace: pods or [], demand_if_started=demand_if_started)
    cache: Any = SimpleNamespace(own_catalogue=lambda: configuration, own_counter=SimpleNamespace(sums=sums))
    return KueueAdmissions(server.client(), cache, keepers, lambda _namespace: respects)


def admitted(
    folder: Path,
    pods: list[CountedPod],
    objects: dict[str, Any],
    *,
    respects: bool = True,
    held: tuple[str, ...] = (),
) -> Admitted:
    with ApiServer(folder, answering(objects)) as server:
        kueue = admissions(server, pods, respects=respects)
        return kueue.of("team", [pod for pod in pods if pod.waiting], held)


def kueue(*workloads: JSON, **objects: Any) -> dict[str, Any]:
    return {
        "/apis/kueue.x-k8s.io": group("v1beta2"),
        WORKLOADS: list(workloads),
        f"{API}/resourceflavors": FLAVORS,
        **objects,
    }


@cases(
    ("pods", "workloads", "uids", "number"),
    of_a_job=([waits("a", "job"), waits("b", "job")], [workload("job")], "ab", 2),
    itself=([waits("a")], [workload("a", "1", count=1)], "a", 1),
    of_a_jobset_by_its_job=([waits("a", "of-set")], [workload("set")], "a", 2),
    several_workloads_add_up=([waits("a", "job")], [workload("job"), workload("other", "4")], "a", 6),
    less_what_succeeded_and_kueue_took_back=(
        [waits("a", "job")],
        [workload("job", reclaimablePods=[{"name": "main", "count": 1}])],
        "a",
        1,
    ),
    nothing_once_all_have_succeeded=(
        [waits("a", "job")],
        [workload("job", reclaimablePods=[{"name": "main", "count": 9}])],
        "",
        0,
    ),
    not_what_has_reserved_only=([waits("a", "job")], [workload("job", state="QuotaReserved")], "", 0),
    not_what_has_finished=([waits("a", "job")], [workload("job", state="Admitted Finished")], "", 0),
    not_what_another_cluster_runs=([waits("a", "job")], [workload("job", clusterName="other")], "", 0),
    not_what_is_being_deleted=([waits("a", "job")], [deleted(workload("job"))], "", 0),
    not_a_pod_of_another_object_under_its_label=([waits("a", "forged")], [workload("job")], "", 2),
    not_a_pod_that_names_no_kueue=([waits("a", "job", may_start_by_kueue=False)], [workload("job")], "", 0),
    nothing_of_an_amount_that_is_none=([waits("a", "job")], [workload("job", "many")], "", 0),
)
def test_what_kueue_has_admitted(
    tmp_path: Path, pods: list[CountedPod], workloads: list[JSON], uids: str, number: int
) -> None:
    found = admitted(tmp_path, pods, kueue(*workloads))

    amounts = {key: amount for key, amount in found.amounts.items() if key != PODS}
    assert (found.uids, amounts) == (frozenset(uids), gpus_of(T4, number) if number else {})


FULL = [runs("1", "job"), runs("2", "job")]
LATER = "2026-11-22T08:03:00Z"
HALF = gpus_of(T4, 0.5)


@cases(
    ("pods", "uids"),
    one_for_each_of_its_pods=([waits("a", "job"), waits("b", "job")], "ab"),
    no_more_pods_than_it_has=([waits("a", "job"), waits("b", "job"), waits("c", "job")], "ab"),
    nor_smaller_ones=([waits(uid, "job", demand=HALF) for uid in "abc"], "ab"),
    nor_larger_ones=([waits("a", "job", demand=gpus_of(T4, 3)), waits("b", "job")], "b"),
    those_that_run_count=([runs("1", "job"), waits("a", "job"), waits("b", "job")], "a"),
    none_beside_all_of_it=([*FULL, waits("a", "job")], ""),
    by_its_jobset_too=([runs("1", "of-set"), runs("2", "of-set"), waits("a", "of-set")], ""),
    what_others_run_does_not_count=(
        [runs("1", "other"), runs("2"), waits("a", "job"), waits("b", "job")],
        "ab",
    ),
    not_on_another_class=([waits("a", "job", demand=gpus_of(A100)), waits("b", "job")], "b"),
    one_that_runs_on_another_class_takes_a_place=(
        [runs("1", "job", demand=gpus_of(A100)), waits("a", "job"), waits("b", "job")],
        "a",
    ),
    one_that_runs_without_gpus_takes_none=(
        [runs("launcher", "job", demand={}), waits("a", "job"), waits("b", "job")],
        "ab",
    ),
    the_oldest_first=([waits("a", "job", since=LATER), waits("b", "job"), waits("c", "job")], "bc"),
    the_highest_priority_first=([waits("a", "job"), waits("b", "job"), waits("c", "job", priority=1)], "ac"),
    first_what_is_held_already=([waits("a", "job"), waits("b", "job"), waits("held", "job")], ("held", "a")),
)
def test_a_pod_goes_only_within_what_its_own_workload_has(
    tmp_path: Path, pods: list[CountedPod], uids: str | tuple[str, ...]
) -> None:
    objects = kueue(workload("job"), workload("set"), workload("larger", "64"))

    assert admitted(tmp_path, pods, objects, held=("held",)).uids == set(uids)


@cases(
    ("flavor", "gpu_class", "is_admitted"),
    the_class_of_the_flavor=("t4", T4, True),
    another_class=("t4", A100, False),
    none_so_it_may_run_on_another_class=("t4", "", False),
    any_class_where_the_flavor_says_none=("any", A100, True),
    none_where_the_flavor_says_none=("any", "", True),
    or_is_gone=("gone", T4, True),
)
def test_a_class_is_that_of_the_flavor(
    tmp_path: Path, flavor: str, gpu_class: str, is_admitted: bool
) -> None:
    selector = {"nodeSelector": {"accelerator": gpu_class}} if gpu_class else {}
    pod = builders.view(builders.pod(builders.gpu_container(1), **selector))
    demand = pod_demand(pod, load_directory(None), UnclassifiedPods.MOST_EXPENSIVE).vector
    pods = [waits("a", "job", demand=demand)]

    found = admitted(tmp_path, pods, kueue(workload("job", flavor=flavor)))

    assert bool(found.uids) is is_admitted


@cases(
    "of_pod",
    whole_card_resources={GPU: 2},
    cards_of_hami_with_a_part_of_their_memory={GPU: 1, f"{GPU}mem": 8000, f"{GPU}cores": 30},
    memory_alone={f"{GPU}mem": 8000},
)
def test_a_workload_has_room_for_as_many_pods_as_it_has(tmp_path: Path, of_pod: dict[str, int]) -> None:
    container = {"name": "main", "image": "x", "resources": {"limits": of_pod}}
    pod = builders.view(builders.pod(container, nodeSelector={"accelerator": T4}))
    demand = pod_demand(pod, load_directory(None), UnclassifiedPods.MOST_EXPENSIVE).vector
    usage = {resource: str(2 * amount) for resource, amount in of_pod.items()}
    pods = [waits(uid, "job", demand=demand) for uid in "abc"]

    found = admitted(tmp_path, pods, kueue(workload("job", usage=usage)))

    assert (found.uids, found.amounts["gpus"]) == (frozenset("ab"), 2 * demand["gpus"])


def test_a_flavor_without_labels_admits_no_class(tmp_path: Path) -> None:
    for flavor in ("any", "gone"):
        found = admitted(tmp_path, [waits("a", "job")], kueue(workload("job", flavor=flavor)))
        assert found.amounts == {PODS: 2, **gpus_of(number=2)}


@cases(
    "objects",
    not_installed={},
    workloads_that_may_not_be_read=kueue(**{WORKLOADS: status(403, "no", "Forbidden")}),
    flavors_that_may_not_be_read=kueue(
        workload("job"), **{f"{API}/resourceflavors": status(403, "no", "Forbidden")}
    ),
    unlike_workloads=kueue(**{WORKLOADS: [{"metadata": 1}]}),
    not_json={**kueue(), WORKLOADS: Answer(b"{")},
)
def test_what_cannot_be_read_is_not_admitted(tmp_path: Path, objects: dict[str, Any]) -> None:
    assert admitted(tmp_path, [waits("a", "job")], objects) == Admitted()


def test_nothing_is_read_where_the_policy_does_not_say_so(tmp_path: Path) -> None:
    objects = kueue(workload("job"))
    assert admitted(tmp_path, [waits("a", "job")], objects, respects=False) == Admitted()


@cases(("number", "seconds"), few_every_second=(2, 1), many_less_often=(2_000, 4))
def test_how_often_workloads_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, seconds: int
) -> None:
    """However often a namespace takes its turn: tenants choose how many pods change, and how many Workloads there are."""
    clock = [0.0]
    monkeypatch.setattr(kueue_admissions, "monotonic", lambda: clock[0])
    objects = kueue(*(workload(str(index)) for index in range(number)))
    with ApiServer(tmp_path, answering(objects)) as server:
        of = admissions(server).of
        lists = []
        for now in (0, seconds - 0.5, seconds):
            clock[0] = now
            assert of("team", [waits("a", "1")], ()).uids == {"a"}
            lists.append(sum(each.path.startswith(WORKLOADS) for each in server.requests))

    assert lists == [lists[0], lists[0], 2 * lists[0]]


def test_it_looks_once_more_for_a_pod_that_is_newer_than_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that names Kueue falsely costs no reads: a pod that Kueue starts is a change, which gives its line a turn."""
    clock, forged = [0.0], waits("forged", "none")
    monkeypatch.setattr(kueue_admissions, "monotonic", lambda: clock[0])
    with ApiServer(tmp_path, answering(kueue(workload("job")))) as server:
        line = admissions(server)

        def again(*waiting: CountedPod) -> float | None:
            return line.of("team", waiting, ()).read_again_in

        assert again(forged) is None
        clock[0] = 0.25
        assert again(forged, waits("newer")) == 0.75
        assert again(waits("a", "job")) is None
        clock[0] = 1
        assert again(forged, waits("newer")) is None
