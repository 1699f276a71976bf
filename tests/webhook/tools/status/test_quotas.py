"""What the status of a GPUQuota says of budgets, and the claims that hold a quota."""

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from policies.gpus.device_classes import ClusterDevices, decode_device_class
from policies.quota.amounts import GPUS, Hard
from policies.quota.budget import BudgetSpec, Spending
from policies.quota.demand import UnclassifiedPods
from policies.quota.spec import QuotaSpec
from tests.budgets import T4, at, budget, spending
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, status
from tests.webhook.tools.status.stored import allocated, cluster_with
from webhook.cluster.objects import Condition
from webhook.configuration.loader import load_objects
from webhook.quota.documents import BudgetStatus, QuotaRecord, QuotaStatus
from webhook.tools.status.listed_capacity import AllocatedDeviceTypes
from webhook.tools.status.quotas import quota_ledger_from_status, quota_status, read_counted_objects
from webhook.tools.status.summaries import BudgetRow
from webhook.tools.status.tolerant_reader import TolerantReader

NOW, LATER = datetime(2026, 11, 26, 12, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
STATUS = BudgetStatus(
    period="month",
    start="2026-11-01T00:00:00Z",
    end="2026-12-01T00:00:00Z",
    until="2026-11-26T12:00:00Z",
    granted={T4: "20", GPUS: "5000"},
    used={GPUS: "4210.5", T4: "<0.01"},
    unknown={GPUS: "12"},
)


def condition(kind: str, status: str = "True") -> Condition:
    return Condition(kind, status, "R", f"of {kind}", "2026-11-26T12:00:00Z", 1)


def quota(*conditions: Condition, found: BudgetStatus | None = STATUS) -> QuotaRecord:
    spec = QuotaSpec(hard=Hard(gpus=8), budget=BudgetSpec(gpu_hours=5000, by_class={"nvidia-t4": 20}))
    status = QuotaStatus(budget=found, conditions=conditions)
    return QuotaRecord(namespace="team", uid="", version="", spec=spec, status=status)


def test_the_rows_of_a_budget() -> None:
    shown = quota_status(quota(), None).budget

    assert shown is not None
    assert shown.rows == (
        BudgetRow(key=GPUS, granted=Fraction(5000), used=Fraction(8421, 2), unknown=Fraction(12)),
        BudgetRow(key=T4, granted=Fraction(20), used=Fraction(1, 100), unknown=Fraction(0)),
    )
    assert shown.unknown() == "12 GPU-hours more may have been used while no controller watched"
    both = replace(STATUS, unknown={GPUS: "12", T4: "2"})
    unknown_of_both = quota_status(quota(found=both), None).budget
    assert unknown_of_both is not None
    assert unknown_of_both.unknown() == (
        "12 GPU-hours and 2 GPU-hours of nvidia-t4 more may have been used while no controller watched"
    )
    assert [shown.when(each) for each in (NOW, LATER)] == ["this month", "up to 2026-12-01"]
    assert quota_status(quota(found=None), None).budget is None


@cases(
    ("conditions", "want"),
    enough_is_left=((condition("BudgetLow", "False"), condition("BudgetSpent", "False")), ""),
    little_is_left=((condition("BudgetLow"), condition("BudgetSpent", "False")), "of BudgetLow"),
    nothing_is_left=((condition("BudgetLow"), condition("BudgetSpent")), "of BudgetSpent"),
)
def test_what_is_said_of_a_budget(conditions: tuple[Condition, ...], want: str) -> None:
    shown = quota_status(quota(*conditions), None).budget

    assert shown is not None
    assert shown.message == want


SPENT = replace(STATUS, used={GPUS: "100", T4: "20"}, unknown={})


@cases(
    ("now", "want"),
    in_its_period=(NOW, ["GPU-hours of nvidia-t4"]),
    after_its_period_nobody_knows=(LATER, []),
)
def test_what_is_spent(now: datetime, want: list[str]) -> None:
    shown = quota_status(quota(found=SPENT), None).budget

    assert shown is not None
    assert [row.name for row in shown.spent(now)] == want


@cases(
    ("found", "now", "want"),
    before_the_first_count=(None, NOW, None),
    in_its_period=(SPENT, NOW, spending(until=at("2026-11-26T12:00:00"), spent=100, t4=20)),
    after_its_period_nobody_knows=(SPENT, LATER, None),
)
def test_what_commands_take_as_spent(
    found: BudgetStatus | None, now: datetime, want: Spending | None
) -> None:
    ledger = quota_ledger_from_status(quota(found=found), now)

    assert ledger is not None
    assert (ledger.budget, ledger.spending) == (budget(gpus=5000, t4=20), want)


SLICE = allocated("gpu-0-mig-1g10gb-0")


@cases(
    ("claim", "node", "may_list_slices", "want"),
    the_slice_that_it_has=(SLICE, "n1", True, "1/7"),
    its_pod_is_not_bound=(SLICE, "", True, "1"),
    other_pods_may_use_it=(allocated("gpu-0-mig-1g10gb-0", made_for_pod=False), "n1", True, "1"),
    it_has_a_card=(allocated("gpu-0", request="gpu/large"), "n1", True, "1"),
    it_has_nothing_yet=(allocated(), "n1", True, "1"),
    a_device_that_no_slice_lists=(allocated("gone"), "n1", True, "1"),
    its_reader_may_not_list_slices=(SLICE, "n1", False, "1"),
)
def test_what_a_claim_holds(
    tmp_path: Path, claim: dict[str, Any], node: str, may_list_slices: bool, want: str
) -> None:
    cluster = cluster_with(claim, node)
    stored = cast("list[Any]", cluster.objects["deviceclasses"])
    classes = tuple(decode_device_class(msgspec.json.encode(each)) for each in stored)
    with ApiServer(tmp_path, cluster) as server:
        reader = TolerantReader(server.client())
        slices = reader.slices()
        assert slices is not None
        kinds = AllocatedDeviceTypes(slices, load_objects([]).resource_mapping).device_types
        published = load_objects([], ClusterDevices(classes, kinds))
        if not may_list_slices:
            cluster.objects["resourceslices"] = status(403, "no", "Forbidden")
            reader = TolerantReader(server.client())
        found = read_counted_objects(reader, published, "ml", UnclassifiedPods.TOTAL_ONLY, None)

    assert [(each.kind, str(each.demand[GPUS])) for each in found] == [("ResourceClaim", want)]
    assert reader.omitted == ([] if may_list_slices else ["list resourceslices.resource.k8s.io"])
