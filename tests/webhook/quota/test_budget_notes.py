"""What is noted of deleted quotas: kept until the period ends, never replaced by less, and lost rather than in the way."""

import logging
from typing import cast

import msgspec
import pytest
from msgspec.structs import replace

from policies.quota.budget import Spending
from tests.budgets import MONTH, T4, at, spending
from tests.cases import cases
from tests.webhook.quota.config_map_api import ConfigMapApi
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import BUDGETS_CONFIG_MAP
from webhook.quota.config_maps import ATTEMPTS, BudgetNotes

NOON = at("2026-11-26T12:00:00")
SPENT, LATER = spending(spent=7, unknown=1, until=NOON), spending(spent=8, until=NOON + 1)
AWAY = errors.Unreachable("connection refused")


def notes(api: ConfigMapApi) -> BudgetNotes:
    return BudgetNotes(cast(ApiClient, api), "gpu-admission")


def text(of: Spending) -> str:
    return msgspec.json.encode(of).decode()


def test_what_is_noted_is_read_of_its_namespace_only() -> None:
    api = ConfigMapApi(BUDGETS_CONFIG_MAP)
    notes(api).put("team", SPENT)
    assert notes(api).get("team") == SPENT
    assert notes(api).get("other") is None


def test_unspent_keys_are_not_noted() -> None:
    api = ConfigMapApi(BUDGETS_CONFIG_MAP)
    notes(api).put("team", replace(SPENT, spent={**SPENT.spent, T4: 0}, unknown={**SPENT.unknown, T4: 0}))
    assert api.data == {"team": text(SPENT)}


@cases(
    ("before", "put", "want"),
    the_first=({}, SPENT, {"team": SPENT}),
    a_later_count=({"team": SPENT}, LATER, {"team": LATER}),
    an_earlier_count_that_comes_late=({"team": LATER}, SPENT, {"team": LATER}),
    beside_others=({"other": LATER}, SPENT, {"other": LATER, "team": SPENT}),
    periods_that_ended_go=(
        {"other": LATER},
        spending(start=MONTH[1], end=at("2027-01-01"), until=MONTH[1]),
        {"team": spending(start=MONTH[1], end=at("2027-01-01"), until=MONTH[1])},
    ),
)
def test_what_becomes_of_notes(before: dict[str, Spending], put: Spending, want: dict[str, Spending]) -> None:
    api = ConfigMapApi(BUDGETS_CONFIG_MAP, {namespace: text(each) for namespace, each in before.items()})
    notes(api).put("team", put)
    assert api.data == {namespace: text(each) for namespace, each in want.items()}


def test_a_note_that_cannot_be_read_is_replaced() -> None:
    api = ConfigMapApi(BUDGETS_CONFIG_MAP, {"team": "{", "other": "none"})
    assert notes(api).get("team") is None
    notes(api).put("team", SPENT)
    assert api.data == {"team": text(SPENT)}


def test_a_note_is_written_again_after_a_conflict() -> None:
    api = ConfigMapApi(BUDGETS_CONFIG_MAP, {}, *[None, errors.Conflict("modified")] * 2)
    notes(api).put("team", SPENT)
    assert notes(api).get("team") == SPENT


@cases(
    ("fails", "error", "want"),
    the_api_server_is_away=([None, AWAY], errors.Unreachable, "connection refused"),
    others_keep_writing=(
        [None, errors.Conflict("modified")] * ATTEMPTS,
        errors.Conflict,
        "others kept writing to gpu-admission-budgets",
    ),
)
def test_an_error_that_may_pass_is_raised(
    fails: list[errors.ApiError | None], error: type[Exception], want: str
) -> None:
    with pytest.raises(error) as raised:
        notes(ConfigMapApi(BUDGETS_CONFIG_MAP, {}, *fails)).put("team", SPENT)
    assert str(raised.value) == want


def test_a_config_map_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    api = ConfigMapApi(BUDGETS_CONFIG_MAP)
    api.get = lambda *_, **__: b"<"  # type: ignore[method-assign]
    notes(api).put("team", SPENT)
    assert caplog.messages == [
        "team: what is spent of its budget is lost: the ConfigMap gpu-admission-budgets cannot be read: JSON is malformed: "
        "invalid character (byte 0)"
    ]


MISSING = errors.NotFound("not found")


@cases("fails", missing=[MISSING, MISSING], forbidden=[None, errors.Forbidden("no right")])
def test_an_error_that_stays_does_not_keep_a_quota_from_being_deleted(
    fails: list[errors.ApiError | None], caplog: pytest.LogCaptureFixture
) -> None:
    api = ConfigMapApi(BUDGETS_CONFIG_MAP, {}, *fails)
    with caplog.at_level(logging.ERROR):
        notes(api).put("team", SPENT)
    assert "team: what is spent of its budget is lost" in caplog.text
    assert notes(api).get("team") is None
