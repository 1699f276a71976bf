"""Pods that wait in line for quota on a real API server."""

from fractions import Fraction

from tests.cluster.controllers import eventually, uses
from tests.cluster.quota.quotas import in_force
from tests.cluster.waiting.line import Line


def test_a_pod_that_does_not_fit_waits_and_starts_when_another_one_ends(line: Line) -> None:
    in_force(line, {"gpus": "1"})
    line.pod("first")
    assert not line.waits("first")
    line.pod("second")
    assert line.waits("second")
    assert eventually(lambda: line.ledger_object().waiting == 1)
    assert line.ledger_object().used == {"gpus": Fraction(1)}
    line.delete_pod("first")
    assert line.starts("second")
    assert uses(line, 1)
    assert eventually(
        lambda: not line.ledger_object().all_waiting and not len(line.ledger_object().reservations)
    )


def test_pods_start_in_the_order_in_which_they_came(line: Line) -> None:
    in_force(line, {"gpus": "2"})
    line.pod("holder", 2)
    for name, gpus in (("one", 1), ("two", 2), ("three", 1)):
        line.in_a_later_second(name, gpus)
        assert line.waits(name)
    line.delete_pod("holder")
    assert line.starts("one")
    assert line.waits("two")
    assert line.waits("three")
    line.delete_pod("one")
    assert line.starts("two")
    assert line.waits("three")
    line.delete_pod("two")
    assert line.starts("three")


def test_nobody_passes_those_who_wait(line: Line) -> None:
    in_force(line, {"gpus": "2"})
    line.pod("holder", 1)
    line.pod("large", 2)
    line.in_a_later_second("small", 1)
    assert line.waits("large")
    assert line.waits("small")
    assert line.is_counted()
    status, answer = line.client.patch(line.path("pods", "small"), {"spec": {"schedulingGates": []}})
    assert line.waits("small"), (status, answer)
