"""Which pair a server may present, and which one it keeps instead."""

import datetime as dt

from certs.acceptance import PEMPair, PublishedBundles, objections, observe
from certs.issue import KeyPair, issue_authority, issue_server
from tests.cases import cases

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DAY, SECOND = dt.timedelta(days=1), dt.timedelta(seconds=1)
NAME = "hook.ns.svc"
OLD = issue_authority(common_name="ours", now=NOW, lifetime=9 * DAY)
NEW = issue_authority(common_name="ours", now=NOW, lifetime=9 * DAY)
BOTH = OLD.certificate_pem() + NEW.certificate_pem()


def pair(authority: KeyPair, name: str = NAME) -> PEMPair:
    issued = issue_server(authority, names=[name], now=NOW, lifetime=DAY)
    return PEMPair(issued.certificate_pem(), issued.key_pem(), authority.certificate_pem())


def published(*bundles: bytes, seconds: int = 60) -> PublishedBundles:
    return observe(None, frozenset(bundles), (NAME,), NOW - seconds * SECOND)


HELD = pair(OLD)
OF_OLD, OF_NEW = OLD.certificate_pem(), NEW.certificate_pem()
NOT_YET = ["certificate: the published caBundle does not verify it yet"]
TOO_EARLY = ["certificate: its authority was published only a moment ago"]


@cases(
    ("offered", "held", "seen", "want"),
    {
        "the-first": (HELD, None, None, []),
        "the-first-though-not-published": (pair(NEW), None, published(OF_OLD), []),
        "renewed": (pair(OLD), HELD, published(OF_OLD), []),
        "new-authority-published-before": (pair(NEW), HELD, published(BOTH), []),
        "new-authority-not-published": (pair(NEW), HELD, published(OF_OLD), NOT_YET),
        "published-in-one-of-two": (pair(NEW), HELD, published(BOTH, OF_OLD), NOT_YET),
        "published-just-now": (pair(NEW), HELD, published(BOTH, seconds=4), TOO_EARLY),
        "the-one-in-use-is-refused-anyway": (pair(NEW), HELD, published(OF_NEW, seconds=0), []),
        "no-bundle-yet": (pair(NEW), HELD, published(b""), []),
        "no-configurations": (pair(NEW), HELD, published(), []),
        "a-problem-of-the-first": (
            pair(OLD, name="other"),
            None,
            published(OF_OLD),
            ["certificate: does not carry the name hook.ns.svc"],
        ),
        "a-problem-of-a-later-one": (
            PEMPair(HELD.certificate, HELD.key, OF_NEW),
            HELD,
            published(OF_OLD),
            ["certificate: must be issued by the authority"],
        ),
    },
)
def test_a_pair_takes_the_place_of_another(
    offered: PEMPair, held: PEMPair | None, seen: PublishedBundles | None, want: list[str]
) -> None:
    assert objections(offered, held, seen, NOW) == want


def test_an_authority_is_known_since_it_stood_in_every_bundle() -> None:
    first = observe(None, frozenset([OF_OLD]), (), NOW)
    one_of_two = observe(first, frozenset([OF_OLD, BOTH]), (), NOW + SECOND)
    both = observe(one_of_two, frozenset([BOTH]), (), NOW + 2 * SECOND)
    assert first.carried == one_of_two.carried == {OLD.certificate: NOW}
    assert both.carried == {OLD.certificate: NOW, NEW.certificate: NOW + 2 * SECOND}
    assert observe(both, frozenset([BOTH, b"x"]), (), NOW).carried == {}


def test_a_key_is_not_shown() -> None:
    assert "PRIVATE" not in repr(HELD)
