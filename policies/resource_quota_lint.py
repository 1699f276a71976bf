"""ResourceQuota keys about GPUs that the API server accepts and never enforces.

Of extended resources it counts only `requests.<resource>` (`pkg/quota/v1/evaluator/core/pods.go`, v1.36): any other key
passes validation, and the quota limits nothing, in silence.
"""

from collections.abc import Iterable, Iterator

import msgspec

from policies.vocabulary import Vocabulary

REQUESTS, LIMITS = "requests.", "limits."


class SilentKey(msgspec.Struct, frozen=True):
    """A key of `spec.hard` that does nothing, and the one that was meant."""

    key: str
    meant: str
    has_meant: bool
    """Whether the quota has that one as well: then this one only misleads."""

    @property
    def path(self) -> str:
        return f"spec.hard[{self.key}]"

    @property
    def message(self) -> str:
        advice = (
            f"{self.meant} is there as well, so remove this one" if self.has_meant else f"write {self.meant}"
        )
        return f"the API server never enforces {self.key}: {advice}"


def silent_keys(hard: Iterable[str], vocabulary: Vocabulary) -> Iterator[SilentKey]:
    """Yield the keys of a ResourceQuota's `spec.hard` that name a GPU resource and limit nothing, sorted."""
    keys = frozenset(hard)
    for key in sorted(keys):
        resource = key.removeprefix(LIMITS)
        if not key.startswith(REQUESTS) and "/" in resource and vocabulary.resource(resource) is not None:
            meant = REQUESTS + resource
            yield SilentKey(key, meant, meant in keys)
