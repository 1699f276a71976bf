"""The devices that ResourceClaims (DRA) request.

They come from watches. A pod may come right after its claim or template (`kubectl apply` of both), so absence from a watch proves
nothing: the object is read.
"""

import threading
from collections.abc import Callable
from functools import partial
from math import inf
from time import monotonic

import msgspec

from policies.gpus.claimed_devices import ClaimName, ClaimRequest, RequestedDevices, claim_request
from policies.pods.names import is_dns_subdomain
from webhook.cluster import errors
from webhook.cluster.api import REVIEW_READ_SECONDS, ApiClient
from webhook.cluster.collection import update_by_key
from webhook.configuration.dynamic_resources import CLAIM_PLURALS, DynamicResourceWatch

MAX_READS = 4
"""Claims that one review reads. A pod with more new ones is rare, or an attack."""
UNREAD = ClaimRequest("", ClaimName("", "", ""), None)
"""A claim that this review could not read."""

ClaimLookup = Callable[[ClaimName], ClaimRequest | None]
"""Returns the record of a claim; None if it does not exist, UNREAD if it could not be read."""


class ClaimWatch:
    """Watches of ResourceClaims and ResourceClaimTemplates; none where the API server does not serve them.

    Of claims that were made from a template, only the name is kept, because pods name the template.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._records: dict[ClaimName, ClaimRequest] = {}
        changed = partial(update_by_key, self._records)
        self._watches = {
            kind: DynamicResourceWatch(api, plural, partial(_kept_claim, kind), changed)
            for kind, plural in CLAIM_PLURALS.items()
        }

    def start(self, stopping: threading.Event) -> None:
        for watch in self._watches.values():
            watch.start(stopping)

    def watched(self, name: ClaimName) -> ClaimRequest | None:
        """Return the record in the watch; None while the watch is silent."""
        informer = self._watches[name.kind].informer
        return self._records.get(name) if informer is not None and informer.is_current else None

    def read(self, name: ClaimName, seconds: float) -> ClaimRequest | None:
        """Read the claim from the API server; None if it does not exist, UNREAD if it cannot be read in that time."""
        informer = self._watches[name.kind].informer
        if informer is None or not name.namespace or not is_dns_subdomain(name.name):
            return None
        try:
            document = self._api.get(informer.resource.path(name.namespace, name.name), timeout=seconds)
            return claim_request(name.kind, document)
        except errors.NotFound:
            return None
        except (errors.ApiError, msgspec.MsgspecError):
            return UNREAD

    def lookup(self, deadline: float) -> ClaimLookup:
        """Return the lookup of one review. It reads the claims that the watch lacks, each once, until the deadline."""
        read: dict[ClaimName, ClaimRequest | None] = {}
        until = inf

        def look_up(name: ClaimName) -> ClaimRequest | None:
            nonlocal until
            now = monotonic()
            until = min(until, deadline, now + REVIEW_READ_SECONDS)  # set by the first call
            if (record := self.watched(name)) is not None:
                return record
            if name not in read:
                left = until - now
                read[name] = self.read(name, left) if len(read) < MAX_READS and left > 0 else UNREAD
            return read[name]

        return look_up


def _kept_claim(kind: str, raw: msgspec.Raw) -> ClaimRequest:
    record = claim_request(kind, raw)
    return msgspec.structs.replace(record, devices=None) if record.owner_kind else record


def requested_by(find: ClaimLookup, name: ClaimName) -> RequestedDevices | None:
    """Return what a claim or template requests; None if that is not known."""
    record = find(name)
    return record.devices if record else None


def is_made_for_pod(find: ClaimLookup, name: ClaimName) -> bool | None:
    """Return whether the claim was made from a template for one pod; None if it could not be read."""
    record = find(name)
    return None if record is UNREAD else record is not None and record.owner_kind == "Pod"


def may_name_claims(review: bytes) -> bool:
    """Whether the pod in a review, which is JSON, may have ResourceClaims: then its review may wait for a read.

    A letter that is escaped hides the name of the field; no API server writes one so.
    """
    return b'"resourceClaims"' in review or (
        b"\\u00" in review and any(letters in review for letters in _ESCAPED_LETTERS)
    )


_ESCAPED_LETTERS = (b"\\u004", b"\\u005", b"\\u006", b"\\u007")
