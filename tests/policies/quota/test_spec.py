from policies.finding import Edit, Severity
from policies.pods.pod import ResourceList
from policies.pods.quantity import QuantityText
from policies.quota.amounts import Hard
from policies.quota.budget import BudgetSpec
from policies.quota.demand import UnclassifiedPods
from policies.quota.spec import (
    QuotaSpec,
    charged_waiting_findings,
    resource_quota_findings,
)
from policies.quota.waiting import QueueSpec
from tests.cases import cases
from webhook.configuration.loader import load_directory

TOTAL_ONLY, DENY, MOST_EXPENSIVE = UnclassifiedPods
T4 = {"nvidia-t4": "1"}

RESOURCE_MAPPING = load_directory(None).resource_mapping
WHY = "has no effect: a ResourceQuota counts only requests of extended resources"

BARE, OF_LIMITS, COUNTED = "nvidia.com/gpu", "limits.nvidia.com/gpu", "requests.nvidia.com/gpu"


def says(key: str, remedy: str) -> str:
    return f"spec.hard[{key}]: {remedy}; {WHY} [resource-quota]"


@cases(
    ("hard", "want", "fixed"),
    what_is_enforced=({COUNTED: "4", "cpu": "4", "pods": "4"}, [], []),
    bare_name=({BARE: 4}, [says(BARE, f"remove {BARE} and set {COUNTED}: 4")], [4]),
    limits=({OF_LIMITS: "4"}, [says(OF_LIMITS, f"remove {OF_LIMITS} and set {COUNTED}: 4")], ["4"]),
    limits_beside_requests=(
        {OF_LIMITS: "8", COUNTED: "4"},
        [says(OF_LIMITS, f"remove it, {COUNTED} is set as well")],
        [],
    ),
    both_with_one_amount=(
        {BARE: "4", OF_LIMITS: "4"},
        [says(key, f"remove {key} and set {COUNTED}: 4") for key in (OF_LIMITS, BARE)],
        ["4", "4"],
    ),
    two_amounts_are_a_choice=(
        {BARE: "4", OF_LIMITS: "8"},
        [
            says(OF_LIMITS, f"remove {OF_LIMITS} and set {COUNTED}: 8 or 4"),
            says(BARE, f"remove {BARE} and set {COUNTED}: 4 or 8"),
        ],
        [],
    ),
    nothing_writes_zero_unasked=({BARE: 0}, [says(BARE, f"remove {BARE} and set {COUNTED}: 0")], []),
    nor_for_an_empty_key=({BARE: None}, [says(BARE, f"remove {BARE} and set {COUNTED}: 0")], []),
    mig_slice=(
        {"nvidia.com/mig-1g.10gb": "14"},
        [
            says(
                "nvidia.com/mig-1g.10gb",
                "remove nvidia.com/mig-1g.10gb and set requests.nvidia.com/mig-1g.10gb: 14",
            )
        ],
        ["14"],
    ),
    limits_that_hami_reads=({OF_LIMITS: "2", "limits.nvidia.com/gpumem": "2000"}, [], []),
    no_gpu=({"example.com/dongle": "1", "limits.cpu": "1", "count/pods": "1"}, [], []),
    dra_devices=({"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "1"}, [], []),
)
def test_keys_that_limit_nothing(hard: ResourceList, want: list[str], fixed: list[QuantityText]) -> None:
    found = list(resource_quota_findings(hard, RESOURCE_MAPPING))

    assert [finding.sentence() for finding in found] == want
    assert [edit.value for finding in found for edit in finding.fix if edit.value is not None] == fixed


UNKNOWN = "as no effect: no device plugin that is known has this resource"
REFUSED = "he API server rejects this name: those of extended resources are domain/name in lowercase"


@cases(
    ("hard", "want", "fixed"),
    suggested_name=(
        {"requests.nvidia/gpu": "4"},
        (Severity.WARNING, f"spec.hard[requests.nvidia/gpu]: did you mean {COUNTED}? H{UNKNOWN}"),
        (Edit("spec.hard[requests.nvidia/gpu]"), Edit(f"spec.hard[{COUNTED}]", "4")),
    ),
    misspelt_limits=(
        {"limits.nvidia.com/gpus": "4"},
        (Severity.WARNING, f"spec.hard[limits.nvidia.com/gpus]: did you mean {COUNTED}? H{UNKNOWN}"),
        (Edit("spec.hard[limits.nvidia.com/gpus]"), Edit(f"spec.hard[{COUNTED}]", "4")),
    ),
    misspelt_beside_the_right_name=(
        {"requests.nvidia.com/gpus": "4", COUNTED: "2"},
        (
            Severity.WARNING,
            f"spec.hard[requests.nvidia.com/gpus]: remove it, {COUNTED} is set as well; h{UNKNOWN}",
        ),
        (Edit("spec.hard[requests.nvidia.com/gpus]"),),
    ),
    a_name_that_the_api_server_refuses=(
        {"requests.gpu": "4"},
        (Severity.DENIAL, f"spec.hard[requests.gpu]: did you mean {COUNTED}? T{REFUSED}"),
        (Edit("spec.hard[requests.gpu]"), Edit(f"spec.hard[{COUNTED}]", "4")),
    ),
    a_part_of_a_gpu=(
        {COUNTED: "0.5"},
        (
            Severity.WARNING,
            f'spec.hard[{COUNTED}] = "0.5": set {COUNTED}: 1; allows 0: pods request whole GPUs',
        ),
        (Edit(f"spec.hard[{COUNTED}]", 1),),
    ),
    one_and_a_half=(
        {COUNTED: "1500m"},
        (
            Severity.WARNING,
            f'spec.hard[{COUNTED}] = "1500m": set {COUNTED}: 1 or 2; allows 1: pods request whole GPUs',
        ),
        (),
    ),
)
def test_keys_and_amounts_that_mean_something_else(
    hard: ResourceList, want: tuple[Severity, str], fixed: tuple[Edit, ...]
) -> None:
    (found,) = resource_quota_findings(hard, RESOURCE_MAPPING)

    assert (found.severity, found.sentence()) == (want[0], f"{want[1]} [resource-quota]")
    assert found.fix == fixed


@cases(
    ("hard", "keys"),
    pods=(["pods", "services"], "pods"),
    compute=(["requests.cpu", "limits.memory", "requests.storage"], "limits.memory, requests.cpu"),
    gpus=(["requests.nvidia.com/gpu", "requests.example.com/dongle"], "requests.nvidia.com/gpu"),
    nothing_of_pods=(["count/jobs.batch", "persistentvolumeclaims", "nvidia.com/gpu"], ""),
)
def test_keys_that_count_pods_that_wait(hard: list[str], keys: str) -> None:
    why = "also count pods that wait in line for quota: beyond them, a pod is denied instead"
    remedy = "omit them, or leave room for the pods that wait"
    want = [f"spec.hard: {remedy}; {keys} {why} [resource-quota]"] if keys else []

    assert [finding.sentence() for finding in charged_waiting_findings(hard, RESOURCE_MAPPING)] == want


@cases(
    ("classes", "hours", "stated", "want", "exceeded"),
    classes_are_held_unless_it_says_otherwise=(T4, {}, None, MOST_EXPENSIVE, ""),
    so_is_a_budget_by_class=({}, T4, None, MOST_EXPENSIVE, ""),
    without_classes_nothing_is_counted_by_class=({}, {}, None, TOTAL_ONLY, ""),
    it_says_otherwise=(T4, {}, TOTAL_ONLY, TOTAL_ONLY, "hard.classes"),
    it_says_otherwise_of_a_budget=({}, T4, TOTAL_ONLY, TOTAL_ONLY, "budget.byClass"),
    it_says_otherwise_of_both=(T4, T4, TOTAL_ONLY, TOTAL_ONLY, "hard.classes and budget.byClass"),
    deny=(T4, T4, DENY, DENY, ""),
    total_only_of_a_total=({}, {}, TOTAL_ONLY, TOTAL_ONLY, ""),
)
def test_unclassified(
    classes: dict[str, str],
    hours: dict[str, str],
    stated: UnclassifiedPods | None,
    want: UnclassifiedPods,
    exceeded: str,
) -> None:
    spec = QuotaSpec(
        hard=Hard(gpus="8", classes=classes),
        stated_unclassified_pods=stated,
        budget=BudgetSpec(gpu_hours=100, by_class=hours),
    )

    assert spec.unclassified_pods is want
    message = f"TotalOnly lets pods that pin no class exceed {exceeded}: they count for a class only once they are bound"
    warnings = [("unclassifiedPods", f"{message}; set MostExpensive, or Deny")] if exceeded else []
    assert list(spec.warnings()) == warnings


def test_every_invalid_amount_is_a_problem_at_its_field() -> None:
    spec = QuotaSpec(hard=Hard(gpus="8", classes={"nvidia-t4": "many"}), queue=QueueSpec(max_waiting=-1))

    assert list(spec.problems()) == [
        ("hard.classes[nvidia-t4]", 'must be an amount such as 16, "0.5" or "2/7", not "many"'),
        ("queue.maxWaiting", "must be 0 or more"),
    ]
