"""What LimitRanger gives and refuses, against the plugin itself (tests/oracle): random LimitRanges and pods."""

from collections import Counter

import pytest

from policies.pods.limit_ranger import as_admitted, refusals
from policies.pods.limit_ranges import DEFAULTS_ANNOTATION
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
            mine = sorted({each.message for each in refusals(pod, limits)})
            assert mine == (sentences(answer.message) if answer.code == 403 else []), said
            seen[str(answer.code)] += 1
            seen.update(each.bound for each in refusals(pod, limits))

    assert min(seen[each] for each in SEEN) >= WORLDS // 40, (seen, SAID)
