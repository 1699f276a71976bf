"""What `scan` tells people to do is true, in random clusters: its sentences are those of the rules about what is stored.

A scan counts no quota: nobody holds any. So the sentences are followed in the situation in which all of it is free.
"""

from fractions import Fraction
from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.oracle import JSON
from tests.remedies.following import EXCLUDED, Subject
from tests.remedies.situations import NOW, Situation, draw_situation
from tests.remedies.stored import Cluster
from tests.remedies.telling import Followed, assert_true, in_worlds
from tests.remedies.workloads import KINDS, WITH_LAUNCHER
from tests.seed import SAID
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


def followed(server: ApiServer, seed: int) -> Followed:
    situation, document = draw_situation(seed)
    situation = as_scanned(situation)
    subject = Subject(situation, document)
    reviewed = situation.reviewed(document)
    stored = {**reviewed, "metadata": {**reviewed["metadata"], "uid": "u"}}
    kind = KINDS.get(document["kind"])
    path = f"/apis/{kind.version}/{kind.plural}" if kind else "/api/v1/pods"
    lists: JSON = {f"/apis/{each.version}/{each.plural}": [] for each in KINDS.values()}
    server.answer = answering({**Cluster(situation, ()).objects(), **lists, path: [stored]})

    report = Scan(server.client(), now=NOW).report(verify_proposal=False)

    by_rules = {each.finding.sentence() for each in subject.evaluation.findings()}
    said = {each.sentence for each in report.problems}
    assert said <= by_rules, f"{SAID} {seed}"
    assert said == by_rules or document["kind"] in WITH_LAUNCHER, (
        f"{SAID} {seed}"
    )  # it says once what two templates have
    followed = (
        each
        for each in dict.fromkeys(subject.found)
        if each.finding.reason.name not in EXCLUDED and each.outcome is not Outcome.AUDITED
    )
    failures = [*chain.from_iterable(map(subject.failures, followed))]
    return Followed("with problems" if report.problems else "without", len(report.problems), failures)


@pytest.mark.processes
@in_worlds
def test_what_scan_says_to_do_is_true(tmp_path: Path, seeds: range) -> None:
    assert_true(tmp_path, seeds, followed)
