"""Pods that are alike: of all that rules read, siblings of one controller mostly differ in nothing.

Of the metadata rules read labels and annotations alone, and neither names nor owners.
"""

import re
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from policies.pods.pod import Metadata, Pod

LONGEST = 16 * 1024
"""Bytes of a pod as rules see it, as JSON; a longer one is like no other."""
TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 - the prefix of a name
"""Before admission webhooks are called, the API server adds a volume of this name with five random characters to pods that get
a token (`plugin/pkg/admission/serviceaccount`, ServiceAccountVolumeName)."""

_TOKEN_NAME = re.compile(rf"{TOKEN_VOLUME}[a-z0-9]{{5}}")
_ENCODER = msgspec.json.Encoder()


def fingerprint_of(pod: Pod) -> bytes | None:
    """Return a digest that two pods share only if no rule can tell them apart; None for a pod that is not compared.

    That is one with ResourceClaims, which are looked up, and a long one. The name of the token's volume is left out where only
    the volume and its mounts have it.
    """
    if pod.body.resource_claims:
        return None
    # Whether a map is empty or not there decides what a patch adds.
    own = pod.metadata and Metadata(labels=pod.metadata.labels, annotations=pod.metadata.annotations)
    text = _ENCODER.encode(replace(pod, metadata=own))
    if len(text) > LONGEST:
        return None
    tokens = [volume.name for volume in pod.body.volumes or () if volume.name.startswith(TOKEN_VOLUME)]
    if len(tokens) == 1 and _TOKEN_NAME.fullmatch(tokens[0]):
        mounts = sum(
            mount.name == tokens[0] for place in pod.places for mount in place.container.volume_mounts or ()
        )
        name = tokens[0].encode()
        if text.count(name) == 1 + mounts:
            text = text.replace(name, b"\0")  # which no JSON has
    return blake2b(text, digest_size=32).digest()
