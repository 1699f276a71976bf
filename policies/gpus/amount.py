"""The amount of a GPU resource in a container, and findings about it."""

from fractions import Fraction
from math import floor
from typing import cast

import msgspec

from policies.finding import Edit, Edits, Finding, Reason, Severity, truncate
from policies.gpus.mapping_spec import Measure
from policies.gpus.resource_mapping import GPUResource, ResourceMapping
from policies.gpus.vendors import MIG_SLICE
from policies.pods.patch import ResourceMap
from policies.pods.pod import ContainerPlace, Pod, ResourceList
from policies.pods.quantity import NANO, Quantity, QuantityText, parse_or_none

INVALID_QUANTITY = Reason("InvalidQuantity", "an amount of GPUs is invalid, negative, or too large")
FRACTIONAL_GPU = Reason("FractionalGPU", "an amount of GPUs is not a whole number")

MAX_QUOTED = 61
"""Characters of a value that a finding shows."""

NAME_SLOT = "{name}"
"""Placeholder in a remedy for the name of the resource."""

UNIT_NOUNS = {
    Measure.CORES: "accelerator cores",
    Measure.SHARES: "shares of a GPU",
    Measure.SLICES: "slices of a GPU",
    Measure.MEMORY_GIB: "GiB of GPU memory",
    Measure.MEMORY_MIB: "MiB of GPU memory",
    Measure.MEMORY_BYTES: "bytes of GPU memory",
    Measure.MEMORY_PERCENT: "percents of GPU memory",
    Measure.CORE_PERCENT: "percents of a GPU",
    Measure.CORE_MILLIS: "thousandths of a GPU",
}
"""The unit of each measure but whole devices, in the plural."""
QUARTER_WORDS: dict[Fraction | int, str] = {
    1: "a quarter of one",
    2: "half of one",
    3: "three quarters of one",
}
"""In words, by number of quarters."""


class Amount(msgspec.Struct, frozen=True):
    """The amount of one GPU resource in limits or requests of a container."""

    place: ContainerPlace
    resource: GPUResource
    kind: ResourceMap
    raw: QuantityText
    quantity: Quantity | None
    """None if `raw` is not a valid Kubernetes quantity."""
    value: int
    """The amount, rounded up to a whole number. 0 if it is invalid or negative."""

    def same_as(self, other: "Amount") -> bool:
        """Whether both are equal, as they are after the API server has copied the limit to the request."""
        if self.raw == other.raw or self.quantity is None or other.quantity is None:
            return self.raw == other.raw
        # The API server rounds quantities up to thousandths when it sets defaults.
        return self.quantity.milli_value == other.quantity.milli_value

    def finding(
        self,
        reason: Reason,
        message: str,
        remedy: str = "",
        severity: Severity = Severity.DENIAL,
        amount: str | float | None = None,
        names: tuple[str, ...] = (),
        choices: tuple[Edits, ...] = (),
    ) -> Finding:
        """Return a finding. Each of `amount`, `names` (of other resources) and `choices` removes it."""
        own_choices = (
            () if amount is None else self.edits_to_set(amount),
            *map(self.edits_to_replace, names),
        )
        return Finding(
            reason=reason,
            severity=severity,
            path=f"{self.place.path}.resources.{self.kind}[{self.resource.name}]",
            container=self.place.container.name,
            value="null" if self.raw is None else truncate(str(self.raw), MAX_QUOTED),
            decimal=self.decimal,
            message=message,
            choices=tuple(edits for edits in (*own_choices, *choices) if edits),
            remedy=remedy.replace(NAME_SLOT, self.resource.name),
        )

    def edits_to_set(self, amount: str | float | None) -> Edits:
        """Return the edits that set the amount, both in limits and in requests; None removes it.

        A request without a limit gets an equal one, which the API server demands.
        """
        name, container = self.resource.name, self.place.container
        lacks_limit = amount is not None and is_extended(name) and name not in container.limits
        limit = (f"{self.place.path}.resources.limits[{name}]",) if lacks_limit else ()
        return tuple(Edit(path, amount) for path in (*limit, *self.place.amount_paths(name)))

    def edits_to_replace(self, name: str, amount: str | float | None = None) -> Edits:
        """Return the edits that replace the resource by another one.

        Without an amount, the number stays between whole devices, and between slices; else it is 1.
        """
        is_same = self.resource.measure is (Measure.SLICES if MIG_SLICE in name else Measure.DEVICES)
        amount = (str(self.quantity or 1) if is_same else 1) if amount is None else amount
        added = (Edit(path, amount) for path in self.place.amount_paths(self.resource.name, name))
        return (*self.edits_to_set(None), *added)

    @property
    def decimal(self) -> str:
        """The amount as a decimal number, if it has a suffix, as in 500m for 0.5. Else empty."""
        quantity = self.quantity
        is_plain = self.raw is None or str(self.raw)[-1:].isdecimal()
        return "" if is_plain or quantity is None or quantity.nano < 0 else decimal_text(quantity)


def limit_and_request(place: ContainerPlace, resource: GPUResource) -> tuple[Amount | None, Amount | None]:
    """Return the amount of the resource in limits and in requests."""
    limits, requests = place.container.limits, place.container.requests
    return _stated_amount(place, resource, "limits", limits), _stated_amount(
        place, resource, "requests", requests
    )


def _stated_amount(
    place: ContainerPlace, resource: GPUResource, kind: ResourceMap, listed: ResourceList
) -> Amount | None:
    if resource.name not in listed:
        return None
    raw = listed[resource.name]
    quantity = parse_or_none(raw)
    value = 0 if quantity is None else max(quantity.value, 0)
    return Amount(place, resource, kind, raw, quantity, value)


def larger_amount(limit: Amount | None, request: Amount | None) -> Amount:
    """Return the larger amount, or the only one. If they are equal, it is the limit. One of them is not None."""
    if limit is None or request is None:
        return cast("Amount", limit or request)
    return request if request.value > limit.value else limit


def is_extended(name: str) -> bool:
    """Whether the API server validates the name as that of an extended resource (`IsExtendedResourceName`)."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def decimal_text(quantity: Quantity) -> str:
    """Return the quantity as a decimal number: 0.3, 1.5."""
    units, fraction = divmod(quantity.nano, NANO)
    return f"{units}.{fraction:09d}".rstrip("0").rstrip(".")


def edits_to_request_share(pod: Pod, mapping: ResourceMapping, share: Fraction) -> tuple[Edit, ...]:
    """Return the edits by which a pod requests only this part of its GPUs, each amount rounded down.

    An amount of the only resource that would become zero is 1, and the largest less by so much. Empty if an amount becomes zero,
    or is not counted in whole amounts.
    """
    requested = tuple(mapping.requests(pod))
    if not all(request.resource.measure.is_count for request in requested):
        return ()
    written = [request.quantity.value for request in requested]
    least = 1 if len({request.resource for request in requested}) == 1 else 0  # resources weigh differently
    amounts = [max(floor(amount * share), least) for amount in written]
    if amounts and (excess := sum(amounts) - floor(sum(written) * share)) > 0:
        amounts[amounts.index(max(amounts))] -= excess
    return tuple(
        Edit(field, amount)
        for request, amount in zip(requested, amounts, strict=True)
        for field in request.place.amount_paths(request.resource.name)
        if min(amounts) > 0
    )
