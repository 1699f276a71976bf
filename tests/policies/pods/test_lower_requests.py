"""How containers request less of a resource: by as few as can, and never so little that one gets nothing."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from policies.pods.pod import Pod
from policies.pods.requests import at_one_time, ways_to_request
from tests.builders import gpu_container, pod, view
from tests.cases import cases


def made(*apps: int, init: tuple[int, ...] = (), sidecar: int = 0) -> Pod:
    inits = [gpu_container(sidecar, name="side", restartPolicy="Always")] if sidecar else []
    inits += [gpu_container(each, name=f"init-{at}") for at, each in enumerate(init)]
    containers = [gpu_container(each, name=f"app-{at}") for at, each in enumerate(apps)]
    return view(pod(*containers, initContainers=inits))


def ways(made: Pod, amounts: list[int], most: int) -> list[list[int]]:
    """Return the amounts of all containers, by way."""
    less = int(needed(made, amounts)) - most
    found = ways_to_request(made, less, list(zip(made.places, amounts, strict=True)))
    return [[way.get(at, amount) for at, amount in enumerate(amounts)] for way in found]


def needed(made: Pod, amounts: Sequence[int]) -> Fraction:
    own = {
        place.container.name: {"": Fraction(each)} for place, each in zip(made.places, amounts, strict=True)
    }
    return at_one_time(made, lambda container: own[container.name], {})[""]


@cases(
    ("apps", "init", "sidecar", "most", "want"),
    one_container=((8,), (), 0, 4, [[4]]),
    each_of_two_alone=((4, 4), (), 0, 6, [[2, 4], [4, 2]]),
    only_the_one_that_has_enough=((1, 8), (), 0, 4, [[1, 3]]),
    both_where_none_is_enough=((8, 8), (), 0, 4, [[2, 2]]),
    an_init_container_and_an_app_container=((8,), (8,), 0, 4, [[4, 4]]),
    the_init_container_alone=((4,), (8,), 0, 4, [[4, 4]]),
    an_init_container_that_requests_little=((8, 8), (2,), 0, 4, [[2, 2, 2]]),
    beside_a_sidecar=((8,), (8,), 2, 4, [[3, 1, 3]]),
    one_would_get_nothing=((1, 1, 1), (), 0, 2, []),
    init_container_beside_a_sidecar_that_takes_all=((1,), (4,), 4, 1, []),
)
def test_ways(
    apps: tuple[int, ...], init: tuple[int, ...], sidecar: int, most: int, want: list[list[int]]
) -> None:
    amounts = [*apps, *([sidecar] if sidecar else []), *init]
    assert ways(made(*apps, init=init, sidecar=sidecar), amounts, most) == want


def test_nothing_can_be_less_of_what_no_container_requests() -> None:
    assert list(ways_to_request(made(8), 4, [])) == []


def test_each_way_is_enough_and_leaves_each_container_something() -> None:
    for app, second, init, sidecar, most in product((1, 3, 8), (1, 8), (1, 8, 16), (0, 1, 4), range(1, 9)):
        subject = made(app, second, init=(init,), sidecar=sidecar)
        amounts = [app, second, *([sidecar] if sidecar else []), init]
        found = ways(subject, amounts, most)
        for each in found:
            assert min(each) > 0
            assert needed(subject, each) <= most
        assert found or most < needed(subject, [1] * len(amounts)) or needed(subject, amounts) <= most
