"""A namespace without a ledger is denied if it belongs to a team, and one without a team pays little."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from policies.quota.quota_request import LedgerError
from tests.cases import cases
from tests.webhook.quota.ledger_api import LedgerApi
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.quota.no_quota import LISTED_SECONDS, TeamLookup
from webhook.quota.team_documents import team_path

NAMED = {"names": ["vision-*"]}
SELECTED = {"selector": {"matchLabels": {"team": "vision"}}}


def document(name: str, namespaces: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"namespaces": namespaces, "hard": {"gpus": 4}}}


def world(*namespaces: dict[str, Any]) -> LedgerApi:
    api = LedgerApi()
    api.teams = [document(f"team-{number}", each) for number, each in enumerate(namespaces)]
    api.put_namespace("vision-cv", {"team": "vision"})
    api.put_namespace("speech", {})
    return api


@cases(
    ("teams", "namespace", "want", "labels_read"),
    no_team=([], "vision-cv", None, False),
    by_name=([NAMED], "vision-cv", "team-0", False),
    of_another_name=([NAMED], "speech", None, False),
    by_label=([SELECTED], "vision-cv", "team-0", True),
    without_the_label=([SELECTED], "speech", None, True),
    a_selector_of_what_is_not_there=(
        [{"selector": {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}}],
        "vision-cv",
        None,
        True,
    ),
    a_name_before_a_label=([SELECTED, NAMED], "vision-cv", "team-1", False),
)
def test_the_team_of_a_namespace(
    teams: list[dict[str, Any]], namespace: str, want: str | None, labels_read: bool
) -> None:
    api = world(*teams)
    found = TeamLookup(cast(ApiClient, api)).of(namespace, 1.0)
    assert (found.name if found else None) == want
    assert (api_path("/api/v1", "namespaces", namespace) in api.reads) is labels_read


def test_a_list_serves_all_namespaces_for_a_second() -> None:
    api, now = world(NAMED), 100.0
    lookup = TeamLookup(cast(ApiClient, api), lambda: now)
    for namespace in ("speech", "vision-cv", "speech"):
        lookup.of(namespace, 1.0)
    assert api.reads == [team_path()]
    now += LISTED_SECONDS
    lookup.of("speech", 1.0)
    assert api.reads == [team_path()] * 2


def test_a_list_of_another_epoch_serves_nobody() -> None:
    api, known = world(NAMED), [0]
    lookup = TeamLookup(cast(ApiClient, api), lambda: 100.0, lambda: known[0])
    for known[0] in (1, 1, 2, 2):
        lookup.of("speech", 1.0)
    assert api.reads == [team_path()] * 2


def test_a_namespace_that_is_not_there_is_no_answer() -> None:
    with pytest.raises(LedgerError) as raised:
        TeamLookup(cast(ApiClient, world(SELECTED))).of("new", 1.0)
    assert str(raised.value) == (
        'the ClusterGPUQuotas could not be read: namespaces.gpu-admission.dev "new" not found'
    )
    assert raised.value.transient


def test_a_list_that_takes_too_long() -> None:
    lookup = TeamLookup(cast(ApiClient, world(NAMED)))
    lookup._listing.acquire()
    with pytest.raises(LedgerError) as raised:
        lookup.of("speech", 0.01)
    assert str(raised.value) == "the ClusterGPUQuotas could not be read: the list took too long"


def test_a_team_that_cannot_be_read() -> None:
    api = SimpleNamespace(get=lambda *_, **__: b"<")
    with pytest.raises(LedgerError) as raised:
        TeamLookup(cast(ApiClient, api)).of("speech", 1.0)
    assert str(raised.value) == (
        "the ClusterGPUQuotas cannot be read: JSON is malformed: invalid character (byte 0)"
    )


def test_while_the_kind_is_not_served_no_namespace_has_a_team(caplog: pytest.LogCaptureFixture) -> None:
    api, now = world(NAMED), 100.0
    lookup = TeamLookup(cast(ApiClient, api), lambda: now)
    for fails in (errors.NotFound("404 page not found"), errors.NotFound("404 page not found"), None):
        api.teams_fail, now = fails, now + LISTED_SECONDS
        found = lookup.of("vision-cv", 1.0)
        assert (found is None) is (fails is not None)
    assert set(caplog.messages) == {"the API server does not serve ClusterGPUQuotas: no namespace has a team"}


@cases(
    ("error", "is_transient"),
    it_starts_and_knows_no_kind_yet=(errors.Unavailable("the request has been made before"), True),
    it_is_away=(errors.Unreachable("denied"), True),
    a_missing_right=(errors.Forbidden("may not list"), False),
    unknown=(errors.ApiError("HTTP 400"), False),
)
def test_no_other_error_means_that_there_are_no_teams(error: errors.ApiError, is_transient: bool) -> None:
    api = world(NAMED)
    api.teams_fail = error
    with pytest.raises(LedgerError) as raised:
        TeamLookup(cast(ApiClient, api)).of("speech", 1.0)
    assert str(raised.value) == f"the ClusterGPUQuotas could not be read: {error}"
    assert raised.value.transient is is_transient


def test_a_namespace_of_a_team_without_a_ledger_was_never_counted() -> None:
    api = world(NAMED)
    found = api.store().read("vision-cv", 1.0)
    assert found is not None
    assert (found.ledger.used, found.ledger.hard, found.version) == (None, {}, "")
    assert api.store().read("speech", 1.0) is None


@cases(
    ("team", "namespace", "want"),
    by_name=(NAMED, "vision-cv", True),
    by_label=(SELECTED, "vision-cv", True),
    of_no_team=(SELECTED, "speech", False),
    a_name_of_what_was_deleted=(NAMED, "vision-gone", False),
    a_label_of_what_was_deleted=(SELECTED, "gone", False),
)
def test_a_namespace_belongs_to_a_team_while_it_is_there(
    team: dict[str, Any], namespace: str, want: bool
) -> None:
    assert world(team).store().has_team(namespace, 1.0) is want
