"""Whether a server may replace its serving certificate by another one."""

import datetime as dt

from certs.check import PEMPair, PublishedBundles, observe, rejection_reasons
from certs.issue import KeyPair, issue_ca, issue_server
from tests.cases import cases

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DAY, SECOND = dt.timedelta(days=1), dt.timedelta(seconds=1)
NAME = "hook.ns.svc"
OLD = issue_ca(common_name="ours", now=NOW, lifetime=9 * DAY)
NEW = issue_ca(common_name="ours", now=NOW, lifetime=9 * DAY)
BOTH = OLD.certificate_pem() + NEW.certificate_pem()


def pair(authority: KeyPair, name: str = NAME) -> PEMPair:
    issued = issue_server(authority, names=[name], now=NOW, lifetime=DAY)
    return PEMPair(issued.certificate_pem(), issued.key_pem(), authority.certificate_pem())


def published(*bundles: bytes, seconds: int = 60) -> PublishedBundles:
    return observe(None, frozenset(bundles), (NAME,), NOW - seconds * SECOND)


HELD = pair(OLD)
OF_OLD, OF_NEW = OLD.certificate_pem(), NEW.certificate_pem()
NOT_YET = ["certificate: the published caBundle does not verify it yet"]
TOO_EARLY = ["certificate: not every caBundle has had its authority for 5 s yet"]


@cases(
    ("offered", "held", "seen", "want"),
    the_first=(HELD, None, None, []),
    the_first_though_not_published=(pair(NEW), None, published(OF_OLD), []),
    renewed=(pair(OLD), HELD, published(OF_OLD), []),
    new_authority_published_before=(pair(NEW), HELD, published(BOTH), []),
    new_authority_not_published=(pair(NEW), HELD, published(OF_OLD), NOT_YET),
    published_in_one_of_two=(pair(NEW), HELD, published(BOTH, OF_OLD), NOT_YET),
    published_just_now=(pair(NEW), HELD, published(BOTH, seconds=4), TOO_EARLY),
    the_one_in_use_is_refused_anyway=(pair(NEW), HELD, published(OF_NEW, seconds=0), []),
    no_bundle_yet=(pair(NEW), HELD, published(b""), []),
    no_configurations=(pair(NEW), HELD, published(), []),
    a_problem_of_the_first=(
        pair(OLD, name="other"),
        None,
        published(OF_OLD),
        ["certificate: does not carry the name hook.ns.svc"],
    ),
    a_problem_of_a_later_one=(
        PEMPair(HELD.certificate, HELD.key, OF_NEW),
        HELD,
        published(OF_OLD),
        ["certificate: must be issued by the authority"],
    ),
)
def test_a_pair_takes_the_place_of_another(
    offered: PEMPair, held: PEMPair | None, seen: PublishedBundles | None, want: list[str]
) -> None:
    assert rejection_reasons(offered, held, seen, NOW) == want


def test_an_authority_is_known_since_it_stood_in_every_bundle() -> None:
    first = observe(None, frozenset([OF_OLD]), (), NOW)
    one_of_two = observe(first, frozenset([OF_OLD, BOTH]), (), NOW + SECOND)
    both = observe(one_of_two, frozenset([BOTH]), (), NOW + 2 * SECOND)
    assert first.common_since == one_of_two.common_since == {OLD.certificate: NOW}
    assert both.common_since == {OLD.certificate: NOW, NEW.certificate: NOW + 2 * SECOND}
    assert observe(both, frozenset([BOTH, b"x"]), (), NOW).common_since == {}


def test_a_key_is_not_shown() -> None:
    assert "PRIVATE" not in repr(HELD)
