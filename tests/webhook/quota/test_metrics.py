"""Whose amounts become series: an administrator chooses them, no tenant."""

from fractions import Fraction

from prometheus_client import CollectorRegistry

from policies.quota.ledger.reservations import Reservation
from tests.budgets import T4, budget, spending
from tests.builders import quota_ledger
from webhook.cluster.objects import Condition
from webhook.quota.documents import QuotaStatus, WaitingPods
from webhook.quota.metrics import LedgerCollector

INVENTED = {"resources/example.com/invented": Fraction(1), "classes/nvidia-t4": Fraction(1)}


def test_only_gpus_and_what_is_granted_have_series() -> None:
    ledger = quota_ledger(
        Reservation("pod", {"gpus": Fraction(2), **INVENTED}),
        hard={"classes/nvidia-t4": Fraction(4)},
        used={"gpus": Fraction(3), "classes/nvidia-t4": Fraction(1), **INVENTED},
    )
    registry = CollectorRegistry()
    registry.register(LedgerCollector(lambda: {"team": ledger}))

    samples = [
        (sample.name, sample.labels["dimension"], sample.value)
        for family in registry.collect()
        for sample in family.samples
        if "dimension" in sample.labels
    ]
    assert registry.get_sample_value("gpu_admission_quota_reservations", {"namespace": "team"}) == 1
    assert sorted(samples) == [
        ("gpu_admission_quota_hard", "classes/nvidia-t4", 4),
        ("gpu_admission_quota_reserved", "classes/nvidia-t4", 1),
        ("gpu_admission_quota_reserved", "gpus", 2),
        ("gpu_admission_quota_used", "classes/nvidia-t4", 1),
        ("gpu_admission_quota_used", "gpus", 3),
    ]


def test_a_budget_has_series_for_each_of_its_keys() -> None:
    ledger = quota_ledger(budget=budget(gpus=100, t4=0.5), spending=spending(spent=12.5, unknown=3))
    registry = CollectorRegistry()
    registry.register(LedgerCollector(lambda: {"team": ledger, "other": quota_ledger()}))

    samples = {
        (sample.name.removeprefix("gpu_admission_quota_budget_"), sample.labels["dimension"], sample.value)
        for family in registry.collect()
        for sample in family.samples
        if "budget" in sample.name
    }
    assert samples == {
        ("granted_gpu_hours", "gpus", 100),
        ("granted_gpu_hours", T4, 0.5),
        ("used_gpu_hours", "gpus", 12.5),
        ("used_gpu_hours", T4, 0),
        ("unknown_gpu_hours", "gpus", 3),
        ("unknown_gpu_hours", T4, 0),
    }


def test_conditions_are_those_that_people_see() -> None:
    at = "2027-01-01T12:00:00Z"
    shown = Condition("Ready", "True", "Stale", "", at), Condition("Exceeded", "False", "", "", at)
    registry = CollectorRegistry()
    registry.register(LedgerCollector(dict, lambda: {"team": QuotaStatus(conditions=shown)}))

    name = "gpu_admission_quota_condition"
    assert registry.get_sample_value(name, {"namespace": "team", "condition": "Ready"}) == 1
    assert registry.get_sample_value(name, {"namespace": "team", "condition": "Exceeded"}) == 0


def test_a_namespace_in_which_nobody_waits_has_zeros() -> None:
    waiting = WaitingPods(pods=9, since="2027-01-01T12:00:00Z", demand={"gpus": Fraction(18)})
    statuses = {"team": QuotaStatus(waiting=waiting), "idle": QuotaStatus()}
    registry = CollectorRegistry()
    registry.register(LedgerCollector(dict, lambda: statuses))

    names = ("pods", "gpus", "since_timestamp_seconds")
    found = {
        namespace: [
            registry.get_sample_value(f"gpu_admission_quota_waiting_{name}", {"namespace": namespace})
            for name in names
        ]
        for namespace in statuses
    }
    assert found == {"team": [9, 18, 1798804800], "idle": [0, 0, 0]}
