"""What `canary` prints of a result; the rest is in tests/cluster/doctor/."""

import json

import pytest

from tests.cases import cases
from webhook.canary.probe import CanaryResult
from webhook.commands.canary import show
from webhook.commands.output import Screen, print_as

SUCCESS = CanaryResult(
    proved=("injection",),
    unproved=("denial: it is not enforced",),
    answered_by=("replica-1 (1.0)",),
    seconds=0.25,
)
FAILURE = CanaryResult(reason="NotCalled", message="the webhook was not called", remedy="apply it again")


@cases(
    ("result", "want"),
    success=(
        SUCCESS,
        "canary: succeeded in 0.250 s\n"
        "  proved: injection\n"
        "  not proved: denial: it is not enforced\n"
        "  answered by: replica-1 (1.0)\n",
    ),
    failure=(FAILURE, "canary: failed: the webhook was not called [NotCalled]\n  fix: apply it again\n"),
)
def test_what_is_printed(result: CanaryResult, want: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(Screen(), result)

    assert capsys.readouterr().out == want


def test_fields_are_in_camel_case_as_in_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    print_as("json", SUCCESS, str)

    assert json.loads(capsys.readouterr().out) == {
        "reason": "",
        "message": "",
        "remedy": "",
        "seconds": 0.25,
        "proved": ["injection"],
        "open": ["denial: it is not enforced"],
        "answeredBy": ["replica-1 (1.0)"],
    }
