"""A ClusterGPUQuota in JSON: what decides is read apart from what people see."""

from fractions import Fraction
from typing import Any

import msgspec

from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.team import Team
from tests.cases import cases
from webhook.cluster.objects import Condition
from webhook.quota.documents import encode_status
from webhook.quota.team_documents import (
    Member,
    Members,
    TeamStatus,
    decode_team,
    team_path,
    team_reference,
)

METADATA = {"name": "team-vision", "uid": "u", "resourceVersion": "7", "generation": 3}
SPEC = {
    "namespaces": {"names": ["vision-*"]},
    "hard": {"gpus": 64},
    "guaranteed": {"vision-prod": {"gpus": 16}},
}
STATUS = TeamStatus(
    hard={"gpus": Fraction(64)},
    used={"gpus": Fraction(86, 7)},
    reserved={"gpus": Fraction(1)},
    granted={"gpus": Fraction(120)},
    guaranteed_idle={"gpus": Fraction(6)},
    namespaces=Members(
        count=11,
        largest=(Member(name="vision-prod", used={"gpus": Fraction(10)}, guaranteed={"gpus": Fraction(16)}), Member(name="new")),
    ),
    shown={"used": {"gpus": "12.29"}},
    conditions=(Condition("Ready", "True", "Ready", "counted", "2027-01-01T12:00:00Z", 3),),
    observed_generation=3,
)  # fmt: skip


def stored(spec: Any, status: Any = None) -> bytes:
    return msgspec.json.encode({"metadata": METADATA, "spec": spec, "status": status or {}})


def test_a_status_comes_back_as_it_was_written() -> None:
    written = msgspec.json.decode(encode_status(team_reference("team-vision", "u"), "7", STATUS))

    assert written["kind"] == "ClusterGPUQuota"
    assert written["metadata"] == {key: METADATA[key] for key in ("name", "uid", "resourceVersion")}
    assert "spec" not in written
    assert written["status"]["guaranteedIdle"] == {"gpus": "6"}
    assert written["status"]["namespaces"]["largest"][1] == {"name": "new"}
    record = decode_team(stored(SPEC, written["status"]))
    assert (record.name, record.generation, record.status) == ("team-vision", 3, STATUS)
    assert record.match is not None
    assert record.match.namespaces.names == ("vision-*",)


def test_a_team_without_namespaces_says_so() -> None:
    status = TeamStatus(namespaces=Members())
    written = msgspec.json.decode(encode_status(team_reference("team-vision", "u"), "7", status))
    assert written["status"]["namespaces"] == {"count": 0, "largest": []}, "kubectl shows 0"


@cases("status", no_amount={"used": {"gpus": "many"}}, no_namespaces={"namespaces": 3})
def test_a_status_that_cannot_be_read_is_that_of_a_new_team(status: Any) -> None:
    record = decode_team(stored(SPEC, status))
    assert (record.problem, record.status) == ("", TeamStatus())


@cases(
    ("change", "problem"),
    a_mistyped_limit=({"hard": {"gpu": 1}}, "Object contains unknown field `gpu` - at `$.hard`"),
    no_amount=({"hard": {"gpus": "x"}}, 'must be an amount such as 16, "0.5" or "2/7", not "x" - at `$.hard.gpus`'),
    too_much_is_guaranteed=(
        {"hard": {"gpus": 8}},
        "must not exceed hard in sum: gpus is 16, and hard has 8 - at `$.guaranteed`",
    ),
    no_namespaces=({"namespaces": {}}, "must have names, selector or both - at `$.namespaces`"),
)  # fmt: skip
def test_a_spec_that_cannot_be_read_is_not_an_empty_one(change: Any, problem: str) -> None:
    record = decode_team(stored({**SPEC, **change}, {"used": {"gpus": "1"}}))

    assert (record.spec, record.team, record.hard) == (None, None, {})
    assert record.problem == f"the ClusterGPUQuota cannot be read: {problem}"
    assert record.status.used == {"gpus": Fraction(1)}


@cases(
    ("change", "names"),
    of_a_valid_one=({}, ("vision-*",)),
    of_one_with_a_mistyped_limit=({"hard": {"gpu": 1}}, ("vision-*",)),
    of_one_without_limits=({"hard": None}, ("vision-*",)),
    of_one_that_guarantees_too_much=({"hard": {"gpus": 8}}, ("vision-*",)),
    of_one_with_a_mistyped_field_beside_them=(
        {"namespaces": {"names": ["vision-*"], "label": {}}},
        ("vision-*",),
    ),
    of_one_that_names_none=({"namespaces": {"name": ["vision-*"]}}, ()),
    of_one_without_any=({"namespaces": None}, None),
)
def test_its_namespaces_stay_in_it_whatever_else_cannot_be_read(change: Any, names: Any) -> None:
    named = decode_team(stored({**SPEC, **change})).match

    assert (named and named.namespaces.names) == names


def test_what_it_grants() -> None:
    spec = {**SPEC, "hard": {"gpus": 64, "classes": {"nvidia-t4": "0.5"}}, "contact": "#vision-leads"}

    assert decode_team(stored(spec)).team == Team(
        name="team-vision",
        uid="u",
        generation=3,
        hard={"gpus": Fraction(64), "classes/nvidia-t4": Fraction(1, 2)},
        guaranteed={"vision-prod": {"gpus": Fraction(16)}},
        unclassified_pods=UnclassifiedPods.MOST_EXPENSIVE,
        contact="#vision-leads",
    )
    assert decode_team(stored({})).team is None


def test_where_it_is() -> None:
    assert team_path() == "/apis/gpu-admission.dev/v1alpha1/clustergpuquotas"
    assert team_path("team-vision", "status") == f"{team_path()}/team-vision/status"
