"""What a pod needs at one time, from the needs of its containers.

The calculation is `PodRequests` of k8s.io/component-helpers v0.37.2 (`resource/helpers.go`).
"""

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TypeVar

from policies.pods.pod import Container, ContainerPlace, Pod

_Name = TypeVar("_Name", bound=Hashable)


def at_one_time(
    pod: Pod,
    of_container: Callable[[Container], Mapping[_Name, Fraction]],
    overhead: Mapping[_Name, Fraction],
) -> dict[_Name, Fraction]:
    """Return the pod's maximum need at one time, by name. `of_container` returns the need of a container.

    App containers and sidecars add up. An init container runs beside the sidecars before it. The largest of these sums counts,
    plus overhead.
    """
    running = combined((of_container(container) for container in pod.spec.containers or ()), operator.add)
    sidecars: dict[_Name, Fraction] = {}
    highest: dict[_Name, Fraction] = {}
    for container in pod.spec.init_containers or ():
        needs = of_container(container)
        beside = combined((sidecars, needs), operator.add)
        highest = combined((highest, beside), max)
        if container.restart_policy == "Always":
            running, sidecars = combined((running, needs), operator.add), beside
    return combined((combined((running, highest), max), overhead), operator.add)


def combined(
    amounts: Iterable[Mapping[_Name, Fraction]], combine: Callable[[Fraction, Fraction], Fraction]
) -> dict[_Name, Fraction]:
    """Return the sums or maxima of the amounts by name. No amount is negative."""
    total: dict[_Name, Fraction] = {}
    for raw_amount in amounts:
        for name, amount in raw_amount.items():
            total[name] = combine(total[name], amount) if name in total else amount
    return total


def ways_to_request(
    pod: Pod, less: int, requested: Sequence[tuple[ContainerPlace, int]]
) -> Iterator[dict[int, int]]:
    """Yield the ways to request `less` fewer of a resource at one time: new amounts, by position in `requested`.

    First each container that can do it alone; if none can, all together, in proportion. None if a container would get nothing.
    """
    amounts = [amount for _, amount in requested]

    def needed(way: Mapping[int, int]) -> Fraction:
        own = {
            id(place.container): {"": Fraction(way.get(at, amount))}
            for at, (place, amount) in enumerate(requested)
        }
        return at_one_time(pod, lambda container: own.get(id(container), {}), {}).get("", Fraction(0))

    most = int(needed({})) - less
    alone = [{at: amount - less} for at, amount in enumerate(amounts) if amount > less]
    if enough := [way for way in alone if needed(way) <= most]:
        yield from enough
        return
    first = [
        at
        for at, (place, _) in enumerate(requested)
        if place.list_name == "initContainers" and not place.is_sidecar
    ]
    way = {at: amount for at, amount in enumerate(amounts) if at not in first}
    if way and (beside := sum(way.values())) > most:
        way = {at: max(amount * most // beside, 1) for at, amount in way.items()}
        way[max(way, key=lambda at: way[at])] -= max(sum(way.values()) - most, 0)
    sidecars = sum(amount for at, amount in way.items() if requested[at][0].is_sidecar)
    way |= {at: min(amounts[at], most - sidecars) for at in first}
    if way and min(way.values()) > 0:
        yield {at: amount for at, amount in way.items() if amount != amounts[at]}
