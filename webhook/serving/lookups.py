"""What reviews look up: labels of namespaces, DeviceClasses that claims request, deadlines of owners, PodDisruptionBudgets.

Policies select by the labels. Labels and claims (DRA) come from watches. A pod may come right after its namespace, claim or
template (`kubectl apply` of all), so absence from a watch proves nothing: the object is read.

The others are read when a review needs them.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any

import msgspec

from policies.gpus.claims import ClaimName, ClaimRecord, DeviceClassNames, claim_record
from policies.pods.field_paths import value_at
from policies.pods.label_selector import LabelSelector
from policies.pods.limits import LONGEST_NAME
from policies.pods.names import is_dns_subdomain, is_uid
from policies.pods.pod import OwnerReference
from policies.policy import Labels
from webhook.cluster import errors
from webhook.cluster.api import METADATA, READ_SECONDS, ApiClient, Page, api_path, decoded
from webhook.cluster.collection import CLUSTER
from webhook.cluster.informer import Informer, Resource
from webhook.cluster.objects import decode_metadata
from webhook.configuration.dynamic_resources import CLAIM_PLURALS, DynamicResourceWatch
from webhook.configuration.workload_kinds import WorkloadKind
from webhook.workloads.owners import own_deadline

RESOURCE = Resource("/api/v1", "namespaces", metadata_only=True)
LONGEST_SECONDS = 2.0
"""At most for the read of a namespace, and for all reads of claims in a review; its deadline may be earlier."""
OWNER_SECONDS = 30.0
"""A deadline may be changed."""
MAX_OWNERS = 4096
MAX_READS = 4
"""Claims that one review reads. A pod with more new ones is rare, or an attack."""
MAX_BUDGETS = 50
MAX_BUDGETS_BYTES = 1024 * 1024
"""Of the PodDisruptionBudgets of a namespace: 20 KB of each, which usually has 2. A tenant can store 1.5 MB in one."""


class NamespaceUnknown(Exception):  # noqa: N818 - no bug
    """The labels could not be read; the message says why."""


class NamespaceRecord(msgspec.Struct, frozen=True):
    uid: str
    key: str
    labels: Labels
    namespace: str = CLUSTER


def namespace_record(raw: bytes | msgspec.Raw) -> NamespaceRecord:
    metadata = decode_metadata(raw)
    return NamespaceRecord(metadata.uid, metadata.name, metadata.sorted_labels)


def _update(records: dict[Any, Any], before: Any, after: Any) -> None:
    """Keep the record of the watch under its key; another object may have the name of a deleted one."""
    if after is not None:
        records[after.key] = after
    elif records.get(before.key) == before:
        del records[before.key]


class Namespaces:
    """All namespaces, once `informer` is started. While the API server does not answer, the last labels hold.

    `changed` is called with the name of each new, changed or deleted namespace.
    """

    def __init__(self, api: ApiClient, changed: Callable[[str], object] = lambda _name: None) -> None:
        self._api, self._changed = api, changed
        self._by_name: dict[str, NamespaceRecord] = {}
        self.informer = Informer(api, RESOURCE, namespace_record, self._namespace_changed)

    def labels_of(self, name: str, deadline: float) -> Labels:
        """Return the labels; those of a namespace that the watch lacks are read by `deadline`. Raises NamespaceUnknown."""
        known = self._by_name.get(name)
        if known is not None:
            return known.labels
        seconds = min(deadline - monotonic(), LONGEST_SECONDS)
        if seconds <= 0:
            raise NamespaceUnknown("no time was left to ask the API server")
        try:
            found = self._api.get(RESOURCE.path(CLUSTER, name), timeout=seconds, accept=METADATA)
            return namespace_record(found).labels
        except (errors.ApiError, msgspec.MsgspecError) as error:
            raise NamespaceUnknown(str(error)) from None

    def known(self, name: str) -> Labels | None:
        """Return the labels in the watch. None if it shows no such namespace."""
        record = self._by_name.get(name)
        return record.labels if record else None

    def names(self) -> list[str]:
        """Return the namespaces in the watch. Takes no lock, unlike `all`."""
        return list(self._by_name)

    def all(self) -> dict[str, Labels] | None:
        """Return the labels of every namespace, None before they were listed."""
        if not self.informer.synced:
            return None
        return {record.key: record.labels for record in self.informer.all()}

    def _namespace_changed(self, before: NamespaceRecord | None, after: NamespaceRecord | None) -> None:
        _update(self._by_name, before, after)
        if (changed := after or before) is not None:
            self._changed(changed.key)


class ClaimWatch:
    """Watches of ResourceClaims and ResourceClaimTemplates; none where the API server does not serve them.

    Claims that were made for a pod from a template are not kept, because the pod names the template.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._records: dict[ClaimName, ClaimRecord] = {}
        changed = partial(_update, self._records)
        self._watches = {
            kind: DynamicResourceWatch(api, plural, partial(_kept_claim, kind), changed)
            for kind, plural in CLAIM_PLURALS.items()
        }

    def start(self, stopping: threading.Event) -> None:
        for watch in self._watches.values():
            watch.start(stopping)

    def known(self, name: ClaimName) -> ClaimRecord | None:
        """Return the record in the watch; None while the watch is silent."""
        informer = self._watches[name.kind].informer
        return self._records.get(name) if informer is not None and informer.is_current else None

    def read(self, name: ClaimName, seconds: float) -> ClaimRecord | None:
        """Read the claim from the API server; None if it does not exist, or cannot be read in that time."""
        informer = self._watches[name.kind].informer
        if informer is None or not name.namespace or not is_dns_subdomain(name.name):
            return None
        try:
            found = self._api.get(informer.resource.path(name.namespace, name.name), timeout=seconds)
            return claim_record(name.kind, found)
        except (errors.ApiError, msgspec.MsgspecError):
            return None

    def lookup(self, deadline: float) -> Callable[[ClaimName], DeviceClassNames | None]:
        """Return the lookup of one review, which reads by its deadline what the watch lacks, each claim once."""
        read: dict[ClaimName, ClaimRecord | None] = {}
        until = inf

        def device_classes(name: ClaimName) -> DeviceClassNames | None:
            nonlocal until
            now = monotonic()
            until = min(until, deadline, now + LONGEST_SECONDS)  # set by the first call
            record, left = self.known(name) or read.get(name), until - now
            if record is None and name not in read and len(read) < MAX_READS and left > 0:
                record = read[name] = self.read(name, left)
            return record.device_classes if record else None

        return device_classes


def _kept_claim(kind: str, raw: msgspec.Raw) -> ClaimRecord | None:
    record = claim_record(kind, raw)
    return None if record.made_for_pod else record


class OwnerUnread(Exception):  # noqa: N818 - no bug
    """The object that makes a pod could not be read; the message says why."""


OwnerLookup = Callable[[str, OwnerReference, WorkloadKind], int | None]
"""Returns the seconds after which an object of this kind in a namespace ends its pods; None if it has no deadline, or does not
exist. Raises OwnerUnread."""


class OwnerDeadlines:
    """Deadlines of the objects that make pods, read when a pod of theirs comes, and remembered for OWNER_SECONDS."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._known: dict[tuple[str, OwnerReference], tuple[int | None, float]] = {}

    def lookup(self, deadline: float) -> OwnerLookup:
        """Return the lookup of one review, which takes until its deadline at most."""
        return partial(self._of, deadline)

    def _of(
        self, deadline: float, namespace: str, owner: OwnerReference, workload_kind: WorkloadKind
    ) -> int | None:
        # An owner reference may have any text.
        if not (
            is_dns_subdomain(owner.name) and is_uid(owner.uid) and len(owner.api_version) <= LONGEST_NAME
        ):
            return None
        key, now = (namespace, owner), monotonic()
        known = self._known.get(key)
        if known is not None and now < known[1]:
            return known[0]
        seconds = min(deadline - now, LONGEST_SECONDS)
        if seconds <= 0:
            raise OwnerUnread("no time was left to ask the API server")
        found = self._read(namespace, owner, workload_kind, seconds)
        if len(self._known) >= MAX_OWNERS:
            self._known.clear()
        self._known[key] = found, now + OWNER_SECONDS
        return found

    def _read(
        self, namespace: str, owner: OwnerReference, workload_kind: WorkloadKind, seconds: float
    ) -> int | None:
        group, _, version = owner.api_version.rpartition("/")
        above = ("/apis", group, version) if group else ("/api", version)
        try:
            path = api_path(*above, "namespaces", namespace, workload_kind.plural, owner.name)
            data = decoded(msgspec.json.decode, self._api.get(path, timeout=seconds))
        except errors.NotFound:
            return None
        except (errors.ApiError, msgspec.MsgspecError) as error:
            raise OwnerUnread(str(error)) from None
        is_other = value_at(data, ("metadata", "uid")) != owner.uid
        return None if is_other else own_deadline(workload_kind, data)


class _Budget(msgspec.Struct, frozen=True):
    selector: LabelSelector | None = None


class _StoredBudget(msgspec.Struct, frozen=True):
    spec: _Budget = _Budget()


_BUDGETS = msgspec.json.Decoder(Page[_StoredBudget])


def read_budgets(
    api: ApiClient, namespace: str, seconds: float | None = None
) -> tuple[LabelSelector, ...] | None:
    """Return the selectors of the PodDisruptionBudgets; None if they are more than is read. Raises `errors.ApiError`."""
    path = api_path("/apis/policy/v1", "namespaces", namespace, "poddisruptionbudgets")
    query = {"limit": str(MAX_BUDGETS)}
    with api.stream(path, query=query, read_seconds=seconds or READ_SECONDS) as answer:
        document = answer.read(MAX_BUDGETS_BYTES + 1)
    if len(document) > MAX_BUDGETS_BYTES:
        return None
    try:
        page = decoded(_BUDGETS.decode, document)
    except msgspec.MsgspecError:
        return None
    if page.metadata.continue_token:
        return None
    return tuple(each.spec.selector for each in page.items or () if each.spec.selector is not None)


def budgets_by(api: ApiClient, namespace: str, deadline: float) -> tuple[LabelSelector, ...] | None:
    """Return the same, None also if they cannot be read by a `monotonic` deadline."""
    if (seconds := min(deadline - monotonic(), LONGEST_SECONDS)) > 0:
        with suppress(errors.ApiError):
            return read_budgets(api, namespace, seconds)
    return None


def may_name_claims(review: bytes) -> bool:
    """Whether the pod in a review, which is JSON, may have ResourceClaims: then its review may wait for a read.

    A letter that is escaped hides the name of the field; no API server writes one so.
    """
    return b'"resourceClaims"' in review or (
        b"\\u00" in review and any(letters in review for letters in _ESCAPED_LETTERS)
    )


_ESCAPED_LETTERS = (b"\\u004", b"\\u005", b"\\u006", b"\\u007")
