"""Play random worlds and print figures: `python -m tests.cluster.devices FIRST COUNT`. Each fault is printed as it is found."""

import sys
from collections.abc import Iterable
from fractions import Fraction
from statistics import quantiles

from tests.cluster.devices.playing import Played, cluster, play
from tests.cluster.devices.worlds import world


def main(first: int, count: int) -> None:
    played: list[Played] = []
    with cluster() as running:
        for seed in range(first, first + count):
            one = play(running, world(seed))
            played.append(one)
            _print(f"world {seed}: {_said(one)}")
            for fault in one.verdict.faults:
                _print(f"  {fault}")
    for line in figures(played):
        _print(line)


def _said(one: Played) -> str:
    found = one.verdict
    return f"{found.claims} claims, {found.allocations} allocated, {len(one.denials)} denied, {len(one.verdict.faults)} faults"


def figures(played: Iterable[Played]) -> list[str]:
    """Return what a run comes to."""
    every = list(played)
    verdicts = [each.verdict for each in every]
    bounds = [pair for each in verdicts for pair in each.bounds.values()]
    loose = [(bound, exact) for bound, exact in bounds if bound > exact]
    over = [each.native.over for each in every]
    lines = [
        f"{len(every)} worlds, {sum(len(each.world.wanted) for each in every)} claims asked for, "
        f"{sum(each.claims for each in verdicts)} stored, {len(bounds)} allocated, "
        f"{sum(len(each.denials) for each in every)} denied",
        f"faults: {sum(len(each.faults) for each in verdicts)}; "
        f"by changes of slices: {sum(len(each.by_changes) for each in verdicts)}",
        f"bound above what was allocated: {len(loose)} of {len(bounds)}, by {_mean(b - e for b, e in loose):.2f} cards each",
        f"native quota: over in {sum(map(bool, over))} worlds, by {_mean(each for each in over if each):.2f} cards, at most "
        f"{float(max(over, default=Fraction(0))):.2f}; refused what fitted: {sum(each.native.refused for each in every)}",
    ]
    lines += _seconds("a charge was exact", (each.delays for each in verdicts))
    return lines + _seconds("it was, from an allocation", (each.after_allocations for each in verdicts))


def _seconds(what: str, delays: Iterable[Iterable[float]]) -> list[str]:
    every = sorted(delay for each in delays for delay in each)
    if len(every) < 2:
        return []
    cuts = quantiles(every, n=100)
    return [
        f"seconds until {what}: median {cuts[49]:.2f}, 99 % {cuts[98]:.2f}, longest {every[-1]:.2f} of {len(every)}"
    ]


def _mean(amounts: Iterable[Fraction]) -> float:
    every = list(amounts)
    return float(sum(every) / len(every)) if every else 0.0


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
