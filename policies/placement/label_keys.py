"""Sets of node label keys, by name and by glob, such as the keys of the labels that serve keeps of each node."""

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
    """A set of label keys: `names`, and each key whose first matching glob does not begin with EXCEPT."""

    names: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()

    def __contains__(self, key: object) -> bool:
        if key in self.names:
            return True
        if not isinstance(key, str) or len(key) > LONGEST_NAME:
            return False
        match = self._pattern.match(key)
        return match is not None and not self.globs[(match.lastindex or 0) - 1].startswith(EXCEPT)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """One group for each glob, so the number of the group that matched tells the glob."""
        groups = (f"({translate(glob.removeprefix(EXCEPT))})" for glob in self.globs)
        return re.compile("|".join(groups) or "(?!)")


ALWAYS_KEPT = (
    *of_all(lambda vendor: vendor.other_labels),
    # Well-known labels (k8s.io/api core/v1 well_known_labels.go) by which pods choose among nodes of one class
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/os",
)
"""Globs of further keys that serve keeps: labels of the vendors, and labels by which pods choose a place."""


def known_keys(class_keys: frozenset[str], hardware_globs: Iterable[str]) -> LabelKeys:
    """Return the keys of the labels that serve keeps of each node. Nodes with equal kept labels share one label set.

    They are the label keys of GPUClasses, keys that describe hardware, and ALWAYS_KEPT. The hostname is excluded, because with
    it every node would have its own label set.
    """
    included = (glob for glob in dict.fromkeys(hardware_globs) if not glob.startswith(EXCEPT))
    return LabelKeys(class_keys, (f"{EXCEPT}kubernetes.io/hostname", *included, *ALWAYS_KEPT))
