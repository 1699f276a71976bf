"""Spec of a ClusterGPUQuota, the quota of a team over several namespaces, and which namespace belongs to which team.

A namespace belongs to at most one team. Of several that match it, it belongs to the one that has its name, else to the one with
the longest glob, else to one with a selector. If two match it in the same way, it belongs to the first by name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import translate
from functools import cached_property

import msgspec

from policies.pods.label_selector import LabelSelector
from policies.pods.names import is_dns_label
from policies.quota.amounts import (
    Amounts,
    Hard,
    amount_problems,
    exceeded_limits,
    limits_of,
    raw_limits,
    total,
)
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.team import team_title
from policies.quota.spec import LimitsSpec

MAX_NAMESPACES = 500
"""Namespaces of one team, and names in one spec. The ledgers of a team are in one object, which must stay below 1 MiB."""
AMOUNT_CHARACTERS = 14
"""Characters of an amount in that object: ten that quote and separate it, and four of the number."""
LONGEST_LIMITS = 1280
"""Characters of the names and amounts of `hard` at most: 38 names such as `classes/nvidia-a100`. Each ledger repeats them, and
takes some 500 besides: 500 * (1280 + 500) and LONGEST_GUARANTEED are 1.021 MB, and 1 MiB is 1.049 MB."""
LONGEST_GUARANTEED = 128 * 1024
"""Characters of the names and amounts of `guaranteed` at most: `gpus` and six classes for each of 500 namespaces."""
LONGEST_CONTACT = 256
"""Characters of `contact`, which denials repeat."""

_GLOB = re.compile(r"[-a-z0-9*?]{1,63}")
_STRICTNESS = (UnclassifiedPods.TOTAL_ONLY, UnclassifiedPods.MOST_EXPENSIVE, UnclassifiedPods.DENY)


class TeamNamespaces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Namespaces that one of the names matches, or the selector. In a name, `*` matches any characters, and `?` one."""

    names: tuple[str, ...] = ()
    selector: LabelSelector | None = None

    @cached_property
    def _literals(self) -> frozenset[str]:
        return frozenset(name for name in self.names if not _is_glob(name))

    @cached_property
    def _globs(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        """The longest one first."""
        globs = sorted(filter(_is_glob, self.names), key=len, reverse=True)
        return tuple((glob, re.compile(translate(glob))) for glob in globs)

    def matching(self, text: str) -> str:
        """Return the name, else the longest glob, that matches `text`, else ""."""
        if text in self._literals:
            return text
        return next((glob for glob, pattern in self._globs if pattern.match(text)), "")

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the spec, message)."""
        if not self.names and self.selector is None:
            yield "namespaces", "must have names, selector or both"
        if len(self.names) > MAX_NAMESPACES:
            yield "namespaces.names", f"must have at most {MAX_NAMESPACES} items"
        for index, name in enumerate(self.names):
            if not (_GLOB.fullmatch(name) if _is_glob(name) else is_dns_label(name)):
                message = (
                    "must be the name of a namespace, or a glob of lower case letters, digits, -, * and ?"
                )
                yield f"namespaces.names[{index}]", message
        for path, message in self.selector.problems() if self.selector is not None else ():
            yield f"namespaces.selector.{path}", message


class TeamSpec(LimitsSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spec of a ClusterGPUQuota document. `guaranteed`: by namespace, what of `hard` no other namespace may use."""

    namespaces: TeamNamespaces
    guaranteed: Mapping[str, Hard] = {}
    contact: str = ""

    @property
    def guarantees(self) -> dict[str, Amounts]:
        """The guaranteed amounts by namespace. Raises ValueError only if the spec has `problems`."""
        return {namespace: limits_of(hard) for namespace, hard in self.guaranteed.items()}

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from self.namespaces.problems()
        amounts = [*super().problems(), *self._unreadable_guarantees()]
        yield from amounts
        yield from self._guarantee_problems()
        yield from self._size_problems()
        for excess in () if amounts else exceeded_limits(total(self.guarantees.values()), self.amounts):
            message = (
                f"must not exceed hard in sum: {excess.key} is {excess.amount}, and hard has {excess.hard}"
            )
            yield "guaranteed", message
        if not (self.contact.isprintable() and len(self.contact) <= LONGEST_CONTACT):
            yield "contact", f"must be one line of at most {LONGEST_CONTACT} characters"

    def warnings(self) -> Iterator[tuple[str, str]]:
        if self.hard.gpus is None:
            limited = " and ".join(field for field in ("classes", "resources") if getattr(self.hard, field))
            message = (
                f"does not limit gpus: only its {limited} limit the team"
                if limited
                else "limits nothing: set gpus, classes or resources"
            )
            yield "hard", message
        yield from super().warnings()

    def _unreadable_guarantees(self) -> Iterator[tuple[str, str]]:
        for namespace, hard in self.guaranteed.items():
            yield from amount_problems(hard, f"guaranteed[{namespace}]")

    def _guarantee_problems(self) -> Iterator[tuple[str, str]]:
        if len(self.guaranteed) > MAX_NAMESPACES:
            yield "guaranteed", f"must have at most {MAX_NAMESPACES} items"
        limited = {key for key, _, _ in raw_limits(self.hard)}
        for namespace, hard in self.guaranteed.items():
            at = f"guaranteed[{namespace}]"
            if not is_dns_label(namespace):
                yield at, "must be the name of a namespace"
            elif self.namespaces.selector is None and not self.namespaces.matching(namespace):
                yield at, "must match an entry of namespaces.names"
            for key, path, _ in raw_limits(hard):
                if key not in limited:
                    yield f"{at}.{path}", f"must be limited by hard.{path}, too"

    def _size_problems(self) -> Iterator[tuple[str, str]]:
        limits = _characters(self.hard)
        guaranteed = sum(
            len(namespace) + AMOUNT_CHARACTERS + _characters(hard)
            for namespace, hard in self.guaranteed.items()
        )
        for field, number, limit in (
            ("hard", limits, LONGEST_LIMITS),
            ("guaranteed", guaranteed, LONGEST_GUARANTEED),
        ):
            if number > limit:
                how = f"names and {AMOUNT_CHARACTERS} for each amount"
                yield field, f"must be shorter: {number} characters ({how}), at most {limit}"


class TeamMatch(msgspec.Struct, frozen=True):
    """What decides which namespaces belong to a ClusterGPUQuota."""

    name: str
    namespaces: TeamNamespaces


class Teams:
    """All ClusterGPUQuotas, indexed to find the team of thousands of namespaces."""

    def __init__(self, teams: Iterable[TeamMatch | None] = ()) -> None:
        """None: a ClusterGPUQuota that cannot be read."""
        known = sorted(filter(None, teams), key=lambda team_match: team_match.name)
        names = [(name, team) for team in known for name in team.namespaces.names]
        names.sort(key=lambda named: _rank(named[0]))  # keeps the order of teams
        self._literals = {name: team for name, team in reversed(names) if not _is_glob(name)}
        self._globs = [(re.compile(translate(name)), team) for name, team in names if _is_glob(name)]
        selectors = ((team.namespaces.selector, team) for team in known)
        self._selectors = [(selector, team) for selector, team in selectors if selector is not None]

    def of(self, namespace: str, labels: Mapping[str, str]) -> TeamMatch | None:
        """Return the team to which the namespace belongs. Takes at most some 0.7 µs for each team."""
        if team := self.of_name(namespace):
            return team
        return next((team for selector, team in self._selectors if selector.matches(labels)), None)

    def of_name(self, namespace: str) -> TeamMatch | None:
        """Return the team that has a name for the namespace. Labels do not matter then."""
        if team := self._literals.get(namespace):
            return team
        return next((team for pattern, team in self._globs if pattern.match(namespace)), None)

    @property
    def has_selectors(self) -> bool:
        return bool(self._selectors)


def stricter_of(one: UnclassifiedPods, other: UnclassifiedPods) -> UnclassifiedPods:
    """Return the stricter value, for a namespace with a GPUQuota and a team: Deny, MostExpensive, TotalOnly."""
    return max(one, other, key=_STRICTNESS.index)


def limits_warnings(name: str, spec: LimitsSpec, teams: Iterable[TeamMatch]) -> Iterator[tuple[str, str]]:
    """Yield the warnings of a spec, and overlaps of a ClusterGPUQuota with others. `teams`: all known ClusterGPUQuotas."""
    yield from spec.warnings()
    if isinstance(spec, TeamSpec):
        for other in sorted(teams, key=lambda team_match: team_match.name):
            if other.name != name:
                yield from _overlap_warnings(TeamMatch(name, spec.namespaces), other)


def _overlap_warnings(team: TeamMatch, other: TeamMatch) -> Iterator[tuple[str, str]]:
    """Yield a warning if both certainly match the same namespaces, independent of labels.

    `vision-*` includes `vision-prod-*`. Globs that overlap only in part, such as `vision-*` and `*-prod`, are not found.
    """
    own, theirs = team.namespaces, other.namespaces
    pairs = {(name, match) for name in own.names if (match := theirs.matching(name))}
    pairs |= {(match, name) for name in theirs.names if (match := own.matching(name))}
    if pairs:
        own_name, other_name = min(pairs)
        more = f" ({len(pairs) - 1} more)" if len(pairs) > 1 else ""
        winner = min((_rank(own_name), team.name), (_rank(other_name), other.name))[1]
        yield (
            f"namespaces.names[{own.names.index(own_name)}]",
            f"overlaps {other_name} of {team_title(other.name)}{more}: a namespace that both match belongs to {winner}",
        )
    elif own.selector is not None and own.selector == theirs.selector:
        winner = min(team.name, other.name)
        yield (
            "namespaces.selector",
            f"equals the selector of {team_title(other.name)}: a namespace that no name matches belongs to {winner}",
        )


def _rank(name: str) -> tuple[bool, int]:
    """Return the sort key: names before globs, and longer globs before shorter ones."""
    return (True, -len(name)) if _is_glob(name) else (False, 0)


def _is_glob(name: str) -> bool:
    return "*" in name or "?" in name


def _characters(hard: Hard) -> int:
    return sum(len(key) + AMOUNT_CHARACTERS for key, _, _ in raw_limits(hard))
