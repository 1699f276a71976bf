"""Resource requests of a pod, calculated as the API server does.

The calculation is `PodRequests` of k8s.io/component-helpers v0.36.3 (`resource/helpers.go`) after defaulting: a limit without a
request sets the request, and every quantity is rounded up to thousandths (`SetDefaults_Pod`, `SetDefaults_ResourceList` in
`pkg/apis/core/v1/defaults.go`). So a template counts like its pods.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction
from typing import TypeVar

from policies.pods.pod import Container, Pod, ResourceList
from policies.pods.quantity import Quantity, parse_quantity

NOTHING = Quantity(0)
_NANO_PER_MILLI = 10**6

Amounts = dict[str, Quantity]

_Name = TypeVar("_Name", bound=Hashable)
_Amount = TypeVar("_Amount", Quantity, Fraction)


def pod_requests(pod: Pod) -> Amounts:
    """Return how much of every extended resource (`nvidia.com/gpu`) the pod needs, with zeros.

    Omit native resources (cpu, memory, hugepages-*, …), because the pod as a whole may request them, too. Raises QuantityError.
    """
    return at_one_time(
        pod, lambda each: {**_named(each.limits), **_named(each.requests)}, _named(pod.spec.overhead), NOTHING
    )


def at_one_time(
    pod: Pod,
    of_container: Callable[[Container], Mapping[_Name, _Amount]],
    overhead: Mapping[_Name, _Amount],
    nothing: _Amount,
) -> dict[_Name, _Amount]:
    """Return the pod's maximum need at one time, by name. `of_container` returns the need of a container.

    App containers and sidecars add up. An init container runs beside the sidecars before it. The largest of these sums counts,
    plus overhead.
    """
    running = _sum((of_container(container) for container in pod.spec.containers or ()), nothing)
    sidecars: dict[_Name, _Amount] = {}
    highest: dict[_Name, _Amount] = {}
    for container in pod.spec.init_containers or ():
        needs = of_container(container)
        beside = _sum((sidecars, needs), nothing)
        highest = _maximum(highest, beside, nothing)
        if container.restart_policy == "Always":
            running, sidecars = _sum((running, needs), nothing), beside
    return _sum((_maximum(running, highest, nothing), overhead), nothing)


def _named(resources: ResourceList | None) -> Amounts:
    return {
        name: Quantity(parse_quantity(raw).milli_value * _NANO_PER_MILLI)
        for name, raw in (resources or {}).items()
        if "/" in name
    }


def _sum(demands: Iterable[Mapping[_Name, _Amount]], nothing: _Amount) -> dict[_Name, _Amount]:
    total: dict[_Name, _Amount] = {}
    for demand in demands:
        for name, amount in demand.items():
            total[name] = total.get(name, nothing) + amount
    return total


def _maximum(
    one: Mapping[_Name, _Amount], other: Mapping[_Name, _Amount], nothing: _Amount
) -> dict[_Name, _Amount]:
    return {name: max(one.get(name, nothing), other.get(name, nothing)) for name in {**one, **other}}
