"""Label selectors: Kubernetes' own semantics, and what is wrong with one."""

import msgspec
import pytest

from policies.pods.label_selector import LabelSelector, Requirement


def selector(*expressions: tuple[str, str, tuple[str, ...]], **labels: str) -> LabelSelector:
    return LabelSelector(
        match_labels=labels,
        match_expressions=tuple(
            msgspec.convert({"key": key, "operator": operator, "values": values}, Requirement)
            for key, operator, values in expressions
        ),
    )


@pytest.mark.parametrize(
    ("given", "labels", "want"),
    [
        pytest.param(selector(), {}, True, id="empty-matches-everything"),
        pytest.param(selector(team="ml"), {"team": "ml", "tier": "a"}, True, id="label"),
        pytest.param(selector(team="ml"), {"team": "web"}, False, id="other-value"),
        pytest.param(selector(team="ml"), {}, False, id="no-label"),
        pytest.param(selector(team="ml", tier="a"), {"team": "ml"}, False, id="all-labels-are-needed"),
        pytest.param(selector(("team", "In", ("ml", "web"))), {"team": "web"}, True, id="in"),
        pytest.param(selector(("team", "In", ("ml",))), {}, False, id="in-needs-the-label"),
        pytest.param(selector(("team", "NotIn", ("ml",))), {"team": "ml"}, False, id="not-in"),
        pytest.param(selector(("team", "NotIn", ("ml",))), {}, True, id="not-in-without-the-label"),
        pytest.param(selector(("team", "Exists", ())), {"team": ""}, True, id="exists"),
        pytest.param(selector(("team", "Exists", ())), {}, False, id="exists-not"),
        pytest.param(selector(("team", "DoesNotExist", ())), {}, True, id="does-not-exist"),
        pytest.param(selector(("team", "DoesNotExist", ())), {"team": "ml"}, False, id="does-not-exist-does"),
        pytest.param(selector(("tier", "Exists", ()), team="ml"), {"team": "ml"}, False, id="both-parts-are-needed"),
    ],
)  # fmt: skip
def test_matches(given: LabelSelector, labels: dict[str, str], want: bool) -> None:
    assert given.matches(labels) is want


def test_everything_wrong_is_told() -> None:
    wrong = LabelSelector(
        match_labels={"a b": "-", "example.com/team": "ml"},
        match_expressions=(
            Requirement(key="", operator="In"),
            Requirement(key="team", operator="Exists", values=("ml",)),
            Requirement(key="team", operator="NotIn", values=("m l",)),
        ),
    )
    assert [f"{path}: {sentence}" for path, sentence in wrong.problems()] == [
        "matchLabels[a b]: must be a label key",
        'matchLabels[a b]: must be a label value, not "-"',
        'matchExpressions[0].key: must be a label key, not ""',
        "matchExpressions[0].values: must be specified when operator is In",
        "matchExpressions[1].values: must not be specified when operator is Exists",
        'matchExpressions[2].values[0]: must be a label value, not "m l"',
    ]


def test_people_read_it() -> None:
    reported = selector(("team", "In", ("ml", "web")), ("tier", "Exists", ()), zone="a")
    assert str(reported) == "zone=a, team In (ml, web), tier Exists"
    assert str(selector()) == "everything"
