"""Warnings about valid documents.

Of policies: conflicts, pauses, exemptions that end or cover all, plain secrets, unknown namespaces. Of resource mappings: the
registered match conditions know some annotations, and a pod with none of them never reaches the webhook. Pods with others are
counted once they are stored, but never reviewed.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import msgspec

from policies.gpus.mapping_spec import ResourceMappingSpec
from policies.policy import Labels, Match, Policy, end_of_pause
from policies.registry import RULES_BY_ID
from policies.times import utc
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import WEBHOOK_CONFIGURATION_KINDS, webhook_configuration_path
from webhook.configuration.loader import Configuration

PathWarning = tuple[str, str]
"""Path in the document and the warning."""

_TOKEN = re.compile(r"\[[^\]]*\]|.")
_ANY, _ONE = "*", "?"

BUILT_IN_ANNOTATIONS = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")
"""The annotations that the chart always names."""
UNREVIEWED_KIND = "is not known to the registered webhooks: its pods are counted, and neither they nor changes of it are reviewed"
REMEDY = "add it to webhooks.fractionAnnotations of the chart"
CALL_SECONDS = 1.0
"""For one configuration, and for all schemas; the API server waits 5 s for the answer about a document."""

_ADDED_ANNOTATIONS = re.compile(r"(?<='gpu-fraction-num-devices')(,'[^']*')+")
"""What webhooks.fractionAnnotations adds to a condition, which stands here without white space."""


def policy_warnings(
    configuration: Configuration, name: str, now: datetime, namespaces: Mapping[str, Labels] | None
) -> Iterator[PathWarning]:
    """Yield warnings about the policy `name`; `namespaces` are those that exist, None if unknown."""
    ordered = configuration.policies.policies
    policy = next(policy for policy in ordered if policy.name == name)
    yield from _ended_warnings(policy, now)
    for rule_id, options in policy.spec.rules.items():
        yield from ((f"spec.rules.{rule_id}.{path}", message) for path, message in options.advice())
    at = ordered.index(policy)
    for other in ordered[:at]:
        yield from _conflict_warnings(policy, other, first=other, second=policy)
    for other in ordered[at + 1 :]:
        yield from _conflict_warnings(policy, other, first=policy, second=other)
    if namespaces is not None:
        yield from _unmatched_warnings(policy.spec.match, namespaces)


def _ended_warnings(policy: Policy, now: datetime) -> Iterator[PathWarning]:
    until = policy.spec.paused_until
    if until is not None:
        holds = f"until {utc(until)} every rule of this policy only audits"
        yield "spec.pausedUntil", holds if end_of_pause(until, now) else "has passed: nothing is paused"
    for index, exemption in enumerate(policy.spec.exemptions):
        if not exemption.is_in_force(now):
            yield f"spec.exemptions[{index}].until", "has passed: this exemption has ended"
        elif _covers(exemption, policy.spec.match) and (
            exemption.rules is None or RULES_BY_ID.keys() <= set(exemption.rules)
        ):
            covers = "covers every namespace of this policy and every rule: the policy has no effect"
            yield f"spec.exemptions[{index}]", covers


def _conflict_warnings(
    policy: Policy, other: Policy, *, first: Policy, second: Policy
) -> Iterator[PathWarning]:
    if not any(globs_meet(a, b) for a in policy.spec.match.namespaces for b in other.spec.match.namespaces):
        return
    if _covers(first.spec.match, second.spec.match):
        remedy = f"give {second.name} a spec.priority above {first.spec.priority}, or delete it"
        yield (
            "spec.match",
            f"{second.name} never governs: {first.name} comes first wherever it matches; {remedy}",
        )
    elif first.spec.priority == second.spec.priority:
        same = f"{policy.spec.priority} is also the priority of {other.name}, which can match the same namespaces"
        yield "spec.priority", f"{same}: {first.name} governs them, by name"
    elif not _covers(second.spec.match, first.spec.match):
        message = f"{other.name} can match the same namespaces: {first.name} governs them, by priority"
        yield "spec.match", message


def _covers(wide: Match, narrow: Match) -> bool:
    """Whether `wide` certainly matches every namespace that `narrow` matches."""
    if wide.namespace_selector is not None and wide.namespace_selector != narrow.namespace_selector:
        return False
    return all(any(glob_contains(w, n) for w in wide.namespaces) for n in narrow.namespaces)


def _unmatched_warnings(match: Match, namespaces: Mapping[str, Labels]) -> Iterator[PathWarning]:
    for index, glob in enumerate(match.namespaces):
        if not any(fnmatchcase(name, glob) for name in namespaces):
            yield f"spec.match.namespaces[{index}]", f'"{glob}" matches no existing namespace'
    selected = [labels for name, labels in namespaces.items() if match.matches_name(name)]
    selector = match.namespace_selector
    if selector is not None and selected and not any(selector.matches(dict(labels)) for labels in selected):
        yield "spec.match.namespaceSelector", "matches no existing namespace"


def globs_meet(one: str, other: str) -> bool:
    """Whether some text matches both globs. A set of characters counts as any character."""
    left, right = _tokens(one), _tokens(other)

    @cache
    def meet(i: int, j: int) -> bool:
        one_next, other_next = left[i : i + 1], right[j : j + 1]
        if one_next == [_ANY]:
            return meet(i + 1, j) or (bool(other_next) and meet(i, j + 1))
        if other_next == [_ANY]:
            return meet(i, j + 1) or (bool(one_next) and meet(i + 1, j))
        if not one_next or not other_next:
            return one_next == other_next
        return (_ONE in one_next + other_next or one_next == other_next) and meet(i + 1, j + 1)

    return meet(0, 0)


def glob_contains(wide: str, narrow: str) -> bool:
    """Whether certainly every text that matches `narrow` matches `wide`."""
    if "[" in narrow:
        return wide == _ANY
    # No namespace has these characters, so only a wildcard of `wide` takes them; two, because a ? takes one.
    samples = (narrow.replace(_ANY, filling).replace(_ONE, "\x01") for filling in ("", "\x01", "\x01\x01"))
    return all(fnmatchcase(sample, wide) for sample in samples)


def _tokens(glob: str) -> list[str]:
    return [_ONE if token.startswith("[") and len(token) > 1 else token for token in _TOKEN.findall(glob)]


def without_added_annotations(expression: str) -> str:
    """Return a match condition without white space, and without what webhooks.fractionAnnotations adds to it."""
    return _ADDED_ANNOTATIONS.sub("", "".join(expression.split()))


def match_conditions(webhooks: Iterable[Mapping[str, Any]]) -> set[str]:
    return {each["expression"] for webhook in webhooks for each in webhook.get("matchConditions") or ()}


def registered_conditions(api: ApiClient) -> Collection[str]:
    """Return all match conditions of both configurations; no conditions if one of them cannot be read."""
    conditions = set()
    for kind in WEBHOOK_CONFIGURATION_KINDS:
        try:
            answer = api.get(webhook_configuration_path(kind), timeout=CALL_SECONDS)
            conditions |= match_conditions(msgspec.json.decode(answer).get("webhooks") or ())
        except (errors.ApiError, msgspec.MsgspecError):
            return ()
    return conditions


def unregistered_annotations(
    spec: ResourceMappingSpec, conditions: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield path and key of every fraction annotation that a condition on such annotations lacks."""
    on_annotations = [condition for condition in conditions if f"'{BUILT_IN_ANNOTATIONS[0]}'" in condition]
    for index, annotation in enumerate(spec.fraction_annotations):
        key = annotation.key
        if key not in BUILT_IN_ANNOTATIONS and not all(f"'{key}'" in each for each in on_annotations):
            yield f"spec.fractionAnnotations[{index}].key", key
