"""What a finding tells its reader to do is true and complete, in random worlds, by the oracle's API server and scheduler.

Of every finding, each choice is made literally, and what it awaits comes. Then the finding is gone, no new denial comes, the API
server accepts the pod, and the scheduler has a node for it were the GPUs free. Words that say what to do have data.
"""

from collections import Counter
from typing import NamedTuple

import pytest

from tests.oracle import WorldRefused
from tests.oracle.worlds import scarce
from tests.remedies.following import EXCLUDED, FAILING, Failure, Subject
from tests.remedies.situations import ALONE, draw_situation
from tests.seed import SAID, SEED

COMPLETE = 0.99
"""The share of findings that name an edit of the fixed list where one works."""


class Report(NamedTuple):
    findings: int
    with_finding: int
    failures: list[tuple[int, Failure]]
    incomplete: list[tuple[int, str]]
    features: list[frozenset[str]]


def followed(seeds: range) -> Report:
    report = Report(0, 0, [], [], [])
    for seed in seeds:
        situation, document = draw_situation(seed)
        report.features.append(situation.features)
        try:
            subject = Subject(situation, document)
        except WorldRefused:
            continue
        found = [each for each in dict.fromkeys(subject.found) if each.finding.reason.name not in EXCLUDED]
        report = report._replace(
            findings=report.findings + len(found), with_finding=report.with_finding + bool(found)
        )
        for violation in found:
            report.failures.extend((seed, each) for each in subject.failures(violation))
            if why := subject.incomplete(violation):
                report.incomplete.append((seed, why))
    return report


@pytest.mark.processes
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(SEED, SEED + 25), id="some"),
        pytest.param(range(SEED, SEED + 5_000), id="many", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_what_findings_say_to_do_is_true_and_complete(seeds: range) -> None:
    report = followed(seeds)

    kinds = Counter((each.kind, each.reason) for _, each in report.failures)
    print(SAID, len(seeds), report.findings, dict(kinds), len(report.incomplete))  # noqa: T201  shown by -rA
    assert report.with_finding >= len(seeds) * 0.6
    shown = [f"{seed} {each.kind} {each.reason}: {each.detail}" for seed, each in report.failures]
    shown += [f"{seed} incomplete: {why}" for seed, why in report.incomplete]
    slack = 3 if len(seeds) < 1_000 else 0  # few worlds have few findings
    assert len(report.failures) <= report.findings * FAILING + slack, f"{SAID}\n" + "\n".join(shown[:20])
    assert len(report.incomplete) <= report.findings * (1 - COMPLETE) + slack, f"{SAID}\n" + "\n".join(
        shown[:20]
    )
    if len(seeds) >= 1_000:
        assert scarce(report.features, 1, ALONE) == []
