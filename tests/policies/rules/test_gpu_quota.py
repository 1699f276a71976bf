"""Rule gpu-quota: what it says of each verdict of the ledger. What is charged and reserved: tests/policies/quota."""

from collections.abc import Iterable
from datetime import UTC, datetime
from fractions import Fraction

import msgspec
import pytest
from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.gpus.claimed_devices import decode_claim_template
from policies.pods.pod import Pod
from policies.pods.workload import PodCount, Workload, WorkloadPods
from policies.quota.demand import UNCLASSIFIED_POD, UnclassifiedPods
from policies.quota.ledger.decide import Line, ReservationVerdict, Shortfall, VerdictReason
from policies.quota.quota_request import LedgerError, ReservationOutcome, quota_request_for_pod
from policies.quota.waiting import OnExceeded
from policies.rule import Mode
from policies.rules.gpu_quota import (
    MAX_WITHOUT_CLASS,
    GPUQuotaOptions,
    OnLedgerError,
    check_claim_template,
    check_reservation,
    requests_gpus,
)
from tests.budgets import budget, spending
from tests.builders import JSON, context, gpu_container, pod, quota_ledger, uid, view
from tests.cases import cases
from tests.policies.quota.charging import CLASSES, RESOURCE_MAPPING
from tests.policies.quota.claims import GPU, H100, claim, exactly
from tests.policies.quota.fits import (
    A100,
    A100_NEVER,
    NEVER,
    RAISE,
    RAISE_A100,
    granted,
    pods,
    said,
    workload,
)
from tests.reservation_requests import creation_request

LEDGER = quota_ledger(hard={"gpus": Fraction(8)}, budget=budget(gpus=1), spending=spending(spent=1))


def findings(reason: VerdictReason, shortfalls: Iterable[Shortfall]) -> list[Finding]:
    """Return what the rule says once the ledger has decided."""
    denied = Finding(
        reason=UNCLASSIFIED_POD,
        message="quota team/default counts no pod without a class",
        remedy="pin one",
    )
    demand = creation_request(uid("pod"), {"gpus": Fraction(1)}, "catalogue")
    outcome = ReservationOutcome(
        LEDGER, replace(demand, denials=(denied,)), ReservationVerdict(reason, tuple(shortfalls))
    )
    request = quota_request_for_pod(uid("review"), Pod(), None, context())
    now = datetime(2027, 1, 1, 12, tzinfo=UTC)
    return list(check_reservation(outcome, request, GPUQuotaOptions(), "team", now, lambda _: context()))


CONTROLLER_LOG = "; if it persists, see its conditions and the log of `gpu-admission controller`"


@cases(
    ("reason", "message", "remedy", "ask"),
    never_counted=(
        VerdictReason.UNCOUNTED,
        "quota team/default has not been counted yet: it, or a dimension of it, is new",
        "try again in some seconds",
        CONTROLLER_LOG,
    ),
    counted_by_a_catalogue_that_is_not_published=(
        VerdictReason.OTHER_CATALOGUE,
        "quota team/default is being recalculated: this replica cannot read the GPUClasses or resource names by which it was "
        "counted",
        "try again in some seconds, at most 50 while creations are in flight",
        f"{CONTROLLER_LOG}, which publishes what replicas must read",
    ),
    reservations_of_another_release=(
        VerdictReason.UNREADABLE,
        "quota team/default cannot be decided: its ledger has reservations that cannot be read",
        "try again in 50 s, within which the controller drops them",
        "; if it persists, see its condition Ready and the log of `gpu-admission controller`",
    ),
    as_many_reservations_as_fit=(
        VerdictReason.FULL,
        "quota team/default cannot hold more reservations than it has now",
        "try again in 50 s, within which each is counted or dropped",
        "; if it persists, `gpu-admission controller` is not running",
    ),
    what_was_admitted_is_not_stored=(
        VerdictReason.NOT_STORED,
        "quota team/default admitted some in the last 10 min that were never stored: now those in creation may take half of "
        "what is free",
        "request less, and find out what rejects pods of this namespace, such as a name that is taken, or a ResourceQuota",
        "; if it persists, see `gpu-admission doctor`",
    ),
    too_little_is_held_for_a_pod_whose_turn_it_is=(
        VerdictReason.NOT_HELD,
        "too little of quota team/default is held for the pod to remove its scheduling gate",
        "wait, the controller tries again",
        "",
    ),
)
def test_a_ledger_that_does_not_decide(reason: VerdictReason, message: str, remedy: str, ask: str) -> None:
    [denied] = findings(reason, [])

    assert denied.message == f"{message}{ask}"
    assert denied.remedy == remedy


LABELS = (
    "reserved, already reserved, nothing to reserve, uncountable, exceeded, budget spent, full, others wait, not stored, "
    "queue full, not held, uncounted, other catalogue, unreadable"
)
"""Of the metric gpu_admission_quota_decisions_total."""


@pytest.mark.parametrize(("reason", "label"), list(zip(VerdictReason, LABELS.split(", "), strict=True)))
def test_every_verdict_that_denies_says_why_and_what_to_do(reason: VerdictReason, label: str) -> None:
    assert reason.value == label
    shortfall = Shortfall("gpus", Fraction(1), Fraction(8), Fraction(0), Fraction(8))
    exceeded = [shortfall] if reason is VerdictReason.EXCEEDED else []
    found = findings(reason, exceeded)

    assert bool(found) is not ReservationVerdict(reason).allowed
    for finding in found:
        assert "team/default" in finding.message
        assert finding.remedy


@cases(
    ("line", "on_exceeded", "is_update", "want"),
    it_would_wait_now=(Line.BEHIND, OnExceeded.QUEUE, False, "create the pod again: it then waits, too"),
    nobody_joins_any_more=(Line.BEHIND, OnExceeded.DENY, False, "try again when they have started"),
    growth_of_a_stored_pod=(Line.BEHIND, OnExceeded.QUEUE, True, "try again when they have started"),
    it_never_waits=(
        Line.NEVER_WAITS,
        OnExceeded.DENY,
        False,
        "try again within a minute, and again until its turn comes: it has a place in line",
    ),
)
def test_others_wait(line: Line, on_exceeded: OnExceeded, is_update: bool, want: str) -> None:
    reservation = replace(creation_request(uid("pod"), {"gpus": Fraction(1)}, "catalogue"), line=line)
    outcome = ReservationOutcome(
        replace(LEDGER, waiting=3, scarce={"gpus": True}),
        reservation,
        ReservationVerdict(VerdictReason.OTHERS_WAIT),
    )
    before = Pod() if is_update else None
    request = quota_request_for_pod(uid("review"), Pod(), before, context())
    options, now = GPUQuotaOptions(on_exceeded=on_exceeded), datetime(2027, 1, 1, 12, tzinfo=UTC)

    [found] = check_reservation(outcome, request, options, "team", now, lambda _: context())

    facts = "3 pods in line for quota team/default must start first"
    assert found.sentence() == f"{want}; {facts}; or ask the platform team if it persists"


@cases(
    ("required", "gpus", "want"),
    required=(
        True,
        "1",
        [
            "namespace team must have a GPUQuota for pods and claims that request GPUs; ask the platform team for a "
            "GPUQuota named default"
        ],
    ),
    required_of_pods_with_gpus_only=(True, "0", []),
    not_required=(False, "1", []),
)
def test_without_a_quota(required: bool, gpus: str, want: list[str]) -> None:
    options, now = GPUQuotaOptions(required=required), datetime(2027, 1, 1, tzinfo=UTC)
    request = quota_request_for_pod(uid("review"), view(pod(gpu_container(gpus))), None, context())

    found = check_reservation(ReservationOutcome(), request, options, "team", now, lambda _: context())

    assert [each.sentence() for each in found] == want


@cases(
    ("on_error", "severity", "want"),
    denied=(
        OnLedgerError.DENY,
        Severity.DENIAL,
        "try again; the quota could not be checked: no answer; or ask the platform team if it persists",
    ),
    allowed=(
        OnLedgerError.ALLOW,
        Severity.WARNING,
        "admitted without a quota check, which failed: no answer",
    ),
)
def test_a_ledger_that_cannot_be_read(on_error: OnLedgerError, severity: Severity, want: str) -> None:
    error, options = LedgerError("no answer", transient=True), GPUQuotaOptions(on_ledger_error=on_error)
    request = quota_request_for_pod(uid("review"), view(pod(gpu_container())), None, context())

    [found] = check_reservation(
        error, request, options, "team", datetime(2027, 1, 1, 12, tzinfo=UTC), lambda _: context()
    )

    assert (found.severity, found.sentence()) == (severity, want)


UPDATED = workload(pods(1, on=A100, running=8), spec={"strategy": {"rollingUpdate": {"maxUnavailable": 0}}})


@cases(
    ("subject", "used", "mode", "want"),
    nothing_starts=(
        workload(pods(1, running=1), kind="batch/Job"),
        16,
        Mode.AUDIT,
        [
            (
                "spec.template: needs 1 GPU; ml-training has 0 of 16 free; gpu-quota is in mode audit and denies nothing"
            )
        ],
    ),
    some_start_now=(
        workload(pods(1, running=8), kind="batch/Job"),
        15,
        Mode.AUDIT,
        [
            "spec.parallelism: set parallelism: 1; needs 8 GPUs; ml-training has 1 of 16 free; gpu-quota is in mode audit "
            "and denies nothing"
        ],
    ),
    what_does_not_fit=(
        workload(pods(1, running=20), kind="batch/Job"),
        0,
        Mode.AUDIT,
        [
            (
                "spec.parallelism: set parallelism: 16; needs 20 GPUs, which can never fit: the GPUQuota of "
                "ml-training grants 16 in all; gpu-quota is in mode audit and denies nothing; or ask the platform "
                "team to raise spec.hard.gpus"
            )
        ],
    ),
    updates=(UPDATED, 0, Mode.AUDIT, []),
    enforced_updates=(
        UPDATED,
        0,
        Mode.ENFORCE,
        [
            "spec.strategy: set type: Recreate (without rollingUpdate), or rollingUpdate.maxUnavailable: 1, or replicas: 7; an "
            "update needs 1 nvidia-a100-80gb for a pod beside the others, and will not finish: ml-training will have 0 of 8 free"
        ],
    ),
    none_starts_now_and_some_in_an_empty_quota=(
        workload(pods(8, running=3), kind="batch/Job"),
        16,
        Mode.ENFORCE,
        [
            "spec.parallelism: set parallelism: 2 or less, and wait until that much is free; needs 24 GPUs, "
            f"{NEVER}; 0 of 3 pods will start; or {RAISE}"
        ],
    ),
    may_grow=(
        workload(pods(1, running=2, maximum=16), kind="ray.io/RayCluster"),
        10,
        Mode.ENFORCE,
        [
            "spec.template: may grow to 16 pods and then needs 16 GPUs; ml-training has 6 of 16 free: 6 of 16 pods will "
            "start"
        ],
    ),
    a_gang=(
        workload(pods(8, running=3, gang=3), kind="batch.volcano.sh/Job"),
        0,
        Mode.ENFORCE,
        [
            f"spec.template: set nvidia.com/gpu: 5; 3 pods that must run together need 24 GPUs, {NEVER}; or {RAISE}"
        ],
    ),
    a_gang_of_more_pods_than_gpus=(
        workload(pods(8, running=24, gang=24), kind="batch.volcano.sh/Job"),
        0,
        Mode.ENFORCE,
        [f"spec.template: 24 pods that must run together need 192 GPUs, {NEVER}; {RAISE}"],
    ),
)
def test_what_is_said_of_a_workload(subject: Workload, used: int, mode: Mode, want: list[str]) -> None:
    assert said(subject, granted({"gpus": used}), mode=mode) == want


PIN_A_CLASS = (
    "template.spec: must name a GPU class, by the nodeSelector of a pod or the DeviceClass or selectors of a claim, because "
    "the quota of this namespace counts GPUs by class: it pins no GPU class"
)


@cases(
    ("made", "counts_as", "mode", "want"),
    denied=(pods(1, running=2), UnclassifiedPods.DENY, Mode.ENFORCE, [PIN_A_CLASS]),
    of_a_class=(pods(1, on=A100, running=2), UnclassifiedPods.DENY, Mode.ENFORCE, []),
    counted_for_every_class=(pods(1, running=2), UnclassifiedPods.MOST_EXPENSIVE, Mode.ENFORCE, []),
    denied_by_no_rule_that_only_warns=(pods(1, running=2), UnclassifiedPods.DENY, Mode.WARN, []),
    denied_by_another_rule=(
        replace(pods(1, running=2), denied=True), UnclassifiedPods.DENY, Mode.ENFORCE, [],
    ),
)  # fmt: skip
def test_a_workload_whose_pods_must_name_a_class(
    made: WorkloadPods, counts_as: UnclassifiedPods, mode: Mode, want: list[str]
) -> None:
    ledger = replace(granted({"gpus": 0}), unclassified_pods=counts_as)

    assert said(workload(made, kind="batch/Job"), ledger, mode=mode) == want


def test_of_thousands_of_templates_the_first_are_said_to_need_a_class() -> None:
    ledger = replace(granted({"gpus": 0}), unclassified_pods=UnclassifiedPods.DENY)
    made = [replace(pods(1, running=2), path=f"templates[{number}]") for number in range(2_000)]

    found = said(workload(*made, kind="argoproj.io/Workflow"), ledger, mode=Mode.ENFORCE)

    assert len(found) == MAX_WITHOUT_CLASS


@cases(
    ("gpus", "metadata", "concerns"),
    gpus=(1, {}, True),
    no_gpus=(0, {}, False),
    controlled=(1, {"ownerReferences": [{"kind": "Owner", "name": "o", "controller": True}]}, False),
)
def test_which_objects_the_quota_concerns(gpus: int, metadata: JSON, concerns: bool) -> None:
    containers = [gpu_container(gpus)] if gpus else []
    made = view(pod(*containers))
    written = WorkloadPods("spec.template", made, PodCount(running=1), made)

    assert requests_gpus(workload(written, metadata=metadata), context().resource_mapping) is concerns


@cases(
    ("kind", "field"),
    hpa=("autoscaling/HorizontalPodAutoscaler", "spec.maxReplicas"),
    keda=("keda.sh/ScaledObject", "spec.maxReplicaCount"),
)
def test_an_autoscaler_at_its_maximum(kind: str, field: str) -> None:
    target = workload(pods(2, running=12), spec={"replicas": 12}, status={"replicas": 3})
    group, _, name = kind.partition("/")
    scaler = Workload(group, name, "ml-training", {}, (), target)

    assert said(scaler, granted({"gpus": 10})) == [
        f"{field}: set {field.removeprefix('spec.')}: 6; may grow to 12 pods and then needs 24 GPUs, which can never fit: "
        "the GPUQuota of ml-training grants 16 in all; 6 of 12 pods will start; or ask the platform team to "
        "raise spec.hard.gpus"
    ]
    assert said(Workload(group, name, "ml-training", {}, ()), granted({"gpus": 10})) == []


def test_a_template_that_is_pinned_when_admitted_gets_what_its_class_grants() -> None:
    """Its annotation pins it only then; before, it would be charged to the class that grants less."""
    made, pinned = view(pod(gpu_container(12))), view(pod(gpu_container(12), nodeSelector=A100))
    grant = granted({}, **{"classes/nvidia-l4": 2})

    assert said(workload(WorkloadPods("spec.template", made, PodCount(running=1), pinned)), grant) == [
        f"spec.template: set nvidia.com/gpu: 8; a pod needs 12 {A100_NEVER}; or {RAISE_A100}"
    ]


def test_a_pod_that_exceeds_a_quota_of_one_resource() -> None:
    ledger = quota_ledger(hard={"resources/nvidia.com/gpu": Fraction(4)}, used=None)
    never = "which can never fit: the GPUQuota of ml-training grants 4 in all"

    assert said(workload(pods(6, running=1)), ledger) == [
        f"spec.template: set nvidia.com/gpu: 4; a pod needs 6 nvidia.com/gpu, {never}; or ask the platform team to raise "
        "spec.hard.resources[nvidia.com/gpu]"
    ]


def test_a_pod_of_two_containers_that_exceeds_the_quota() -> None:
    made = view(pod(gpu_container(3, name="a"), gpu_container(3, name="b")))

    ledger = quota_ledger(hard={"gpus": Fraction(4)}, used=None)

    assert said(workload(WorkloadPods("spec.template", made, PodCount(running=1), made)), ledger) == [
        "spec.template: request 4 GPUs or fewer; a pod needs 6 GPUs, which can never fit: the GPUQuota of ml-training grants "
        "4 in all; or ask the platform team to raise spec.hard.gpus"
    ]


def test_only_one_of_two_containers_of_a_pod_fits() -> None:
    made = view(pod(gpu_container(3, name="a"), gpu_container(3, name="b")))
    job = workload(WorkloadPods("spec.template", made, PodCount(running=4), made), kind="batch/Job")
    ledger = quota_ledger(hard={"gpus": Fraction(4)}, used=None)

    assert said(job, ledger) == [
        "spec.template: request 4 GPUs or fewer and set parallelism: 1; a pod needs 6 GPUs, which can never fit: the GPUQuota of "
        "ml-training grants 4 in all; or ask the platform team to raise spec.hard.gpus"
    ]


@cases(
    ("requests", "hard", "want"),
    just_fits=([exactly(GPU, count=4)], {"gpus": "4"}, []),
    unlimited=([exactly(GPU, count=40)], {"classes/nvidia-t4": "1"}, []),
    never_fits=(
        [exactly(H100, count=4), exactly(H100)],
        {"gpus": "4", "classes/nvidia-h100": "2"},
        [
            "spec.spec.devices.requests: request fewer devices; no claim of this template can ever fit the "
            "quota, requested: classes/nvidia-h100=5, gpus=5, limited: classes/nvidia-h100=2, gpus=4"
        ],
    ),
    would_be_denied=(
        [exactly(GPU, allocationMode="Half")],
        {"gpus": "4"},
        [
            'spec.spec.devices.requests[0].exactly.allocationMode = "Half": set allocationMode ExactCount with '
            "a count, or All; must be ExactCount or All"
        ],
    ),
)
def test_templates(requests: list[JSON], hard: dict[str, str], want: list[str]) -> None:
    document = {"kind": "ResourceClaimTemplate", "spec": {"spec": claim(*requests)["spec"]}}
    found = list(
        check_claim_template(
            decode_claim_template(msgspec.json.encode(document)),
            context(
                classes=CLASSES,
                resource_mapping=RESOURCE_MAPPING,
                ledger=quota_ledger(hard={key: Fraction(amount) for key, amount in hard.items()}),
            ),
        )
    )

    assert [finding.sentence() for finding in found] == want
    assert all(finding.severity is Severity.WARNING for finding in found)
