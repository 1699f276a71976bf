"""What `scan` tells people to do is true, in random clusters: its sentences are those of the rules about what is stored.

A scan counts no quota: nobody holds any. So the sentences are followed in the situation in which all of it is free.
"""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.oracle import JSON, WorldRefused
from tests.remedies.following import EXCLUDED, FAILING, Failure, Subject
from tests.remedies.situations import NOW, Situation, draw_situation
from tests.remedies.stored import KINDS, Cluster
from tests.seed import SAID, SEED
from tests.webhook.cluster.apiserver import ApiServer, answering
from webhook.evaluation.decision import Outcome
from webhook.tools.scan.scanning import Scan


def as_scanned(situation: Situation) -> Situation:
    """Return the situation in which nobody holds any quota, and a team has none."""
    none = Fraction(0)
    quota = situation.quota and replace(
        situation.quota, own=none, others=none, of_team=none, team=None, waiting=0, spent=0.0
    )
    return replace(situation, quota=quota, is_unused=True)


@pytest.mark.processes
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(SEED, SEED + 25), id="some"),
        pytest.param(range(SEED, SEED + 5_000), id="many", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_what_scan_says_to_do_is_true(tmp_path: Path, seeds: range) -> None:
    found: list[tuple[int, Failure]] = []
    sentences = 0
    with ApiServer(tmp_path, answering({})) as server:
        for seed in seeds:
            situation, document = draw_situation(seed)
            situation = as_scanned(situation)
            try:
                subject = Subject(situation, document)
            except WorldRefused:
                continue
            reviewed = situation.reviewed(document)
            stored = {**reviewed, "metadata": {**reviewed["metadata"], "uid": "u"}}
            of, plural = KINDS.get(document["kind"], ("", "pods"))
            path = f"/apis/{of}/v1/{plural}" if of else "/api/v1/pods"
            lists: JSON = {f"/apis/{group}/v1/{each}": [] for group, each in KINDS.values()}
            server.answer = answering({**Cluster(situation, ()).objects(), **lists, path: [stored]})
            report = Scan(server.client(), now=NOW).report(with_trial=False)
            every = subject.evaluation.findings()
            assert {each.sentence for each in report.problems} == {
                each.finding.sentence() for each in every
            }, f"{SAID} {seed}"
            sentences += len(report.problems)
            for violation in dict.fromkeys(subject.found):
                if violation.finding.reason.name not in EXCLUDED and violation.outcome is not Outcome.AUDITED:
                    found.extend((seed, each) for each in subject.failures(violation))
    kinds = Counter((each.kind, each.reason) for _, each in found)
    print(SAID, len(seeds), sentences, dict(kinds))  # noqa: T201  shown by -rA
    shown = "\n".join(f"{seed} {each.kind} {each.reason}: {each.detail}" for seed, each in found[:20])
    slack = 1 if len(seeds) < 1_000 else 0
    assert len(found) <= sentences * FAILING + slack, f"{SAID}\n{shown}"
