"""Words of the pages that views put together, and the answer to an object that is none."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tests.cases import cases
from webhook.cluster.api import ApiClient
from webhook.tools.console import app as console
from webhook.tools.console.views import Order, in_force, summary
from webhook.tools.doctor.check import DoctorFinding, failure, warning
from webhook.tools.status.report import ClusterStatus, Health, InstallationStatus, Part, PolicyStatus


@cases(
    ("fields", "want"),
    in_force=({}, ""),
    paused=(
        {"paused_until": datetime(2026, 11, 22, 9, tzinfo=UTC)},
        '<span class="pill warn">paused until 2026-11-22 09:00 UTC</span>',
    ),
    not_in_force=({"in_force": False}, '<span class="pill bad">not in force</span>'),
)
def test_whether_a_policy_is_in_force(fields: dict[str, Any], want: str) -> None:
    policy = PolicyStatus(
        **{"name": "p", "version": "1", "priority": 0, "where": "*", "in_force": True, **fields}
    )

    assert str(in_force(policy)) == want


ERROR, WARNING = (make("id", "Node a", "is wrong", "correct it") for make in (failure, warning))


@cases(
    ("findings", "for_administrators", "want"),
    none=((), False, "no findings"),
    one_of_each=((ERROR, WARNING), False, "1 error, 1 warning"),
    several=((WARNING, WARNING), False, "2 warnings"),
    nothing_that_the_caller_may_read=((ERROR,), True, ""),
)
def test_the_findings_in_a_phrase(
    findings: tuple[DoctorFinding, ...], for_administrators: bool, want: str
) -> None:
    part = Part(name="webhook", health=Health.OK, text="", for_administrators=for_administrators)
    status: Any = type("Status", (), {"installation": InstallationStatus(parts=(part,), findings=findings)})

    assert summary(cast(ClusterStatus, status)) == want


def test_the_orders_of_quotas() -> None:
    assert [order.value for order in Order] == [
        "worst first",
        "by namespace",
        "most pending first",
        "most idle first",
        "fullest first",
        "most GPUs first",
        "most denied first",
    ]


@pytest.mark.parametrize("requested", ["job", "job/", "/train"])
def test_an_object_that_is_none(requested: str) -> None:
    problem = f'"{requested}" must be KIND/NAME, such as job/train'

    assert console._answer(cast(ApiClient, None), requested, "", "home") == (None, None, None, problem)
