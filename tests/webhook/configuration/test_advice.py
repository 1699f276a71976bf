"""Warnings about valid policies."""

from datetime import UTC, datetime
from typing import Any

import pytest

from policies.policy import Labels
from webhook.configuration.advice import glob_contains, globs_meet, policy_advice
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_objects

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ML, TEAM = {"namespaces": ["ml-*"]}, {"matchLabels": {"team": "ml"}}


def advice(
    spec: dict[str, Any], *others: tuple[str, dict[str, Any]], namespaces: dict[str, Labels] | None = None
) -> list[str]:
    documents = [Document("GPUPolicy", "this", spec), *(Document("GPUPolicy", *other) for other in others)]
    reported = policy_advice(load_objects(documents), "this", NOW, namespaces)
    return [f"{path}: {message}" for path, message in reported]


@pytest.mark.parametrize(
    ("spec", "other", "want"),
    [
        pytest.param({"match": ML, "priority": 1}, ("default", {}), [], id="special-before-general"),
        pytest.param(
            {"match": ML},
            ("other", {"match": {"namespaces": ["*-a"]}}),
            ["spec.priority: 0 is also the priority of other, which can match the same namespaces: other governs them, by name"],
            id="tie",
        ),
        pytest.param(
            {"match": ML, "priority": 2},
            ("other", {"match": {"namespaces": ["*-a"]}, "priority": 1}),
            ["spec.match: other can match the same namespaces: this governs them, by priority"],
            id="overlap",
        ),
        pytest.param(
            {"match": ML},
            ("default", {}),
            ["spec.match: this never governs: default comes first wherever it matches"],
            id="this-is-shadowed",
        ),
        pytest.param(
            {"priority": 3},
            ("other", {"match": ML}),
            ["spec.match: other never governs: this comes first wherever it matches"],
            id="this-shadows",
        ),
        pytest.param(
            {"match": ML},
            ("default", {"match": {"namespaceSelector": TEAM}, "priority": 1}),
            ["spec.match: default can match the same namespaces: default governs them, by priority"],
            id="a-selector-leaves-room",
        ),
        pytest.param(
            {"match": {**ML, "namespaceSelector": TEAM}},
            ("default", {"match": {"namespaceSelector": TEAM}, "priority": 1}),
            ["spec.match: this never governs: default comes first wherever it matches"],
            id="the-same-selector-does-not",
        ),
        pytest.param({"match": ML}, ("other", {"match": {"namespaces": ["web-*"]}}), [], id="apart"),
        pytest.param(
            {"pausedUntil": "2026-11-21T12:30:00Z"},
            ("zz", {"match": ML, "priority": 1}),
            ["spec.pausedUntil: until 2026-11-21T12:30:00Z every rule of this policy only audits"],
            id="paused",
        ),
        pytest.param(
            {"pausedUntil": "2026-11-21T12:00:00Z"},
            ("zz", {"match": ML, "priority": 1}),
            ["spec.pausedUntil: has passed: nothing is paused"],
            id="pause-is-over",
        ),
        pytest.param(
            {"exemptions": [{"namespaces": ["a"], "reason": "x", "until": day} for day in ("2026-11-21", "2026-11-20")]},
            ("zz", {"match": ML, "priority": 1}),
            ["spec.exemptions[1].until: has passed: this exemption has ended"],
            id="exemption-has-ended",
        ),
    ],
)  # fmt: skip
def test_advice(spec: dict[str, Any], other: tuple[str, dict[str, Any]], want: list[str]) -> None:
    assert advice(spec, other) == want


def test_namespaces_that_do_not_exist() -> None:
    there: dict[str, Labels] = {"ml-a": (("team", "web"),), "web": ()}
    spec = {"match": {"namespaces": ["ml-*", "mll"], "namespaceSelector": TEAM}}

    assert advice(spec, namespaces=there) == [
        'spec.match.namespaces[1]: "mll" matches no existing namespace',
        "spec.match.namespaceSelector: matches no existing namespace",
    ]
    assert advice(spec) == []


@pytest.mark.parametrize(
    ("one", "other", "meet", "contains"),
    [
        pytest.param("*", "ml-*", True, True, id="everything"),
        pytest.param("ml-*", "*", True, False, id="part"),
        pytest.param("ml-*", "ml-serving", True, True, id="name"),
        pytest.param("ml-*", "ml-", True, True, id="empty-rest"),
        pytest.param("ml-*", "*-a", True, False, id="crossing"),
        pytest.param("ml-?", "ml-*", True, False, id="one-character"),
        pytest.param("ml-?", "ml-a", True, True, id="one-character-fits"),
        pytest.param("ml-?", "ml-ab", False, False, id="two-characters-do-not"),
        pytest.param("ml-[ab]", "ml-a", True, True, id="set"),
        pytest.param("ml-a", "ml-[ab]", True, False, id="of-a-set"),
        pytest.param("a*b*c", "axbyc", True, True, id="several-wildcards"),
        pytest.param("web", "ml", False, False, id="apart"),
        pytest.param("*-a", "ml-b", False, False, id="other-end"),
    ],
)
def test_globs(one: str, other: str, meet: bool, contains: bool) -> None:
    assert globs_meet(one, other) is meet
    assert globs_meet(other, one) is meet
    assert glob_contains(one, other) is contains
