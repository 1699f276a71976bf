"""What LimitRanger gives and refuses, against the plugin itself (tests/oracle): random LimitRanges and pods."""

from collections import Counter

import pytest

from policies.pods.defaults_annotation import DEFAULTS_ANNOTATION
from policies.pods.limit_ranges import NO_LIMITS, as_admitted, refusals
from tests.builders import view
from tests.oracle import oracle
from tests.policies.pods.limit_cases import amounts_of, draw_case, read_limits, sentences
from tests.seed import SAID, SEED

pytestmark = pytest.mark.processes
WORLDS = 2_000
SEEN = ("given", "201", "403", "min", "max", "maxLimitRequestRatio")


def test_random_limit_ranges_and_pods() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEED, SEED + WORLDS):
        world = draw_case(seed)
        answer, limits = oracle().ask(world), read_limits(world)
        if answer.reviewed is None:  # it cannot be decoded
            continue
        pod = as_admitted(view(world.pod), limits)
        reviewed = view(answer.reviewed)
        said = f"{SAID}, world {seed}"
        assert amounts_of(pod) == amounts_of(reviewed), said
        assert pod.annotations == reviewed.annotations, said
        seen["given"] += DEFAULTS_ANNOTATION in pod.annotations
        if answer.code in {201, 403}:  # else validation refuses it, and comes first
            of_each = (answer.message, *(answer.instead or ())) if answer.code == 403 else ()
            mine = {each.message for each in refusals(pod, limits)}
            assert mine == {sentence for message in of_each for sentence in sentences(message)}, said
            seen[str(answer.code)] += 1
            seen.update(each.bound for each in refusals(pod, limits))

    assert min(seen[each] for each in SEEN) >= WORLDS // 40, (seen, SAID)


def test_pod_level_amounts_beside_an_amount_that_cannot_be_read_give_nothing() -> None:
    limits = {"limits": {"nvidia.com/gpu": "many"}}
    pod = view(
        {"spec": {"resources": {"limits": {"cpu": "16"}}, "containers": [{"name": "a", "resources": limits}]}}
    )

    assert as_admitted(pod, NO_LIMITS) == pod
