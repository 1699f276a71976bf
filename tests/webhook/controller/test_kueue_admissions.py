"""Which waiting pods Kueue has admitted, and how much, by what an API server has of Kueue; and what a tenant can forge."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policies.quota.ledger.keeping_objects import Keeper
from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, answering, group, status
from webhook.configuration.loader import load_directory
from webhook.controller import kueue_admissions
from webhook.controller.kueue_admissions import Admitted, KueueAdmissions
from webhook.quota.counted_records import PodRecord, WaitingPod
from webhook.workloads.gang_sources import GangSource

API = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{API}/namespaces/team/workloads"
GPU, AT = "nvidia.com/gpu", "2026-11-22T08:02:00Z"
FLAVORS = [
    {"metadata": {"name": "t4"}, "spec": {"nodeLabels": {"accelerator": "nvidia-t4"}}},
    {"metadata": {"name": "any"}},
]
ONE = Fraction(1)


def waits(uid: str, owner: str = "", *, names_kueue: bool = True) -> PodRecord:
    waiting = WaitingPod(0, has_other_gate=False, priority=0, names_kueue=names_kueue)
    source = GangSource("batch/v1", "Job", owner, uid=owner) if owner else None
    found: Any = SimpleNamespace(uid=uid, namespace="team", owner=source, waiting=waiting)
    record: PodRecord = found
    return record


def workload(owner: str, gpus: str = "2", state: str = "Admitted", **of: Any) -> JSON:
    conditions = [
        {"type": each, "status": "True", "reason": "x", "message": "", "lastTransitionTime": AT}
        for each in state.split()
    ]
    usage = {"cpu": "2", GPU: gpus}
    assigned = {"name": "main", "count": 2, "flavors": {GPU: of.pop("flavor", "t4")}, "resourceUsage": usage}
    return {
        "metadata": {"name": owner, "ownerReferences": [{"uid": owner, "kind": "Job"}]},
        "status": {"conditions": conditions, "admission": {"podSetAssignments": [assigned]}, **of},
    }


def deleted(stored: JSON) -> JSON:
    return {
        **stored,
        "metadata": {**stored["metadata"], "deletionTimestamp": AT, "finalizers": ["example.com/keep"]},
    }


def gpus_of_t4(number: int) -> dict[str, Fraction]:
    keys = "gpus", "classes/nvidia-t4", f"resources/{GPU}"
    return dict.fromkeys(keys, number * ONE) if number else {}


def admitted(
    folder: Path, pods: list[PodRecord], objects: dict[str, Any], *, respects: bool = True
) -> Admitted:
    jobset: Callable[..., Keeper | None] = lambda _namespace, reference, _late: (  # noqa: E731
        Keeper("v1", "JobSet", "s", "set") if reference.name == "of-set" else None
    )
    keepers: Any = SimpleNamespace(of=jobset)
    configuration = load_directory(None)
    with ApiServer(folder, answering(objects)) as server:
        kueue = KueueAdmissions(server.client(), lambda: configuration, keepers, lambda _namespace: respects)
        return kueue.of("team", pods)


def kueue(*workloads: JSON, **objects: Any) -> dict[str, Any]:
    return {
        "/apis/kueue.x-k8s.io": group("v1beta2"),
        WORKLOADS: list(workloads),
        f"{API}/resourceflavors": FLAVORS,
        **objects,
    }


@cases(
    ("pods", "workloads", "uids", "gpus"),
    of_a_job=([waits("a", "job"), waits("b", "job")], [workload("job")], {"a", "b"}, 2),
    itself=([waits("a")], [workload("a", "1")], {"a"}, 1),
    of_a_jobset_by_its_job=([waits("a", "of-set")], [workload("set")], {"a"}, 2),
    several_workloads_add_up=([waits("a", "job")], [workload("job"), workload("other", "3")], {"a"}, 5),
    less_what_succeeded_and_kueue_took_back=(
        [waits("a", "job")],
        [workload("job", reclaimablePods=[{"name": "main", "count": 1}])],
        {"a"},
        1,
    ),
    never_less_than_nothing=(
        [waits("a", "job")],
        [workload("job", reclaimablePods=[{"name": "main", "count": 9}])],
        {"a"},
        0,
    ),
    not_what_has_reserved_only=([waits("a", "job")], [workload("job", state="QuotaReserved")], set(), 0),
    not_what_has_finished=([waits("a", "job")], [workload("job", state="Admitted Finished")], set(), 0),
    not_what_another_cluster_runs=([waits("a", "job")], [workload("job", clusterName="other")], set(), 0),
    not_what_is_being_deleted=([waits("a", "job")], [deleted(workload("job"))], set(), 0),
    not_a_pod_of_another_object_under_its_label=([waits("a", "forged")], [workload("job")], set(), 2),
    not_a_pod_that_names_no_kueue=([waits("a", "job", names_kueue=False)], [workload("job")], set(), 0),
    nothing_of_an_amount_that_is_none=([waits("a", "job")], [workload("job", "many")], {"a"}, 0),
)
def test_what_kueue_has_admitted(
    tmp_path: Path, pods: list[PodRecord], workloads: list[JSON], uids: set[str], gpus: int
) -> None:
    found = admitted(tmp_path, pods, kueue(*workloads))

    assert (set(found.uids), found.amounts) == (uids, gpus_of_t4(gpus))
    named = [pod for pod in pods if pod.waiting and pod.waiting.names_kueue]
    assert found.is_incomplete == (len(uids) < len(named))


def test_a_flavor_without_labels_admits_no_class(tmp_path: Path) -> None:
    for flavor in ("any", "gone"):
        found = admitted(tmp_path, [waits("a", "job")], kueue(workload("job", flavor=flavor)))
        assert found.amounts == {"gpus": 2 * ONE, f"resources/{GPU}": 2 * ONE}


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
    assert admitted(tmp_path, [waits("a", "job")], objects) == Admitted(is_incomplete=True)


def test_nothing_is_read_where_the_policy_does_not_say_so(tmp_path: Path) -> None:
    objects = kueue(workload("job"))
    assert admitted(tmp_path, [waits("a", "job")], objects, respects=False) == Admitted()


@cases(("number", "seconds"), few_every_second=(2, 1), many_less_often=(2_000, 4))
def test_how_often_workloads_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, seconds: int
) -> None:
    """However often a namespace takes its turn: tenants choose how many pods change, and how many Workloads there are."""
    clock, configuration, keepers = [0.0], load_directory(None), SimpleNamespace(of=lambda *_: None)
    monkeypatch.setattr(kueue_admissions, "monotonic", lambda: clock[0])
    objects = kueue(*(workload(str(index)) for index in range(number)))
    with ApiServer(tmp_path, answering(objects)) as server:
        line: Any = server.client(), lambda: configuration, keepers, lambda _namespace: True
        of = KueueAdmissions(*line).of
        lists = []
        for now in (0, seconds - 0.5, seconds):
            clock[0] = now
            assert of("team", [waits("a", "1")]).uids == {"a"}
            lists.append(sum(each.path.startswith(WORKLOADS) for each in server.requests))

    assert lists == [lists[0], lists[0], 2 * lists[0]]
