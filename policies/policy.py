"""GPUPolicy documents, and the one that governs a namespace.

Exactly one policy governs a namespace: the highest `priority`, then the first name in alphabetical order. The options of a rule
that it does not name come from the policy `default`, else they are the rule's built-in defaults.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache

import msgspec

from policies.finding import PLATFORM_TEAM
from policies.pods.label_selector import LabelSelector
from policies.registry import RULES
from policies.rule import Mode, Need, Rule, RuleOptions

LONGEST_HELP = 256
"""Characters of `help`, which every denial repeats."""

BUILT_IN = "built-in"
DEFAULT = "default"

Labels = tuple[tuple[str, str], ...]
"""Labels of a namespace, sorted by key."""


class TemplateMode(Enum):
    """What a denial of a pod template (a Deployment's, a Job's) does: a warning, or the workload is refused."""

    WARN = "warn"
    ENFORCE = "enforce"


class Match(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Namespaces whose name matches one of the globs, and whose labels match the selector, if there is one."""

    namespaces: tuple[str, ...] = ("*",)
    namespace_selector: LabelSelector | None = None

    @property
    def matches_all(self) -> bool:
        """Whether every namespace certainly matches."""
        return "*" in self.namespaces and self.namespace_selector is None

    def matches_name(self, namespace: str) -> bool:
        return any(fnmatchcase(namespace, glob) for glob in self.namespaces)

    def matches(self, namespace: str, labels: Labels = ()) -> bool:
        selector = self.namespace_selector
        return self.matches_name(namespace) and (selector is None or selector.matches(dict(labels)))

    def __str__(self) -> str:
        labelled = f" labelled {self.namespace_selector}" if self.namespace_selector is not None else ""
        return ", ".join(self.namespaces) + labelled


class Exemption(Match, frozen=True, kw_only=True):
    """Namespaces that are exempt from `rules` (None: from all), the reason, and the last day (UTC)."""

    namespaces: tuple[str, ...]
    reason: str
    rules: tuple[str, ...] | None = None
    until: date | None = None

    def exempts(self, rule_id: str, now: datetime) -> bool:
        """Whether the exemption of the rule is in force at `now`."""
        return (self.rules is None or rule_id in self.rules) and self.is_in_force(now)

    def is_in_force(self, now: datetime) -> bool:
        return self.until is None or now.astimezone(UTC) < end_of(self.until)


def end_of_pause(until: datetime | None, now: datetime) -> datetime | None:
    """Return the end of a pause (break glass) that is in force, else None."""
    return until if until is not None and now < until else None


def end_of(day: date) -> datetime:
    """Return the moment at which `day` ends, in UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Spec of a GPUPolicy document; `rules` holds typed options by rule id."""

    priority: int = 0
    match: Match = Match()
    paused_until: datetime | None = None
    exemptions: tuple[Exemption, ...] = ()
    templates: TemplateMode = TemplateMode.WARN
    help: str = ""
    """A contact or a URL."""
    rules: Mapping[str, RuleOptions] = {}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    spec: PolicySpec = PolicySpec()


BUILT_IN_POLICY = Policy(
    name=BUILT_IN,
    version=BUILT_IN,
    spec=PolicySpec(
        exemptions=(Exemption(namespaces=("kube-system",), reason="the cluster's own components"),)
    ),
)
"""The policy of namespaces that no document matches."""


class BoundRule(msgspec.Struct, frozen=True):
    """A rule with its options for a namespace, and their source: a policy's name, or `built-in`."""

    rule: Rule
    options: RuleOptions
    source: str


class EffectivePolicy(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The policy of one namespace: its rules in the order of the registry, without disabled ones, and its exemptions."""

    name: str
    version: str
    why: str
    namespace: str
    bound_rules: tuple[BoundRule, ...]
    paused_until: datetime | None = None
    exemptions: tuple[Exemption, ...] = ()
    templates: TemplateMode = TemplateMode.WARN
    help: str = ""

    @cached_property
    def contact(self) -> str:
        return f"{PLATFORM_TEAM} ({self.help})" if "://" in self.help else self.help or PLATFORM_TEAM

    def mode(self, bound: BoundRule, now: datetime) -> Mode:
        """Return the mode of a rule at `now`: audit while the policy is paused (break glass), disabled if it is exempt."""
        if self.exemptions and self.exemption(bound.rule.id, now) is not None:
            return Mode.DISABLED
        return Mode.AUDIT if self.paused_until_at(now) is not None else bound.options.mode

    def rules(self, now: datetime) -> tuple[tuple[BoundRule, Mode], ...]:
        """Return the rules that are in force at `now`, with their modes."""
        if not self.exemptions and self.paused_until_at(now) is None:
            return self._rules_without_pause
        modes = ((bound, self.mode(bound, now)) for bound in self.bound_rules)
        return tuple((bound, mode) for bound, mode in modes if mode is not Mode.DISABLED)

    @cached_property
    def _rules_without_pause(self) -> tuple[tuple[BoundRule, Mode], ...]:
        return tuple(
            (rule, rule.options.mode) for rule in self.bound_rules if rule.options.mode is not Mode.DISABLED
        )

    @cached_property
    def needs(self) -> frozenset[Need]:
        """What enabled rules need."""
        return frozenset[Need]().union(*(bound.rule.needs for bound, _ in self._rules_without_pause))

    def paused_until_at(self, now: datetime) -> datetime | None:
        return end_of_pause(self.paused_until, now)

    def in_force(self, rule_id: str, now: datetime) -> tuple[BoundRule, Mode] | None:
        """Return a rule and its mode, if it is in force at `now`."""
        return next((rule for rule in self.rules(now) if rule[0].rule.id == rule_id), None)

    def mode_of(self, rule_id: str, now: datetime) -> Mode:
        held = self.in_force(rule_id, now)
        return Mode.DISABLED if held is None else held[1]

    def exemption_in_force(self, now: datetime) -> Exemption | None:
        """Return the exemption of the first rule that has one."""
        if not self.exemptions:
            return None
        exemptions = (self.exemption(bound_rule.rule.id, now) for bound_rule in self.bound_rules)
        return next((exemption for exemption in exemptions if exemption is not None), None)

    def exemption(self, rule_id: str, now: datetime) -> Exemption | None:
        return next((exemption for exemption in self.exemptions if exemption.exempts(rule_id, now)), None)

    def options_of(self, rule_id: str) -> RuleOptions | None:
        return self._options.get(rule_id)

    @cached_property
    def _options(self) -> Mapping[str, RuleOptions]:
        return {bound.rule.id: bound.options for bound in self.bound_rules}


class PolicySet:
    """All policies, and for each namespace the one that governs it."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = tuple(sorted(policies, key=lambda policy: (-policy.spec.priority, policy.name)))
        self._default = next((policy for policy in self.policies if policy.name == DEFAULT), None)
        self.has_selectors = any(
            match.namespace_selector is not None
            for policy in self.policies
            for match in (policy.spec.match, *policy.spec.exemptions)
        )
        rules = [rule for policy in self.policies for rule in policy.spec.rules.items()]
        self.lets_pods_wait = any(options.queues_pods for _, options in rules)
        enabled = {rule_id for rule_id, options in rules if options.mode is not Mode.DISABLED}
        # Of rules that no document names, and that are on by default, only gpu-quota needs something: its ledger, if any.
        self.needs = frozenset[Need]().union(*(rule.needs for rule in RULES if rule.id in enabled))
        # Namespaces come and go, so the cache is bounded.
        self.for_namespace = lru_cache(maxsize=4096)(self._for_namespace)

    def depends_on_labels(self, namespace: str) -> bool:
        """Whether the policy of the namespace, or an exemption in it, depends on the namespace's labels."""
        if not self.has_selectors:
            return False
        for policy in self.policies:
            if policy.spec.match.matches_name(namespace):
                exempted = (each for each in policy.spec.exemptions if each.matches_name(namespace))
                return any(each.namespace_selector is not None for each in (policy.spec.match, *exempted))
        return False

    def _for_namespace(self, namespace: str, labels: Labels = ()) -> EffectivePolicy:
        """Return the policy of the namespace; called through the cache `for_namespace`."""
        matching = [policy for policy in self.policies if policy.spec.match.matches(namespace, labels)]
        policy, *rivals = matching or [BUILT_IN_POLICY]
        why = f"matches {policy.spec.match} with priority {policy.spec.priority}"
        if rivals:
            why += f", before {', '.join(rival.name for rival in rivals)}"
        bound_rules = (self.bound(rule, policy) for rule in RULES)
        return EffectivePolicy(
            name=policy.name,
            version=policy.version,
            why=why if matching else "no policy matches this namespace",
            namespace=namespace,
            bound_rules=tuple(bound for bound in bound_rules if bound.options.mode is not Mode.DISABLED),
            paused_until=policy.spec.paused_until,
            exemptions=tuple(each for each in policy.spec.exemptions if each.matches(namespace, labels)),
            templates=policy.spec.templates,
            help=policy.spec.help,
        )

    def bound(self, rule: Rule, policy: Policy) -> BoundRule:
        """Return the options of a rule in namespaces of `policy`, also if they disable it."""
        for candidate in (policy, self._default):
            if candidate is not None and rule.id in candidate.spec.rules:
                return BoundRule(rule, candidate.spec.rules[rule.id], candidate.name)
        return BoundRule(rule, rule.options(), BUILT_IN)
