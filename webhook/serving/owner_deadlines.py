"""Deadlines of the objects that make pods, read when a review needs them."""

from functools import partial
from time import monotonic

import msgspec

from policies.pods.field_paths import value_at
from policies.pods.limits import LONGEST_NAME
from policies.pods.names import is_dns_subdomain, is_uid
from policies.pods.pod import OwnerReference
from webhook.cluster import errors
from webhook.cluster.api import REVIEW_READ_SECONDS, ApiClient, decode_bounded, object_path
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.evaluation.facts import OwnerLookup, OwnerUnread
from webhook.workloads.owners import own_deadline

CACHE_SECONDS = 30.0
"""How long a deadline is remembered. Users may change it."""
MAX_OWNERS = 4096


class OwnerDeadlines:
    """Reads the deadline of the owner of a pod, such as the `activeDeadlineSeconds` of a Job, and keeps it for OWNER_SECONDS."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._cached: dict[tuple[str, OwnerReference], tuple[int | None, float]] = {}

    def lookup(self, deadline: float) -> OwnerLookup:
        """Return the lookup of one review. It ends by the review's own `deadline`, a moment of `monotonic`."""
        return partial(self._deadline_of, deadline)

    def _deadline_of(
        self, deadline: float, namespace: str, owner: OwnerReference, workload_kind: WorkloadKind
    ) -> int | None:
        """Return the seconds after which the owner ends its pods, None if it has no deadline. Raises OwnerUnread."""
        # Users write owner references. No object has such a name or uid, so nothing is read.
        if not (
            is_dns_subdomain(owner.name) and is_uid(owner.uid) and len(owner.api_version) <= LONGEST_NAME
        ):
            return None
        key, now = (namespace, owner), monotonic()
        known = self._cached.get(key)
        if known is not None and now < known[1]:
            return known[0]
        seconds = min(deadline - now, REVIEW_READ_SECONDS)
        if seconds <= 0:
            raise OwnerUnread("no time was left to ask the API server")
        own = self._read(namespace, owner, workload_kind, seconds)
        if len(self._cached) >= MAX_OWNERS:
            self._cached.clear()
        self._cached[key] = own, now + CACHE_SECONDS
        return own

    def _read(
        self, namespace: str, owner: OwnerReference, workload_kind: WorkloadKind, seconds: float
    ) -> int | None:
        try:
            path = object_path(owner.api_version, namespace, workload_kind.plural, owner.name)
            data = decode_bounded(msgspec.json.decode, self._api.get(path, timeout=seconds))
        except errors.NotFound:
            return None
        except (errors.ApiError, msgspec.MsgspecError) as error:
            raise OwnerUnread(str(error)) from None
        is_other = value_at(data, ("metadata", "uid")) != owner.uid
        return None if is_other else own_deadline(workload_kind, data)
