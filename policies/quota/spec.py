"""The GPUQuota document: what a namespace may hold, and what a pod is charged that pins no class."""

from collections.abc import Iterator, Mapping

import msgspec

from policies.quota.amounts import Vector, VectorError, flattened
from policies.quota.charge import Unpinned

NAME = "default"
"""A namespace has one quota, and this is its name."""


class Hard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Amounts as text, decimal or a fraction; what is left out is unlimited. A zero forbids."""

    gpus: str | None = None
    classes: Mapping[str, str] = {}
    resources: Mapping[str, str] = {}


class QuotaSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spec of a GPUQuota document."""

    hard: Hard
    unpinned: Unpinned = Unpinned.TOTAL_ONLY

    @property
    def amounts(self) -> Vector:
        """What is granted. Raises VectorError, of a spec without `problems` never."""
        return flattened(self.hard.gpus, self.hard.classes, self.hard.resources)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (path below the spec, sentence) for every amount that is none."""
        hard = self.hard
        for gpus, classes, resources in (
            (hard.gpus, {}, {}),
            *((None, {name: amount}, {}) for name, amount in hard.classes.items()),
            *((None, {}, {name: amount}) for name, amount in hard.resources.items()),
        ):
            try:
                flattened(gpus, classes, resources)
            except VectorError as error:
                yield f"hard.{error.path}", str(error)
