"""The object that makes pods again: the controller of a pod, or the Deployment of its ReplicaSets, if that object exists.

The API server stores any ownerReference. So its group, kind, name and uid count only if the object of that name has that uid.
"""

import logging
from collections.abc import Callable
from time import monotonic

import msgspec

from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import decode_owned
from webhook.configuration.loader import Configuration
from webhook.configuration.workload_kinds import WorkloadKinds, plural
from webhook.workloads.gangs import GangSource

log = logging.getLogger("gpu_admission.controller")

REMEMBERED_SECONDS = 5.0
"""How long an owner is remembered. If it is deleted meanwhile, it creates no pods that could go first."""
REMEMBERED = 4096
READING_SECONDS = 2.0
"""Seconds for the reads of the owners of one namespace in one turn."""
REPLICA_SET, DEPLOYMENT = ("apps", "ReplicaSet"), ("apps", "Deployment")


class Owner(msgspec.Struct, frozen=True):
    """An object that exists and is not being deleted."""

    group: str
    kind: str
    uid: str


class Owners:
    """Owners, read from the API server. Thread-safe: what is remembered is replaced, never changed."""

    def __init__(self, api: ApiClient, configuration: Callable[[], Configuration]) -> None:
        self._api, self._configuration = api, configuration
        self._known: dict[tuple[str, GangSource], tuple[Owner | None, float]] = {}

    def of(self, namespace: str, reference: GangSource | None, late: float) -> Owner | None:
        """Return the owner. None if the reference is wrong, or was not read before `late` (monotonic)."""
        if reference is None or not reference.uid:
            return None
        known, now = self._known.get((namespace, reference)), monotonic()
        if known is not None and now < known[1]:
            return known[0]
        if now >= late:
            return None
        if len(self._known) >= REMEMBERED:
            self._known = {}
        try:
            owner = self._found(namespace, reference)
        except (errors.ApiError, msgspec.MsgspecError) as error:
            if not isinstance(error, errors.NotFound):
                log.warning("%s: the owner %s %s: %s", namespace, reference.kind, reference.name, error)
            owner = None
        self._known[namespace, reference] = owner, now + REMEMBERED_SECONDS
        return owner

    def _found(self, namespace: str, reference: GangSource) -> Owner | None:
        kinds = self._configuration().workload_kinds
        path = object_path(kinds, namespace, reference.api_version, reference.kind, reference.name)
        metadata = decode_owned(self._api.get(path)).metadata
        if metadata.uid != reference.uid or metadata.deletion_timestamp:
            return None
        above = metadata.controller if reference.type == REPLICA_SET else None
        if above is None:
            return Owner(*reference.type, reference.uid)
        owner = GangSource(above.api_version, above.kind, above.name, uid=above.uid)
        return self._found(namespace, owner) if owner.type == DEPLOYMENT else None


def object_path(kinds: WorkloadKinds, namespace: str, api_version: str, kind: str, name: str) -> str:
    """Return the path of an object by its apiVersion. The API server takes any text as that of an owner: `v1?watch=true&`."""
    group, _, version = api_version.rpartition("/")
    above, row = ("/apis", group, version) if group else ("/api", version), kinds.get((group, kind))
    return api_path(*above, "namespaces", namespace, row.plural if row else plural(kind), name)
