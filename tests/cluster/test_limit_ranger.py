"""What LimitRanges give and refuse: `policies.pods.limit_ranges` against a real API server.

tests/policies/pods/test_limit_ranger.py holds it against the plugin alone.
"""

import random
from collections.abc import Sequence
from itertools import permutations

import msgspec
import pytest
from msgspec.structs import replace

from policies.gpus.invalid_limit_ranges import invalid_amounts
from policies.pods.limit_ranges import (
    NamespaceLimits,
    as_admitted,
    decode_limit_range,
    namespace_limits,
    refusals,
)
from policies.pods.pod import Metadata
from tests.builders import JSON, container, view
from tests.cluster.controllers import eventually
from tests.cluster.versions import since
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import Namespace
from tests.oracle import World
from tests.policies.pods.limit_cases import amounts_of, draw_case, read_limits, sentences
from tests.seed import SAID, SEED
from webhook.configuration.loader import load_objects

DRY = {"dryRun": "All"}
FIELDS = ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio")
MAPPING = load_objects([]).resource_mapping
PROBE = {"metadata": {"name": "probe"}, "spec": {"containers": [container()]}}


def namespace_of(plane: ControlPlane, limit_ranges: Sequence[JSON]) -> Namespace:
    team = Namespace(plane)
    for each in limit_ranges:
        body = {"metadata": {"name": each["metadata"]["name"]}, "spec": each["spec"]}
        accepted(team.client.post(team.path("limitranges"), body))
    return team


def in_every_order(world: World) -> list[NamespaceLimits]:
    """Return the LimitRanges with names by which we apply them in each order."""
    return [
        namespace_limits(replace(each, metadata=Metadata(name=str(at))) for at, each in enumerate(order))
        for order in permutations(read_limits(world).limit_ranges)
    ]


def agrees(world: World, status: int, answer: JSON) -> bool:
    """Whether it answers as we do. It gives in an order of its own, and refuses in another one."""
    for giving in in_every_order(world):
        ours = as_admitted(view(world.pod), giving)
        said: dict[str, set[str]] = {}
        for each in refusals(ours, giving):
            said.setdefault(each.limit_range, set()).add(each.message)
        if status == 403:
            if set(sentences(answer["message"])) in said.values():
                return True
            continue
        stored = view(answer)
        stored = replace(
            stored, given_spec=replace(stored.spec, resources=ours.spec.resources)
        )  # completed after webhooks
        if status == 201 and not said and amounts_of(stored) == amounts_of(ours):
            return True
    return False


@since(37, "LimitRanges see resources of whole pods completed")
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(SEED, SEED + 40), id="some"),
        pytest.param(range(SEED, SEED + 200), id="many", marks=pytest.mark.slow),
    ],
)
def test_the_api_server_gives_and_refuses_the_same(plane: ControlPlane, seeds: range) -> None:
    worlds = [draw_case(seed) for seed in seeds]
    teams = [namespace_of(plane, each.limit_ranges) for each in worlds]
    last = namespace_of(
        plane, [{"metadata": {"name": "last"}, "spec": {"limits": [{"type": "Pod", "min": {"cpu": "1"}}]}}]
    )
    # LimitRanger learns of the last one as it learns of those before.
    assert eventually(lambda: last.create(PROBE, DRY)[0] == 403)

    differ, answered = list[str](), dict[int, int]()
    for seed, world, team in zip(seeds, worlds, teams, strict=True):
        document = {**world.pod, "metadata": {"name": "train"}}
        status, answer = team.create(document, DRY)
        answered[status] = answered.get(status, 0) + 1
        if status in {201, 403} and not agrees(world, status, answer):
            differ.append(f"{seed}: {status} {answer}")

    assert not differ, f"{SAID}, {len(differ)} differences:\n" + "\n".join(differ[:5])
    assert {201, 403} <= answered.keys(), SAID


def test_the_api_server_refuses_the_same_limit_ranges(plane: ControlPlane) -> None:
    team, choose = Namespace(plane), random.Random(SEED)  # noqa: S311
    differ, seen = list[str](), dict[bool, int]()
    for number in range(150):
        amounts = {
            field: {"nvidia.com/gpu": choose.choice(["0", "1", "2", "3", "8", "500m", "2666m", "2667m"])}
            for field in FIELDS
            if choose.random() < 0.5
        }
        item = {"type": choose.choice(["Container", "Container", "Pod"]), **amounts}
        body = {"metadata": {"name": f"drawn-{number}"}, "spec": {"limits": [item]}}
        status, answer = team.client.post(team.path("limitranges"), body, DRY)
        found = [*invalid_amounts(decode_limit_range(msgspec.json.encode(body)), MAPPING)]
        seen[bool(found)] = seen.get(bool(found), 0) + 1
        if (status == 422) != bool(found):
            differ.append(
                f"{SAID} {item}: {status} {answer.get('message')} {[each.sentence() for each in found]}"
            )

    assert differ == []
    assert min(seen.values()) > 20, seen
