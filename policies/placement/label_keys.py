"""Sets of node label keys by name and by glob: the keys that choose hardware, and the keys that are kept of every node."""

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import cached_property

import msgspec

from policies.gpus.vendors import of_all
from policies.pods.limits import LONGEST_NAME

EXCEPT = "!"
"""Prefix of a glob that excludes its keys."""


class LabelKeys(msgspec.Struct, frozen=True, dict=True):
    """Label keys: `names`, and keys whose first matching glob does not begin with EXCEPT."""

    names: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()

    def __contains__(self, key: object) -> bool:
        if key in self.names:
            return True
        if not isinstance(key, str) or len(key) > LONGEST_NAME:
            return False
        fits = self._pattern.match(key)
        return fits is not None and not self.globs[(fits.lastindex or 0) - 1].startswith(EXCEPT)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """One group for each glob: the first matching glob decides."""
        groups = (f"({translate(glob.removeprefix(EXCEPT))})" for glob in self.globs)
        return re.compile("|".join(groups) or "(?!)")


KNOWN = (
    *of_all(lambda vendor: vendor.other_labels),
    # Well-known labels (k8s.io/api core/v1 well_known_labels.go) by which pods choose among nodes of one class
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/os",
)
"""Globs of the keys that are kept of every node, besides the keys that choose hardware."""


def known_keys(class_keys: frozenset[str], hardware: Iterable[str]) -> LabelKeys:
    """Return the keys that are kept of every node: keys of classes, keys that choose hardware, and KNOWN.

    The hostname is excluded, because with it every node would have its own label set.
    """
    chosen = (glob for glob in dict.fromkeys(hardware) if not glob.startswith(EXCEPT))
    return LabelKeys(class_keys, (f"{EXCEPT}kubernetes.io/hostname", *chosen, *KNOWN))
