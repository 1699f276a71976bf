"""Published catalogues: what is read on demand, what is believed, and what becomes of a ConfigMap that others write."""

from collections.abc import Callable
from typing import cast

import pytest

from policies.gpus.classes import GPUClasses
from policies.quota.catalogue import CatalogueVersion, PublishedCatalogue, catalogue_digest, write_catalogue
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import LedgerError
from tests.builders import CLASSES, RESOURCE_MAPPING, quota_ledger
from tests.cases import cases
from tests.webhook.quota.config_map_api import ConfigMapApi
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import CATALOGUES_CONFIG_MAP
from webhook.quota import config_maps
from webhook.quota.config_maps import ATTEMPTS, PublishedCatalogues

OURS = PublishedCatalogue(CLASSES, RESOURCE_MAPPING)
THEIRS = PublishedCatalogue(GPUClasses(list(CLASSES)[:1]), RESOURCE_MAPPING)
OUR_DIGEST, THEIR_DIGEST = catalogue_digest(OURS), catalogue_digest(THEIRS)
AWAY = errors.Unreachable("connection refused")


def published(api: ConfigMapApi) -> PublishedCatalogues:
    return PublishedCatalogues(cast(ApiClient, api), "gpu-admission", lambda: OURS)


def ledger(*digests: str) -> QuotaLedger:
    versions = [str(CatalogueVersion(each, UnclassifiedPods.TOTAL_ONLY)) for each in digests]
    now, following = (*versions, None)[:2]
    return quota_ledger(class_catalogue=now, next_catalogue=following)


@cases(
    ("ledger_object", "data", "found", "calls"),
    our_own_is_not_looked_up=(ledger(OUR_DIGEST), {}, set(), 0),
    another=(ledger(THEIR_DIGEST), {THEIR_DIGEST: THEIRS}, {THEIR_DIGEST}, 1),
    the_next=(ledger(OUR_DIGEST, THEIR_DIGEST), {THEIR_DIGEST: THEIRS}, {THEIR_DIGEST}, 1),
    not_published=(ledger(THEIR_DIGEST), {}, set(), 1),
    another_content_under_its_name=(ledger(THEIR_DIGEST), {THEIR_DIGEST: OURS}, set(), 1),
)
def test_what_a_ledger_names_is_read_on_demand(
    ledger_object: QuotaLedger, data: dict[str, PublishedCatalogue], found: set[str], calls: int
) -> None:
    api = ConfigMapApi(
        CATALOGUES_CONFIG_MAP, {digest: write_catalogue(each) for digest, each in data.items()}
    )

    named = published(api).named_by(ledger_object, 1.0)

    assert set(named) == found
    assert {catalogue_digest(each) for each in named.values()} == found
    assert len(api.calls) == calls


def test_what_was_read_is_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_maps, "MAX_REMEMBERED", 2)
    others = [PublishedCatalogue(GPUClasses([each]), RESOURCE_MAPPING) for each in CLASSES][:3]
    digests = [catalogue_digest(each) for each in others]
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP, dict(zip(digests, map(write_catalogue, others), strict=True)))
    read = published(api)

    for number in (0, 0, 1, 0, 1, 2, 1, 0):
        assert read.get(digests[number]) is not None

    assert len(api.calls) == 4, "three, and the first again, which the third put out"


@cases("failure", unreachable=AWAY, overloaded=errors.Unavailable("overloaded"))
def test_an_api_server_that_is_away_is_an_error_that_may_pass(failure: Exception) -> None:
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP, {}, failure)
    with pytest.raises(LedgerError) as raised:
        published(api).named_by(ledger(THEIR_DIGEST), 1.0)
    assert str(raised.value) == f"the class catalogue of the quota could not be read: {failure}"
    assert raised.value.transient


FORBIDDEN, MISSING = errors.Forbidden("no"), errors.NotFound("none")


@cases("failure", forbidden=FORBIDDEN, missing=MISSING)
def test_what_nobody_may_read_is_not_published(failure: Exception) -> None:
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP, {}, failure)
    assert published(api).named_by(ledger(THEIR_DIGEST), 1.0) == {}


RACED = errors.Conflict("the object has been modified")


@cases(
    ("fails", "done", "calls"),
    at_once=([], True, ["get", "patch"]),
    after_a_race=([None, RACED], True, ["get", "patch"] * 2),
    no_config_map=([MISSING], False, ["get"]),
    no_right=([None, FORBIDDEN], False, ["get", "patch"]),
    too_long=([None, errors.ApiError("too long")], False, ["get", "patch"]),
)
def test_a_catalogue_is_published_once(
    fails: list[Exception | None], done: bool, calls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP, {"other": "of somebody else"}, *fails)
    publisher = published(api)

    assert publisher.publish(OURS) is done
    assert api.calls == calls
    if done:
        assert publisher.publish(OURS)
        assert api.calls == calls
        assert api.data == {"other": "of somebody else", OUR_DIGEST: write_catalogue(OURS)}
    else:
        assert caplog.messages == [
            f"ConfigMap gpu-admission-catalogues: catalogue {OUR_DIGEST} cannot be published: {fails[-1]}"
        ]


def test_an_api_server_that_is_away_may_publish_later() -> None:
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP, {}, AWAY)

    with pytest.raises(errors.Unreachable):
        published(api).publish(OURS)


def test_a_catalogue_that_others_always_write_first() -> None:
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP, {}, *[None, RACED] * ATTEMPTS)

    with pytest.raises(errors.Conflict) as raised:
        published(api).publish(OURS)

    assert str(raised.value) == "others kept writing to gpu-admission-catalogues"


def test_a_config_map_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP)
    api.get = lambda *_, **__: b"<"  # type: ignore[method-assign]

    assert not published(api).publish(OURS)
    assert caplog.messages == [
        f"ConfigMap gpu-admission-catalogues: catalogue {OUR_DIGEST} cannot be published: the ConfigMap "
        "gpu-admission-catalogues cannot be read: JSON is malformed: invalid character (byte 0)"
    ]


@cases(
    "notices",
    wiped=lambda publisher: publisher.prune({OUR_DIGEST}),
    removed_by_another_leader=lambda publisher: publisher.forget(),
)
def test_what_is_gone_is_published_again(notices: Callable[[PublishedCatalogues], object]) -> None:
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP)
    publisher = published(api)
    assert publisher.publish(OURS)
    api.data.clear()

    notices(publisher)

    assert publisher.publish(OURS)
    assert list(api.data) == [OUR_DIGEST], "a ledger would name a catalogue that nobody can read"


def test_a_controller_that_leads_again_restarts_the_time_without_a_name_of_a_catalogue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(config_maps, "monotonic", lambda: now[0])
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP, {"theirs": "1"})
    publisher = published(api)
    publisher.prune(set())
    publisher.forget()
    now[0] = 601.0

    publisher.prune(set())

    assert set(api.data) == {"theirs"}, "the leader in between may have named it a moment ago"


def test_only_what_no_ledger_has_named_for_long_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(config_maps, "monotonic", lambda: now[0])
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP, {"named": "1", "unnamed": "2", "later": "3"})
    publisher = published(api)

    for seconds, named in (
        (0, {"named", "later"}),
        (300, {"named", "later"}),
        (601, {"named"}),
        (900, {"named"}),
    ):
        now[0] = seconds
        publisher.prune(named)

    assert set(api.data) == {"named", "later"}


def test_what_is_not_published_is_not_read_by_every_review(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(config_maps, "monotonic", lambda: now[0])
    api = ConfigMapApi(CATALOGUES_CONFIG_MAP)
    found = published(api)

    assert [found.get(THEIR_DIGEST) for _ in range(3)] == [None, None, None]
    assert api.calls == ["get"]

    api.data[THEIR_DIGEST] = write_catalogue(THEIRS)
    now[0] += config_maps.RETRY_MISSING_SECONDS
    assert found.get(THEIR_DIGEST) is not None
