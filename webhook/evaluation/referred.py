"""The objects that one object names, which have its pods or say how many GPUs these get (`refers` of a kind)."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from policies.finding import Finding, truncate
from webhook.configuration.loader import Configuration
from webhook.evaluation.facts import Facts
from webhook.workloads.places import workload_pods
from webhook.workloads.references import GPUS_READ_IN_PODS, ObjectName, Referred, referred, unread
from webhook.workloads.unread import unread_gpus

MAX_READ = 16
"""Objects that are read for one object; more of them count as not known."""


class ReferredObjects:
    """What is known of the objects that the objects of one namespace name. Each is read once."""

    def __init__(self, facts: Facts, configuration: Configuration, namespace: str) -> None:
        self._facts, self._configuration, self._namespace = facts, configuration, namespace
        self._read: dict[ObjectName, Any] = {}

    def find(self, name: Referred) -> Any:
        """Return the object, as plain data; None if it is not known."""
        return next((other for _, other in self._known_candidates(name)), None)

    def _known_candidates(self, name: Referred) -> Iterator[tuple[ObjectName, Any]]:
        for candidate in name.candidates:
            if candidate not in self._read and len(self._read) < MAX_READ:
                self._read[candidate] = self._facts.referred(candidate)
            if isinstance(other := self._read.get(candidate), dict):
                yield candidate, other

    def findings(self, names: Iterable[Referred]) -> Iterator[Finding]:
        """Yield a warning of each object whose pods request GPUs, and one of those that are not known."""
        unknown: list[tuple[Referred, Referred]] = []
        for name in names:
            missing: list[Referred] = []
            if self._leads_to_gpus(name, missing):
                yield unread(path=name.path, message=GPUS_READ_IN_PODS(truncate(name.name)))
            elif missing:
                unknown.append((name, missing[0]))
        if unknown:
            yield _not_known(*unknown[0], len({missing.candidates for _, missing in unknown[1:]}))

    def _leads_to_gpus(self, name: Referred, missing: list[Referred]) -> bool:
        """Whether the object, or one that it names, requests GPUs; `missing` gets those that are not known."""
        rest, seen = [name], set[ObjectName]()
        while rest:
            each = rest.pop()
            candidate, other = next(self._known_candidates(each), (None, None))
            if candidate is None:
                missing.append(each)
            elif candidate not in seen:
                seen.add(candidate)
                key = candidate.group, candidate.kind
                if self._has_gpus(key, other):
                    return True
                rest += referred(self._configuration.workload_kinds, key, self._namespace, other)
        return False

    def _has_gpus(self, key: tuple[str, str], data: Any) -> bool:
        mapping, kinds = self._configuration.resource_mapping, self._configuration.workload_kinds
        with suppress(msgspec.ValidationError):  # the review of that object says so
            _, pods = workload_pods(kinds, *key, msgspec.Raw(msgspec.json.encode(data)))
            requests = any(mapping.pod_requests_gpus(pod) for _, pod in pods)
            return requests or bool(unread_gpus(*key, data, pods, mapping, kinds))
        return False


def _not_known(name: Referred, missing: Referred, others: int) -> Finding:
    message = f"names a {missing.kind} that is not known here, nor are its GPUs"
    if missing is not name:
        message = (
            f"leads to {missing.kind} {truncate(missing.name)}, which is not known here, nor are its GPUs"
        )
    return unread(
        path=name.path,
        value=name.name,
        message=message + (f"; nor {'is' if others == 1 else 'are'} {others} more" if others else ""),
        remedy=f"apply the {missing.kind} first, or check both together",
    )
