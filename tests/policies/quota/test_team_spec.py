"""A ClusterGPUQuota: what is wrong with one, and which namespace belongs to which."""

import json
from time import process_time

import msgspec
import pytest

from policies.quota.amounts import Hard
from policies.quota.demand import UnclassifiedPods
from policies.quota.team_spec import (
    MAX_NAMESPACES,
    TeamMatch,
    Teams,
    TeamSpec,
    limits_warnings,
    stricter_of,
)
from tests.builders import JSON
from tests.cases import cases

TOTAL_ONLY, DENY, MOST_EXPENSIVE = UnclassifiedPods
ANY = {"names": ["*"]}
NOT_A_NAME = "must be the name of a namespace, or a glob of lower case letters, digits, -, * and ?"


def spec(namespaces: JSON | None = None, **fields: object) -> TeamSpec:
    data = {"namespaces": ANY if namespaces is None else namespaces, "hard": {"gpus": 64}, **fields}
    return msgspec.json.decode(json.dumps(data), type=TeamSpec)


def team(name: str, *names: str, **labels: str) -> TeamMatch:
    selector = {"selector": {"matchLabels": labels}} if labels else {}
    return TeamMatch(name, spec({"names": names, **selector}).namespaces)


@cases(
    ("namespaces", "fields", "want"),
    all_of_it=(
        {"names": ["vision-*", "ocr"], "selector": {"matchLabels": {"team": "vision"}}},
        {
            "hard": {"gpus": 64, "classes": {"nvidia-h100": "16"}},
            "guaranteed": {"vision-prod": {"gpus": 16, "classes": {"nvidia-h100": 4}}, "other": {"gpus": "1/2"}},
            "contact": "#vision-leads",
        },
        [],
    ),
    all_that_is_granted_is_guaranteed=(ANY, {"guaranteed": {"a": {"gpus": 60}, "b": {"gpus": "4"}}}, []),
    everything=({"selector": {}}, {}, []),
    neither_names_nor_selector=({}, {}, ["namespaces: must have names, selector or both"]),
    no_names=({"names": []}, {}, ["namespaces: must have names, selector or both"]),
    no_names_of_namespaces=(
        {"names": ["Vision", "vision.*", "", "[ab]*", "*" * 64, "-a"]},
        {},
        [f"namespaces.names[{index}]: {NOT_A_NAME}" for index in range(6)],
    ),
    selector_of_no_label=(
        {"selector": {"matchLabels": {"team": "a b"}, "matchExpressions": [{"key": "x", "operator": "In"}]}},
        {},
        [
            'namespaces.selector.matchLabels[team]: must be a label value, not "a b"',
            "namespaces.selector.matchExpressions[0].values: must be specified when operator is In",
        ],
    ),
    no_amounts=(
        ANY,
        {"hard": {"gpus": "many"}, "guaranteed": {"a": {"gpus": -1}}},
        [
            'hard.gpus: must be an amount such as 16, "0.5" or "2/7", not "many"',
            'guaranteed[a].gpus: must be an amount such as 16, "0.5" or "2/7", not -1',
        ],
    ),
    more_is_guaranteed_than_granted=(
        ANY,
        {
            "hard": {"gpus": 8, "classes": {"nvidia-t4": 2}},
            "guaranteed": {"a": {"gpus": 6, "classes": {"nvidia-t4": "1.5"}}, "b": {"gpus": 3, "classes": {"nvidia-t4": 1}}},
        },
        [
            "guaranteed: must not exceed hard in sum: classes/nvidia-t4 is 5/2, and hard has 2",
            "guaranteed: must not exceed hard in sum: gpus is 9, and hard has 8",
        ],
    ),
    guarantee_of_what_is_unlimited=(
        ANY,
        {"guaranteed": {"a": {"classes": {"nvidia-t4": 0}, "resources": {"amd.com/gpu": 1}}}},
        [
            "guaranteed[a].classes[nvidia-t4]: must be limited by hard.classes[nvidia-t4], too",
            "guaranteed[a].resources[amd.com/gpu]: must be limited by hard.resources[amd.com/gpu], too",
        ],
    ),
    guarantee_for_nobody=(
        {"names": ["vision-*"]},
        {"guaranteed": {"visoin-prod": {"gpus": 1}, "A": {"gpus": 1}}},
        [
            "guaranteed[visoin-prod]: must match an entry of namespaces.names",
            "guaranteed[A]: must be the name of a namespace",
        ],
    ),
    contact_of_two_lines=(ANY, {"contact": "a\nb"}, ["contact: must be one line of at most 256 characters"]),
    endless_contact=(ANY, {"contact": "a" * 257}, ["contact: must be one line of at most 256 characters"]),
    everything_at_once=(
        {},
        {"hard": {"gpus": "x"}, "guaranteed": {"a": {"resources": {"r": 1}}}, "contact": "\t"},
        [
            "namespaces: must have names, selector or both",
            'hard.gpus: must be an amount such as 16, "0.5" or "2/7", not "x"',
            "guaranteed[a]: must match an entry of namespaces.names",
            "guaranteed[a].resources[r]: must be limited by hard.resources[r], too",
            "contact: must be one line of at most 256 characters",
        ],
    ),
)  # fmt: skip
def test_every_problem_is_said_at_its_field(namespaces: JSON, fields: JSON, want: list[str]) -> None:
    assert [f"{path}: {message}" for path, message in spec(namespaces, **fields).problems()] == want


def test_a_team_has_a_bound() -> None:
    names = [f"n{index}" for index in range(MAX_NAMESPACES + 1)]
    found = spec({"names": names}, guaranteed={name: {"gpus": 0} for name in names})

    assert [*found.problems()] == [
        ("namespaces.names", "must have at most 500 items"),
        ("guaranteed", "must have at most 500 items"),
    ]


def test_the_names_and_amounts_of_a_team_have_a_bound() -> None:
    limits = {"classes": {f"class-{index:02}": 0 for index in range(43)}}  # 43 * (16 + 14) = 1290 characters
    guaranteed = {f"n{index:03}": limits for index in range(101)}  # 101 * (4 + 14 + 1290) = 132108

    assert [*spec(hard=limits, guaranteed=guaranteed).problems()] == [
        ("hard", "must be shorter: 1290 characters (names and 14 for each amount), at most 1280"),
        ("guaranteed", "must be shorter: 132108 characters (names and 14 for each amount), at most 131072"),
    ]


@cases(
    ("data", "want"),
    mistyped_field=({"namespaces": ANY, "hard": {}, "guarantee": {}}, "unknown field `guarantee`"),
    mistyped_limit=({"namespaces": ANY, "hard": {"gpu": 1}}, "unknown field `gpu`"),
    mistyped_selector=({"namespaces": {"selector": {"labels": {}}}, "hard": {}}, "unknown field `labels`"),
    no_limits=({"namespaces": ANY}, "missing required field `hard`"),
    no_namespaces=({"hard": {}}, "missing required field `namespaces`"),
)
def test_what_is_no_spec(data: JSON, want: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=want):
        msgspec.json.decode(json.dumps(data), type=TeamSpec)


ALL = [
    team("b-name", "vision-prod"),
    team("b-long", "vision-p*"),
    team("b-short", "vision*"),
    team("b-label", team="vision"),
    team("a-name", "vision-prod", "ocr"),
    team("c-short", "v*sion*", "lab-??"),
    team("a-label", team="vision"),
    team("both", "audio-*", team="audio"),
]


@cases(
    ("namespace", "labels", "want"),
    a_name_before_a_glob_then_by_name=("vision-prod", {}, "a-name"),
    a_longer_glob=("vision-play", {}, "b-long"),
    a_shorter_glob=("vision-cv", {"team": "vision"}, "b-short"),
    of_globs_of_one_length_the_first_by_name=("vision", {}, "b-short"),
    a_selector_last_then_by_name=("speech", {"team": "vision", "x": "y"}, "a-label"),
    another_value=("speech", {"team": "Vision"}, None),
    by_either=("audio-prod", {}, "both"),
    by_the_other=("music", {"team": "audio"}, "both"),
    one_character_each=("lab-01", {}, "c-short"),
    a_glob_is_of_the_whole_name=("lab-001", {}, None),
    nothing_matches=("default", {"kubernetes.io/metadata.name": "default"}, None),
)
def test_a_namespace_belongs_to_one_team(namespace: str, labels: dict[str, str], want: str | None) -> None:
    for teams in (ALL, ALL[::-1]):
        found = Teams(teams).of(namespace, labels)
        assert (found and found.name) == want


def test_many_teams_and_namespaces_are_matched_within_a_second() -> None:
    teams = Teams(team(f"t{n}", f"t{n}-*", f"x{n}", team=f"t{n}") for n in range(200))
    start = process_time()
    found = {teams.of(f"n{n}", {"a": "b", "team": "none"}) for n in range(2000)}

    assert found == {None}
    assert process_time() - start < 1


@cases(
    ("one", "other", "want"),
    deny=(DENY, MOST_EXPENSIVE, DENY),
    most_expensive=(TOTAL_ONLY, MOST_EXPENSIVE, MOST_EXPENSIVE),
    equal=(TOTAL_ONLY, TOTAL_ONLY, TOTAL_ONLY),
    deny_before_all=(TOTAL_ONLY, DENY, DENY),
)
def test_the_stricter_of_two(one: UnclassifiedPods, other: UnclassifiedPods, want: UnclassifiedPods) -> None:
    assert stricter_of(one, other) is stricter_of(other, one) is want


@cases(
    ("own", "want"),
    alone=(team("t", "robots-*"), []),
    same_name=(
        team("t", "x", "ocr"),
        ["namespaces.names[1]: overlaps ocr of ClusterGPUQuota a-name: a namespace that both match belongs to a-name"],
    ),
    name_in_a_glob_of_another=(
        team("t", "audio-prod", "audio-dev"),
        [
            "namespaces.names[1]: overlaps audio-* of ClusterGPUQuota both (1 more): a namespace that both match "
            "belongs to t"
        ],
    ),
    glob_in_a_glob=(
        team("t", "lab-*"),
        ["namespaces.names[0]: overlaps lab-?? of ClusterGPUQuota c-short: a namespace that both match belongs to c-short"],
    ),
    same_labels=(
        team("t", team="audio"),
        ["namespaces.selector: equals the selector of ClusterGPUQuota both: a namespace that no name matches belongs to both"],
    ),
)  # fmt: skip
def test_who_shares_namespaces_is_told_whose_they_are(own: TeamMatch, want: list[str]) -> None:
    whole = TeamSpec(namespaces=own.namespaces, hard=Hard(gpus=1))
    assert [f"{path}: {message}" for path, message in limits_warnings(own.name, whole, ALL)] == want


@cases(
    ("fields", "want"),
    no_total=(
        {"hard": {"classes": {"nvidia-t4": 1}}},
        ["hard: does not limit gpus: only its classes limit the team"],
    ),
    no_total_but_all_else=(
        {"hard": {"classes": {"nvidia-t4": 1}, "resources": {"amd.com/gpu": 1}}},
        ["hard: does not limit gpus: only its classes and resources limit the team"],
    ),
    no_limit=({"hard": {}}, ["hard: limits nothing: set gpus, classes or resources"]),
    total_only=(
        {"hard": {"gpus": 1, "classes": {"nvidia-t4": 1}}, "unclassifiedPods": "TotalOnly"},
        [
            "unclassifiedPods: TotalOnly lets pods that pin no class exceed hard.classes: they count for a class only once "
            "they are bound; set MostExpensive, or Deny"
        ],
    ),
    a_forbidding_total=({"hard": {"gpus": 0}}, []),
)
def test_what_may_not_be_meant(fields: JSON, want: list[str]) -> None:
    found = limits_warnings("t", spec(**fields), ())
    assert [f"{path}: {message}" for path, message in found] == want


def test_class_limits_are_held_unless_it_says_otherwise() -> None:
    assert spec().unclassified_pods is TOTAL_ONLY
    assert spec(hard={"classes": {"nvidia-t4": 1}}).unclassified_pods is MOST_EXPENSIVE
    assert spec(unclassifiedPods="Deny").unclassified_pods is DENY
