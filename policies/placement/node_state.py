"""Whether a node takes new pods, and which."""

from collections.abc import Mapping

import msgspec

from policies.pods.pod import Pod, Toleration
from policies.pods.tolerations import tolerated


class NodeState(msgspec.Struct, frozen=True):
    """Whether a node takes new pods, and which."""

    is_schedulable: bool = True
    """False: the node is cordoned."""
    taints: tuple[Toleration, ...] = ()
    """Taints that stay as long as the node exists; a taint has the fields of a toleration."""
    resources: frozenset[str] = frozenset()
    """Names of the extended resources that it has."""
    amounts: tuple[tuple[str, int], ...] = ()
    """How much it has of them. An amount that is left out is not known."""
    is_usable: bool = True
    """False: it takes pods only later, because it is not Ready, or has a taint that goes by itself."""
    mounts_images: bool = False
    """It is known to mount images as volumes (`policies.placement.image_volumes`)."""

    def has(self, requested: Mapping[str, int]) -> bool:
        """Whether it has these amounts, used or not."""
        known = dict(self.amounts)
        return all(
            name in self.resources and known.get(name, amount) >= amount for name, amount in requested.items()
        )

    def untolerated_by(self, pod: Pod) -> list[Toleration]:
        """Return its taints that the pod does not tolerate."""
        return [taint for taint in self.taints if not tolerated(taint, pod.spec.tolerations)]
