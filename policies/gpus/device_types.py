"""Types of DRA devices: what the devices of a cluster's ResourceSlices are, without what tells one device from another.

A cluster of 5,000 nodes with 40,000 cards has some dozens of types. The controller finds them, and publishes them for all
processes, so demand is a pure function of the catalogue. A type stays for a day after its last device.
"""

from collections.abc import Mapping
from fractions import Fraction

import msgspec

from policies.pods.pod import Toleration
from policies.pods.quantity import QuantityText

CARD_PARTS = 5040
"""A device takes a whole number of 5040ths of its card: 1 to 10 divide 5040. Bytes would make long fractions in a ledger."""


class DeviceAttribute(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of the four types of attributes, as in a ResourceSlice."""

    boolean: bool | None = msgspec.field(name="bool", default=None)
    integer: int | None = msgspec.field(name="int", default=None)
    string: str | None = None
    version: str | None = None


class CapacityRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Quantities. Amounts from `min` to `max`, in whole multiples of `step` above `min`."""

    min: QuantityText = None
    max: QuantityText = None
    step: QuantityText = None


class RequestPolicy(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """How an amount of a shared device is rounded up. `default` is what a request without an amount consumes."""

    default: QuantityText = None
    valid_values: tuple[QuantityText, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    value: QuantityText = None
    request_policy: RequestPolicy | None = None


class DeviceType(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Devices of one driver that differ only by identity: uuid, index, address, name, placement on the card.

    attributes and capacity: by qualified name (`gpu.nvidia.com/productName`), as CEL selectors see them.
    unknown_names: the qualified names of attributes and capacities whose value is not known of a device, because devices of
      the type differ in it, or it was not read. A selector that reads one may select any of the devices.
    card_parts: how many of the CARD_PARTS of its card a device takes, rounded up.
    is_shared: several claims may have shares of one device (`allowMultipleAllocations`).
    weighed_capacities: the qualified names of the capacities of a shared device by which a share of it weighs. A share that
      requests none of them counts as the whole device.
    """

    driver: str
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    unknown_names: tuple[str, ...] = msgspec.field(name="unknown", default=())
    card_parts: int = msgspec.field(name="parts", default=CARD_PARTS)
    is_shared: bool = False
    weighed_capacities: tuple[str, ...] = msgspec.field(name="weighed", default=())

    @property
    def share(self) -> Fraction:
        return Fraction(self.card_parts, CARD_PARTS)


class DeviceTypes(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """All types of a cluster, in a fixed order.

    per_node_counts: how many devices of each type (by its index) a node can use, without those that another node exceeds.
      Devices that belong to no node count for every node. Empty if there are too many.
    """

    types: tuple[DeviceType, ...] = msgspec.field(name="kinds", default=())
    per_node_counts: tuple[dict[int, int], ...] = msgspec.field(name="nodes", default=())


NO_DEVICE_TYPES = DeviceTypes()

DeviceTypeTaints = Mapping[bytes, tuple[Toleration, ...]]
"""By the key of a type (`device_slices.type_key`), the taints that all its devices have. They come and go, and no demand depends
on them."""

NO_TAINTS: DeviceTypeTaints = {}
