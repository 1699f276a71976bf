"""What a pod needs at one time, from the needs of its containers.

The calculation is `PodRequests` of k8s.io/component-helpers v0.37.2 (`resource/helpers.go`).
"""

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

from policies.pods.pod import Container, Pod

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
    for each in amounts:
        for name, amount in each.items():
            total[name] = combine(total[name], amount) if name in total else amount
    return total
