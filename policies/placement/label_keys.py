"""Keys of node labels by name and by glob: which of them choose hardware, and which are known of every node."""

import re
from collections.abc import Iterable
from fnmatch import translate
from functools import cached_property

import msgspec

from policies.pods.limits import LONGEST_NAME

EXCEPT = "!"
"""Before a glob: the keys that it fits are left out."""


class LabelKeys(msgspec.Struct, frozen=True, dict=True):
    """Label keys: `names`, and besides them those for which the first glob that fits is not one of EXCEPT."""

    names: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()

    def __contains__(self, key: object) -> bool:
        if key in self.names:
            return True
        if not isinstance(key, str) or len(key) > LONGEST_NAME:
            return False
        return next((is_in for is_in, pattern in self._patterns if pattern.match(key)), False)

    @cached_property
    def _patterns(self) -> tuple[tuple[bool, re.Pattern[str]], ...]:
        """The globs, those that follow each other with the same meaning as one pattern."""
        groups: list[tuple[bool, list[str]]] = []
        for glob in self.globs:
            is_in = not glob.startswith(EXCEPT)
            if not groups or groups[-1][0] is not is_in:
                groups.append((is_in, []))
            groups[-1][1].append(translate(glob.removeprefix(EXCEPT)))
        return tuple((is_in, re.compile("|".join(patterns))) for is_in, patterns in groups)


KNOWN = (
    # GPU Feature Discovery: the versions of driver and CUDA, and the MIG slices of a node
    "nvidia.com/cuda.driver.*",
    "nvidia.com/cuda.driver-version.*",
    "nvidia.com/cuda.runtime.*",
    "nvidia.com/cuda.runtime-version.*",
    "nvidia.com/mig-*.count",
    # Of well-known labels (k8s.io/api core/v1 well_known_labels.go) those by which pods choose among nodes of one class
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/os",
)
"""Globs over the keys that are known of every node besides those that choose hardware."""


def known_keys(class_keys: frozenset[str], hardware: Iterable[str]) -> LabelKeys:
    """Return the keys that are kept of every node: those of classes, those that globs choose hardware by, and KNOWN.

    Hostnames are left out: with them every node would have a label set of its own.
    """
    chosen = (glob for glob in dict.fromkeys(hardware) if not glob.startswith(EXCEPT))
    return LabelKeys(class_keys, (f"{EXCEPT}kubernetes.io/hostname", *chosen, *KNOWN))
