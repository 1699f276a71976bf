"""Label selectors: Kubernetes' own semantics, and what is wrong with one."""

import msgspec

from policies.pods.label_selector import LabelSelector, Requirement, meets
from tests.cases import cases


def selector(*expressions: tuple[str, str, tuple[str, ...]], **labels: str) -> LabelSelector:
    return LabelSelector(
        match_labels=labels,
        match_expressions=tuple(
            msgspec.convert({"key": key, "operator": operator, "values": values}, Requirement)
            for key, operator, values in expressions
        ),
    )


@cases(
    ("given", "labels", "want"),
    {
        "empty-matches-everything": (selector(), {}, True),
        "label": (selector(team="ml"), {"team": "ml", "tier": "a"}, True),
        "other-value": (selector(team="ml"), {"team": "web"}, False),
        "no-label": (selector(team="ml"), {}, False),
        "all-labels-are-needed": (selector(team="ml", tier="a"), {"team": "ml"}, False),
        "in": (selector(("team", "In", ("ml", "web"))), {"team": "web"}, True),
        "in-needs-the-label": (selector(("team", "In", ("ml",))), {}, False),
        "not-in": (selector(("team", "NotIn", ("ml",))), {"team": "ml"}, False),
        "not-in-without-the-label": (selector(("team", "NotIn", ("ml",))), {}, True),
        "exists": (selector(("team", "Exists", ())), {"team": ""}, True),
        "exists-not": (selector(("team", "Exists", ())), {}, False),
        "does-not-exist": (selector(("team", "DoesNotExist", ())), {}, True),
        "does-not-exist-does": (selector(("team", "DoesNotExist", ())), {"team": "ml"}, False),
        "both-parts-are-needed": (selector(("tier", "Exists", ()), team="ml"), {"team": "ml"}, False),
    },
)
def test_matches(given: LabelSelector, labels: dict[str, str], want: bool) -> None:
    assert given.matches(labels) is want


@cases(
    ("operator", "value", "want"),
    greater=("Gt", "79", True),
    not_greater_than_itself=("Gt", "80", False),
    less=("Lt", "81", True),
    not_less_than_itself=("Lt", "80", False),
    no_number=("Gt", "many", False),
    several=("Gt", "1 2", False),
)
def test_numbers_in_node_affinity(operator: str, value: str, want: bool) -> None:
    assert meets(frozenset({"80"}), operator, frozenset(value.split())) is want


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
