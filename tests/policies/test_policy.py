"""What a policy says at a moment: its rules, its pause, its exemptions."""

from datetime import UTC, date, datetime, timedelta

from policies.pods.label_selector import LabelSelector
from policies.policy import Exemption, Match, Policy, PolicySet, PolicySpec, end_of
from policies.rule import Mode, Need
from policies.rules.disruption import DisruptionOptions
from policies.rules.gpu_requests import GPURequestsOptions
from tests.cases import cases


@cases(
    ("day", "want"),
    a_day_ends_as_the_next_begins=(date(2026, 12, 31), datetime(2027, 1, 1, tzinfo=UTC)),
    leap_year=(date(2028, 2, 28), datetime(2028, 2, 29, tzinfo=UTC)),
)
def test_end_of_a_day(day: date, want: datetime) -> None:
    assert end_of(day) == want


NOW = datetime(2027, 1, 2, 12, tzinfo=UTC)
OFF = {"gpu-requests": GPURequestsOptions(mode=Mode.DISABLED)}


def exempt(name: str = "team", until: date | None = None, rules: tuple[str, ...] | None = None) -> PolicySpec:
    each = Exemption(namespaces=(name,), reason="migration", until=until, rules=rules)
    return PolicySpec(exemptions=(each,), paused_until=NOW)


@cases(
    ("spec", "want"),
    as_written=(PolicySpec(), Mode.ENFORCE),
    disabled=(PolicySpec(rules=OFF), Mode.DISABLED),
    paused=(PolicySpec(paused_until=NOW + timedelta(seconds=1)), Mode.AUDIT),
    the_pause_has_ended=(PolicySpec(paused_until=NOW), Mode.ENFORCE),
    exempt=(exempt(), Mode.DISABLED),
    exempt_on_the_last_day=(exempt(until=date(2027, 1, 2)), Mode.DISABLED),
    exempt_until_yesterday=(exempt(until=date(2027, 1, 1)), Mode.ENFORCE),
    exempt_from_this_rule=(exempt(rules=("spot", "gpu-requests")), Mode.DISABLED),
    exempt_from_another_rule=(exempt(rules=("spot",)), Mode.ENFORCE),
    another_namespace_is_exempt=(exempt("other"), Mode.ENFORCE),
)
def test_how_strictly_a_rule_holds(spec: PolicySpec, want: Mode) -> None:
    effective = PolicySet([Policy(name="default", version="1", spec=spec)]).for_namespace("team")

    assert effective.mode_of("gpu-requests", NOW) is want


@cases(
    ("namespace", "why"),
    the_only_one=("web", "matches ml-a, web with priority 0"),
    before_another=("ml-a", "matches ml-* with priority 2, before second"),
    none=("other", "no policy matches this namespace"),
    the_clusters_own=("kube-system", "no policy matches this namespace"),
)
def test_why_a_policy_governs(namespace: str, why: str) -> None:
    first = Policy(name="first", version="1", spec=PolicySpec(priority=2, match=Match(namespaces=("ml-*",))))
    second = Policy(name="second", version="1", spec=PolicySpec(match=Match(namespaces=("ml-a", "web"))))

    effective = PolicySet([first, second]).for_namespace(namespace)

    assert effective.why == why
    exempt = ["the cluster's own components"] if namespace == "kube-system" else []
    assert [each.reason for each in effective.exemptions] == exempt


def test_a_selector_is_said_too() -> None:
    match = Match(namespaces=("ml-*",), namespace_selector=LabelSelector(match_labels={"team": "ml"}))
    policy = Policy(name="labelled", version="1", spec=PolicySpec(match=match))

    effective = PolicySet([policy]).for_namespace("ml-a", (("team", "ml"),))

    assert effective.why == "matches ml-* labelled team=ml with priority 0"


@cases(
    ("spec", "want"),
    of_all_rules=(exempt(), True),
    of_one_rule=(exempt(rules=("gpu-toleration",)), True),
    until_yesterday=(exempt(until=date(2027, 1, 1)), False),
    none=(PolicySpec(), False),
)
def test_whether_an_exemption_is_in_force(spec: PolicySpec, want: bool) -> None:
    effective = PolicySet([Policy(name="default", version="1", spec=spec)]).for_namespace("team")

    assert effective.exemption_in_force(NOW) == (spec.exemptions[0] if want else None)


@cases(
    ("options", "namespace", "want"),
    enabled=(DisruptionOptions(mode=Mode.AUDIT), "team", (True, True)),
    enabled_elsewhere=(DisruptionOptions(mode=Mode.AUDIT), "web", (True, False)),
    disabled=(DisruptionOptions(), "team", (False, False)),
)
def test_what_makes_pods_is_read_only_where_a_rule_needs_it(
    options: DisruptionOptions, namespace: str, want: tuple[bool, bool]
) -> None:
    spec = PolicySpec(match=Match(namespaces=("team",)), rules={"disruption": options})
    policies = PolicySet([Policy(name="team", version="1", spec=spec)])

    assert tuple(Need.OWNER in each.needs for each in (policies, policies.for_namespace(namespace))) == want
