"""Fingerprints of pods. Most pods of one controller are equal in all fields that rules read.

Of metadata, rules read the annotations and labels whose keys they declare (`Rule.metadata_keys`), and nothing else.
"""

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import lru_cache
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from policies.pods.pod import Metadata, Pod

LONGEST = 16 * 1024
"""Bytes of JSON. A longer pod gets no fingerprint."""
MAX_KEYS, LONGEST_KEY = 4_096, 253 + 1 + 63
"""Keys whose matches are remembered, and characters of each. The API server rejects longer keys: they stay in the
fingerprint, unmatched."""
TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 - the prefix of a name
"""The API server adds a volume of this name and five random characters to pods that get a token, before it calls webhooks
(`plugin/pkg/admission/serviceaccount`, ServiceAccountVolumeName)."""

_TOKEN_NAME = re.compile(rf"{TOKEN_VOLUME}[a-z0-9]{{5}}")
_ENCODER = msgspec.json.Encoder()
_UNREAD = {"": ""}
"""Stands for a map whose keys no rule reads: not None and not empty."""


class Fingerprints:
    """Makes fingerprints. The keys of annotations and labels that rules read are patterns (`globs`), and exact keys (`names`)."""

    def __init__(self, globs: Iterable[str], names: Iterable[str] = ()) -> None:
        matches, known = re.compile("|".join(map(translate, globs))).match, frozenset(names)

        @lru_cache(maxsize=MAX_KEYS)
        def is_read(key: str) -> bool:
            return key in known or matches(key) is not None

        self._is_read = is_read

    def of(self, pod: Pod) -> bytes | None:
        """Return a digest. If two pods have the same digest, every rule treats them the same.

        None for a pod with ResourceClaims, which must be looked up, and for a long pod. The digest omits the name of the token
        volume if it occurs nowhere else in the pod.
        """
        if pod.spec.resource_claims:
            return None
        text = _ENCODER.encode(self.reduced(pod))
        if len(text) > LONGEST:
            return None
        tokens = [volume.name for volume in pod.spec.volumes or () if volume.name.startswith(TOKEN_VOLUME)]
        if len(tokens) == 1 and _TOKEN_NAME.fullmatch(tokens[0]):
            mounts = sum(
                mount.name == tokens[0]
                for place in pod.places
                for mount in place.container.volume_mounts or ()
            )
            name = tokens[0].encode()
            if text.count(name) == 1 + mounts:
                text = text.replace(name, b"\0")  # which no JSON has
        return blake2b(text, digest_size=32).digest()

    def reduced(self, pod: Pod) -> Pod:
        """Return the pod with only that metadata that rules read."""
        metadata = pod.metadata
        if metadata is None:
            return pod
        own = Metadata(
            labels=self.read_metadata(metadata.labels), annotations=self.read_metadata(metadata.annotations)
        )
        return replace(pod, metadata=own)

    def read_metadata(self, values: dict[str, str] | None) -> dict[str, str] | None:
        """Return the annotations or labels that rules read.

        A missing map, an empty one and one without such keys remain different: they need different patches, and rules ask whether
        there are any annotations.
        """
        if not values:
            return values
        is_read = self._is_read
        return {
            key: value for key, value in values.items() if len(key) > LONGEST_KEY or is_read(key)
        } or _UNREAD
