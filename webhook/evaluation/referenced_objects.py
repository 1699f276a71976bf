"""The objects that one object names, which have its pods or say how many GPUs these get (`refers` of a kind)."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from policies.finding import Finding, truncate
from webhook.configuration.loader import Configuration
from webhook.evaluation.facts import Facts
from webhook.workloads.places import workload_pods
from webhook.workloads.references import (
    GPUS_READ_IN_PODS,
    ObjectReference,
    ReferenceField,
    find_references,
    unread,
)
from webhook.workloads.unread import unread_gpus

MAX_FETCHED = 16
"""Objects that are read for one object; more of them count as not known."""


class ReferencedObjects:
    """What is known of the objects that the objects of one namespace name. Each is read once."""

    def __init__(self, facts: Facts, configuration: Configuration, namespace: str) -> None:
        self._facts, self._configuration, self._namespace = facts, configuration, namespace
        self._read: dict[ObjectReference, Any] = {}

    def find(self, field: ReferenceField) -> Any:
        """Return the object, as plain data; None if it is not known."""
        return next((other for _, other in self._known_candidates(field)), None)

    def _known_candidates(self, field: ReferenceField) -> Iterator[tuple[ObjectReference, Any]]:
        for candidate in field.candidates:
            if candidate not in self._read and len(self._read) < MAX_FETCHED:
                self._read[candidate] = self._facts.find_object(candidate)
            if isinstance(other := self._read.get(candidate), dict):
                yield candidate, other

    def findings(self, names: Iterable[ReferenceField]) -> Iterator[Finding]:
        """Yield a warning of each object whose pods request GPUs, and one of those that are not known."""
        unknown: list[tuple[ReferenceField, ReferenceField]] = []
        for field in names:
            missing: list[ReferenceField] = []
            if self._requests_gpus(field, missing):
                yield unread(path=field.path, message=GPUS_READ_IN_PODS(truncate(field.name)))
            elif missing:
                unknown.append((field, missing[0]))
        if unknown:
            yield _unknown_object_finding(
                *unknown[0], len({missing.candidates for _, missing in unknown[1:]})
            )

    def _requests_gpus(self, field: ReferenceField, missing: list[ReferenceField]) -> bool:
        """Whether the object, or one that it names, requests GPUs; `missing` gets those that are not known."""
        stack, seen = [field], set[ObjectReference]()
        while stack:
            each = stack.pop()
            candidate, other = next(self._known_candidates(each), (None, None))
            if candidate is None:
                missing.append(each)
            elif candidate not in seen:
                seen.add(candidate)
                group_kind = candidate.group, candidate.kind
                if self._has_gpus(group_kind, other):
                    return True
                stack += find_references(
                    self._configuration.workload_kinds, group_kind, self._namespace, other
                )
        return False

    def _has_gpus(self, group_kind: tuple[str, str], data: Any) -> bool:
        mapping, kinds = self._configuration.resource_mapping, self._configuration.workload_kinds
        with suppress(msgspec.ValidationError):  # the review of that object says so
            _, pods = workload_pods(kinds, *group_kind, msgspec.Raw(msgspec.json.encode(data)))
            requests = any(mapping.pod_requests_gpus(pod) for _, pod in pods)
            return requests or bool(unread_gpus(*group_kind, data, pods, mapping, kinds))
        return False


def _unknown_object_finding(field: ReferenceField, missing: ReferenceField, others: int) -> Finding:
    message = f"names a {missing.kind} that is not known here, nor are its GPUs"
    if missing is not field:
        message = (
            f"leads to {missing.kind} {truncate(missing.name)}, which is not known here, nor are its GPUs"
        )
    return unread(
        path=field.path,
        value=field.name,
        message=message + (f"; nor {'is' if others == 1 else 'are'} {others} more" if others else ""),
        remedy=f"apply the {missing.kind} first, or check both together",
    )
