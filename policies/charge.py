"""What a pod costs: one pure function, used wherever anything is counted."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from policies.classes import ClassCatalogue
from policies.finding import Finding
from policies.pod import Pod
from policies.vector import Vector
from policies.vocabulary import Vocabulary


class Unpinned(Enum):
    """What is charged by class to a pod that pins none, until it is bound to a node."""

    TOTAL_ONLY = "TotalOnly"
    REFUSE = "Refuse"
    DEAREST = "Dearest"


class Charge(msgspec.Struct, frozen=True):
    """What something costs. With `denials` it must not be admitted; stored already, it costs `vector` all the same.

    `classes` are the names (classes, families) that it is charged to, `because` the words for who decided that.
    """

    vector: Vector
    classes: tuple[str, ...] = ()
    because: str = ""
    denials: tuple[Finding, ...] = ()


def charge_pod(
    pod: Pod,
    *,
    classes: ClassCatalogue,
    vocabulary: Vocabulary,
    unpinned: Unpinned,
    node_labels: Mapping[str, str] | None = None,
) -> Charge:
    """Return what the pod costs; `node_labels` are those of the node that it is bound to, None where it is bound to none."""
    raise NotImplementedError
