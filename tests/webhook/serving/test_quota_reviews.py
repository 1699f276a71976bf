"""The quota as the API server meets it: reviews in, answers out, with the memory store behind."""

from time import monotonic
from typing import Any

import pytest
from msgspec import json

from policies.quota.waiting import GATE
from tests.builders import JSON, gpu_container, pod, uid
from tests.cases import cases
from tests.webhook.serving.quota_reviews import Served, claim, request
from tests.webhook.serving.served import POD
from webhook.configuration.documents import Document
from webhook.quota.no_quota import NoQuota
from webhook.serving.admission_review import AdmissionResponse

CLAIM = {"group": "resource.k8s.io", "version": "v1", "kind": "ResourceClaim"}


def gpu_pod(label: str, gpus: int = 1, **tweaks: Any) -> JSON:
    resources = {kind: {"nvidia.com/gpu": str(gpus)} for kind in ("limits", "requests")}
    document = pod(gpu_container(resources=resources), **tweaks)
    return {**document, "metadata": {**document["metadata"], "name": label, "uid": uid(label)}}


def message(response: AdmissionResponse) -> str:
    assert response.status is not None
    return response.status.message


def test_what_fits_is_reserved_and_what_does_not_is_refused() -> None:
    served = Served()
    assert served.validate(gpu_pod("one")).allowed
    assert served.validate(gpu_pod("two")).allowed
    refused = served.validate(gpu_pod("three"))
    assert refused.status is not None
    assert (refused.status.code, refused.status.reason) == (403, "Forbidden")
    assert message(refused) == (
        "pod team/three: wait until others release 1 GPU; exceeded quota: team/default, requested 1 GPU, 2 of 2 used; "
        "or ask the platform team to raise spec.hard.gpus [gpu-quota]"
    )
    assert served.held() == [uid("one"), uid("two")]


def test_a_pod_without_gpus_is_not_checked() -> None:
    assert Served(broken=True).validate(pod()).allowed


def test_without_a_quota() -> None:
    assert Served().validate(gpu_pod("one"), namespace="elsewhere").allowed
    required = Served(required=True).validate(gpu_pod("one"), namespace="elsewhere")
    assert message(required).startswith("pod elsewhere/one: namespace elsewhere must have a GPUQuota")


def test_a_ledger_that_cannot_be_read() -> None:
    unread = Served(broken=True)
    want = "the quota could not be checked: the GPUQuota could not be read: connection refused"
    assert want in message(unread.validate(gpu_pod("one")))
    labels = {"reason": "ledger error", "dry_run": "false"}
    assert unread.registry.get_sample_value("gpu_admission_quota_decisions_total", labels) == 1


def test_a_deleted_pod_gives_back() -> None:
    served = Served()
    served.validate(gpu_pod("one", 2))
    gone = {"operation": "DELETE", "oldObject": gpu_pod("one", 2)}
    assert served.validate(None, dryRun=True, **gone).allowed
    assert served.held() == [uid("one")]
    assert served.validate(None, **gone).allowed
    assert served.held() == []


def test_of_a_changed_pod_only_what_grows_is_counted() -> None:
    served = Served()
    gated: JSON = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    before, pinned = gpu_pod("one", **gated), gpu_pod("one", nodeSelector={"accelerator": "nvidia-t4"})
    assert served.validate(before).allowed
    stored = {**before, "metadata": {**before["metadata"], "resourceVersion": "4711"}}
    assert served.validate(pinned, operation="UPDATE", oldObject=stored, uid=uid("r1")).allowed
    ledger = served.store.ledgers()["team"]
    (change,) = [reservation for reservation in ledger.reservations if reservation.is_change]
    assert (change.id, change.version) == (f"{uid('one')}/{uid('r1')}", 4711)
    assert set(change.demand) == {"classes/nvidia-t4"}
    too_much = served.validate(
        gpu_pod("two", nodeSelector={"accelerator": "nvidia-t4"}),
        operation="UPDATE",
        oldObject=gpu_pod("two"),
        uid=uid("r2"),
    )
    assert not too_much.allowed
    assert served.validate(before, operation="UPDATE", oldObject=pinned, uid=uid("r3")).allowed
    assert served.held() == [uid("one"), f"{uid('one')}/{uid('r1')}"]


def test_a_claim_is_counted_by_its_own_uid() -> None:
    served = Served()
    assert served.validate(claim("claim1"), kind=CLAIM).allowed
    assert served.validate(claim("claim1"), kind=CLAIM).allowed
    refused = served.validate(claim("claim2", count=2), kind=CLAIM, name="claim2")
    assert "resourceclaim team/claim2: request 1 GPU or fewer, or wait until others" in message(refused)
    assert served.validate(claim("claim3", "dra.net", 8), kind=CLAIM).allowed
    assert served.held() == [uid("claim1")]


@cases(
    ("kind", "name", "want"),
    of_its_pod=(POD, "train-0", "pods/train-0"),
    of_a_pod_without_one=(POD, None, ""),
    of_its_claim=(CLAIM, "claim1", "resourceclaims/claim1"),
)
def test_a_reservation_has_the_name(kind: JSON, name: str | None, want: str) -> None:
    served, document = Served(), gpu_pod("one") if kind is POD else claim("claim1")
    document["metadata"]["name"] = name
    assert served.validate(document, kind=kind).allowed
    assert [each.name for each in served.store.ledgers()["team"].reservations] == [want]


MARKED: dict[str, Any] = {
    "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
    "ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "one", "uid": uid("one"), "controller": True}
    ],
}
SCHEDULER = {"username": "system:kube-scheduler"}
NVIDIA = {"pattern": "gpu.nvidia.com", "resource": "nvidia.com/gpu", "extendedResourceName": "nvidia.com/gpu"}
LISTED = Document("GPUResourceMapping", "listed", {"deviceClasses": [NVIDIA]})


@cases(
    ("more", "want"),
    with_its_pod=([LISTED], ["one"]),
    where_nothing_says_what_its_pod_asked_for=([], ["one", "claim1"]),
)
def test_the_schedulers_claim_is_counted(more: list[Document], want: list[str]) -> None:
    served = Served("enforce", *more)
    assert served.validate(gpu_pod("one")).allowed

    assert served.validate(claim("claim1", **MARKED), kind=CLAIM, userInfo=SCHEDULER).allowed

    assert sorted(served.held()) == sorted(map(uid, want))


WHEREVER = {
    "under-a-quota": ("enforce", "team"),
    "whatever-the-mode": ("disabled", "team"),
    "without-a-quota": ("audit", "elsewhere"),
    "in-an-exempt-namespace": ("enforce", "kube-system"),
}


@cases(("mode", "namespace"), WHEREVER)
def test_marks_finalizers_and_owners_of_claims_are_kept_from_tenants(mode: str, namespace: str) -> None:
    """Which changes are refused: tests/policies/quota/test_claim_demand.py."""
    served = Served(mode)
    kept, gone = claim("claim1", finalizers=["resource.kubernetes.io/delete-protection"]), claim("claim1")
    kept["status"] = gone["status"] = {"allocation": {"devices": {}}}
    change = {"operation": "UPDATE", "kind": CLAIM, "namespace": namespace}
    marked, tenant = claim("claim1", **MARKED), {"username": "mallory"}
    plain = claim("claim1", ownerReferences=MARKED["ownerReferences"])

    unprotected = served.validate(gone, oldObject=kept, **change)
    created = served.validate(marked, kind=CLAIM, namespace=namespace, userInfo=tenant)
    changed = served.validate(marked, oldObject=plain, userInfo=tenant, **change)
    owned = served.validate(plain, kind=CLAIM, namespace=namespace, userInfo=tenant)
    given = served.validate(plain, oldObject=claim("claim1"), **change)

    wants = "must keep resource.kubernetes.io/delete-protection while the claim is allocated"
    assert wants in message(unprotected)
    marks = "must be omitted: only system:kube-scheduler marks the claims that it makes for pods"
    assert [marks in message(each) for each in (created, changed)] == [True, True]
    gives = "must not have a Pod as controller: only Kubernetes makes claims for pods, from templates"
    assert [gives in message(each) for each in (created, owned, given)] == [True, True, True]
    assert served.validate(kept, oldObject=kept, **change).allowed
    assert served.validate(marked, oldObject=marked, userInfo=tenant, **change).allowed
    assert served.validate(marked, oldObject=plain, userInfo=SCHEDULER, **change).allowed
    assert "team" not in served.store.ledgers() or served.held() == []


def test_an_old_pod_that_cannot_be_read_is_refused() -> None:
    broken = {"spec": {"containers": "none"}}
    answer = Served().validate(gpu_pod("one"), operation="UPDATE", oldObject=broken)
    assert answer.status is not None
    assert answer.status.code == 400


def test_a_dry_run_is_decided_and_counts_nothing_of_what_users_create() -> None:
    served = Served()
    assert served.admission.mutate(request(gpu_pod("one"), dryRun=True), monotonic() + 20).allowed
    assert [served.validate(gpu_pod("one", number), dryRun=True).allowed for number in (2, 9)] == [
        True,
        False,
    ]
    assert served.held() == []
    counted = [
        sample
        for family in served.registry.collect()
        for sample in family.samples
        if "dry_run" in sample.labels and sample.value
    ]
    assert {sample.labels["dry_run"] for sample in counted} == {"true"}
    assert {sample.name for sample in counted} >= {
        "gpu_admission_requests_total",
        "gpu_admission_request_duration_seconds_count",
        "gpu_admission_findings_total",
        "gpu_admission_quota_decisions_total",
    }


def test_an_answer_that_does_not_hold_any_more_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a replica that was stopped after it looked, while a quota appeared and was counted."""
    served, believed = Served(), [True, False]
    monkeypatch.setattr(NoQuota, "is_current", lambda *_: bool(believed and believed.pop(0)))

    assert served.validate(gpu_pod("one")).allowed
    assert served.held() == [uid("one")]
    assert believed == []


OTHER_GATE, OUR_GATE = {"name": "example.com/later"}, {"name": GATE}
QUEUE = {"onExceeded": "Queue"}
REMOVED = (
    f'pod team/one: spec.schedulingGates = "{GATE}": is removed: '
    "pods of this namespace do not wait in line for quota"
)


@cases(
    ("mode", "options", "gates", "want"),
    where_nobody_waits=("enforce", {}, [OUR_GATE], []),
    beside_another=("enforce", {}, [OTHER_GATE, OUR_GATE], [OTHER_GATE]),
    where_pods_wait=("enforce", QUEUE, [OUR_GATE], None),
    where_nothing_is_denied=("warn", {}, [OUR_GATE], None),
    another_alone=("enforce", {}, [OTHER_GATE], None),
)
def test_a_gate_that_its_author_wrote(
    mode: str, options: JSON, gates: list[JSON], want: list[JSON] | None
) -> None:
    served, document = Served(mode, **options), gpu_pod("one", schedulingGates=gates)
    response = served.admission.mutate(request(document), monotonic() + 20)

    patches = [each for each in patch_of(response) if each["path"] == "/spec/schedulingGates"]
    assert patches == (
        [] if want is None else [{"op": "replace", "path": "/spec/schedulingGates", "value": want}]
    )
    assert [each for each in response.warnings or () if "is removed" in each] == (
        [] if want is None else [f"{REMOVED} [gpu-quota]"]
    )


@cases(
    ("options", "allowed", "demand"),
    where_nobody_waits=({}, False, []),
    where_pods_wait=(QUEUE, True, [{}]),
)
def test_a_new_pod_that_keeps_it(options: JSON, allowed: bool, demand: list[JSON]) -> None:
    served = Served(**options)
    response = served.validate(gpu_pod("one", schedulingGates=[OUR_GATE]))

    assert response.allowed is allowed
    assert [each.demand for each in served.store.ledgers()["team"].reservations] == demand
    if not allowed:
        assert message(response) == (
            f'pod team/one: spec.schedulingGates = "{GATE}": must be omitted: '
            "pods of this namespace do not wait in line for quota [gpu-quota]"
        )


WAITS = "pod team/more: waits in line for quota team/default: next in line, requested 1 GPU, 0 of 2 used, 2 being created"
DENIED = (
    "pod team/more: wait until others release 1 GPU; exceeded quota: team/default, requested 1 GPU, 2 of 2 used; "
    "or ask the platform team to raise spec.hard.gpus [gpu-quota]"
)


@cases(
    ("is_led", "want"),
    a_controller_leads=(True, (True, WAITS)),
    none_has_renewed_its_lease=(False, (False, DENIED)),
)
def test_a_dry_run_says_what_the_creation_then_meets(is_led: bool, want: tuple[bool, str]) -> None:
    served, document = Served(is_led=is_led, onExceeded="Queue"), gpu_pod("more")
    served.validate(gpu_pod("one", 2))

    created = served.admission.mutate(request(document), monotonic() + 20)
    if not patch_of(created):
        created = served.validate(document)
    tried = served.validate(document, dryRun=True)

    assert [(each.allowed, said(each).partition(" (until ")[0]) for each in (tried, created)] == [want, want]


@cases("dry_run", of_a_dry_run=True, of_a_creation=False)
@cases(
    ("is_led", "want"),
    a_controller_leads=(True, "set 1 or request 2 GPUs"),
    none_has_renewed_its_lease=(False, "set args[1]: 1"),
)
def test_a_choice_that_would_wait_in_line_is_offered_only_while_a_controller_leads(
    is_led: bool, want: str, dry_run: bool
) -> None:
    served = Served(is_led=is_led, onExceeded="Queue")
    served.validate(gpu_pod("one", 1))
    main = gpu_container("1", image="vllm/vllm-openai:latest", args=["--tensor-parallel-size", "2"])

    response = served.validate({**pod(main), "metadata": {"name": "two", "uid": uid("two")}}, dryRun=dry_run)

    assert said(response) == (
        'pod team/two: spec.containers[0].args[0] (container "main") = "--tensor-parallel-size 2": '
        f"{want}; should be at most 1, the GPUs of the container [parallelism]"
    )


def test_a_stored_pod_keeps_its_place_where_nobody_waits_any_more() -> None:
    stored = gpu_pod("one", schedulingGates=[OUR_GATE])
    changed = {**stored, "metadata": {**stored["metadata"], "labels": {"team": "vision"}}}

    assert Served().validate(changed, operation="UPDATE", oldObject=stored).allowed


def patch_of(response: AdmissionResponse) -> list[JSON]:
    found: list[JSON] = json.decode(response.patch) if response.patch else []
    return found


def said(response: AdmissionResponse) -> str:
    return message(response) if response.status else "; ".join(response.warnings or ())
