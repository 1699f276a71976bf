"""What the API server itself rejects of a ClusterGPUQuota, and what kubectl shows of one."""

from fractions import Fraction

import msgspec
import pytest

from tests.builders import JSON
from tests.cases import cases
from tests.cluster.crds import AMOUNT, STRICT
from tests.controlplane import ControlPlane, accepted
from tests.controlplane.gpuquota import install_kinds
from webhook.cluster.objects import Condition
from webhook.configuration.documents import Document
from webhook.quota.documents import encode_status
from webhook.quota.ledger_objects import team_object_name
from webhook.quota.team_documents import (
    TEAM_PLURAL,
    Member,
    Members,
    TeamStatus,
    decode_team,
    team_path,
    team_reference,
)

NAME = "team-crd"
ANY = {"names": ["crd-*"]}
NOT_A_NAME = "must be the name of a namespace, or a glob of lower case letters, digits, -, * and ?"
NOT_A_LINE = "must be one line of at most 256 characters"
WHOLE = {
    "namespaces": {
        "names": ["crd-*", "ocr", "lab-??"],
        "selector": {
            "matchLabels": {"team": "crd"},
            "matchExpressions": [{"key": "stage", "operator": "NotIn", "values": ["dev"]}],
        },
    },
    "hard": {"gpus": 64, "classes": {"nvidia-h100": "16"}, "resources": {"nvidia.com/mig-1g.10gb": 7}},
    "guaranteed": {"crd-prod": {"gpus": "16.5", "classes": {"nvidia-h100": "2/7"}}, "ocr": {"gpus": 0}},
    "unclassifiedPods": "Deny",
    "contact": "#crd-leads",
}

CLASSES = [f"nvidia-class-{number:05}" for number in range(32)]
LONGEST_HARD = {"classes": dict.fromkeys(CLASSES, 4000)}
LONGEST_GUARANTEED = {
    f"n{'x' * 59}{number:03}": {"classes": dict.fromkeys(CLASSES[: 5 if number < 314 else 4], 8)}
    for number in range(500)
}


@pytest.fixture(scope="module")
def teams(plane: ControlPlane) -> ControlPlane:
    install_kinds(plane.client(), TEAM_PLURAL)
    return plane


def team(spec: JSON) -> JSON:
    return Document("ClusterGPUQuota", NAME, spec).data


@cases(
    ("change", "want"),
    no_hard=({"hard": None}, "spec.hard: Required value"),
    no_namespaces=({"namespaces": None}, "spec.namespaces: Required value"),
    neither_names_nor_selector=({"namespaces": {}}, "must have names, selector or both"),
    no_names=({"namespaces": {"names": []}}, "must have names, selector or both"),
    name_of_no_namespace=({"namespaces": {"names": ["Vision"]}}, f'names[0]: Invalid value: "Vision": {NOT_A_NAME}'),
    glob_of_another_language=({"namespaces": {"names": ["[ab]*"]}}, f'names[0]: Invalid value: "[ab]*": {NOT_A_NAME}'),
    no_name=({"namespaces": {"names": [""]}}, f'names[0]: Invalid value: "": {NOT_A_NAME}'),
    a_name_twice=({"namespaces": {"names": ["ocr", "ocr"]}}, 'spec.namespaces.names[1]: Duplicate value: "ocr"'),
    too_many_names=({"namespaces": {"names": [f"n{n}" for n in range(501)]}}, "must have at most 500 items"),
    unknown_operator=(
        {"namespaces": {"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}},
        "supported values: ",
    ),
    no_amount=({"hard": {"gpus": "sixteen"}}, f'spec.hard.gpus: Invalid value: "sixteen": {AMOUNT}'),
    negative=({"hard": {"classes": {"nvidia-t4": -1}}}, f"-1: {AMOUNT}"),
    class_name=(
        {"hard": {"classes": {"NVIDIA T4": 1, "nvidia-t4": 1}}},
        "a key must be the name of a class or a family, such as nvidia-a100-80gb or nvidia-a100, not NVIDIA T4",
    ),
    resource_name=(
        {"hard": {"resources": {"cpu": 1, "amd.com/gpu": 1}}},
        "a key must be a resource name without requests. or limits., such as nvidia.com/mig-1g.10gb, not cpu",
    ),
    guarantee_of_no_amount=({"guaranteed": {"crd-a": {"gpus": "1/0"}}}, f'"1/0": {AMOUNT}'),
    guarantee_for_no_namespace=(
        {"guaranteed": {"Crd": {"gpus": 1}, "crd-a": {"gpus": 1}}},
        "a key must be the name of a namespace, not Crd",
    ),
    guarantee_of_what_is_unlimited=(
        {"hard": {}, "guaranteed": {"crd-a": {"gpus": 1}}},
        "guaranteed: gpus must be limited by hard.gpus, too",
    ),
    guarantee_of_another_class=(
        {"hard": {"classes": {"nvidia-a100": 1}}, "guaranteed": {"crd-a": {"classes": {"nvidia-t4": 1}}}},
        "guaranteed: every class must be limited by hard.classes, too",
    ),
    guarantee_of_another_resource=(
        {"guaranteed": {"crd-a": {"resources": {"nvidia.com/gpu": 1}}}},
        "guaranteed: every resource must be limited by hard.resources, too",
    ),
    too_many_limits=(
        {"hard": {"gpus": 1, **LONGEST_HARD}},
        "hard: must be shorter: at most 1280 characters, of names and 14 for each amount",
    ),
    too_many_limits_of_resources=(
        {"hard": {"resources": {f"example.com/{'x' * 100}{number}": 1 for number in range(10)}}},
        "hard: must be shorter: at most 1280 characters",
    ),
    too_many_guarantees=(
        {
            "hard": LONGEST_HARD,
            "guaranteed": {**LONGEST_GUARANTEED, f"n{'x' * 59}499": {"classes": dict.fromkeys(CLASSES[:5], 8)}},
        },
        "guaranteed: must be shorter: at most 131072 characters, of names and 14 for each amount",
    ),
    unclassified=({"unclassifiedPods": "Cheapest"}, "supported values: "),
    contact_of_two_lines=({"contact": "a\nb"}, f'spec.contact: Invalid value: "a\\nb": {NOT_A_LINE}'),
    invisible_contact=({"contact": "a\u2028b"}, NOT_A_LINE),
    endless_contact=({"contact": "a" * 257}, "may not be more than 256 bytes"),
)  # fmt: skip
def test_the_api_server_refuses_a_bad_spec(teams: ControlPlane, change: JSON, want: str) -> None:
    spec = {"namespaces": ANY, "hard": {"gpus": 8}, **change}
    document = team({key: value for key, value in spec.items() if value is not None})
    status, answer = teams.client().post(team_path(), document, {**STRICT, "dryRun": "All"})
    assert status in {400, 422}, answer
    assert want in answer["message"]


@cases(("length", "status"), as_long_as_its_ledgers_can_be_named=(237, 201), longer=(238, 422))
def test_the_length_of_a_name(teams: ControlPlane, length: int, status: int) -> None:
    document = team({"namespaces": ANY, "hard": {}})
    document["metadata"]["name"] = "a" * length
    assert len(team_object_name(document["metadata"]["name"])) == length + 16
    found, answer = teams.client().post(team_path(), document, {**STRICT, "dryRun": "All"})
    assert found == status, answer
    assert status == 201 or "the name must have at most 237 characters" in answer["message"]


@cases(
    "spec",
    all_of_it=WHOLE,
    as_little_as_can_be={"namespaces": {"selector": {}}, "hard": {}},
    many={
        "namespaces": {"names": [*LONGEST_GUARANTEED]},
        "hard": LONGEST_HARD,
        "guaranteed": LONGEST_GUARANTEED,
    },
)
def test_what_the_api_server_takes_can_be_read(teams: ControlPlane, spec: JSON) -> None:
    answer = accepted(teams.client().post(team_path(), team(spec), {**STRICT, "dryRun": "All"}))
    assert answer["spec"] == spec
    record = decode_team(msgspec.json.encode(answer))
    assert record.problem == ""
    assert record.team is not None
    assert record.team.guaranteed.keys() == spec.get("guaranteed", {}).keys()


def test_kubectl_shows_used_hard_namespaces_and_status(teams: ControlPlane) -> None:
    client = teams.client()
    accepted(client.post(team_path(), team(WHOLE)))
    status = TeamStatus(
        hard={"gpus": Fraction(64)},
        used={"gpus": Fraction(92, 7), "classes/nvidia-h100": Fraction(8)},
        reserved={"gpus": Fraction(2)},
        granted={"gpus": Fraction(120)},
        guaranteed_idle={"gpus": Fraction(6)},
        shown={
            "used": {"gpus": "13.14"},
            "reserved": {"gpus": "2"},
            "granted": {"gpus": "120"},
            "guaranteedIdle": {"gpus": "6"},
        },
        namespaces=Members(
            count=11,
            largest=(
                Member(name="crd-prod", used={"gpus": Fraction(10)}, guaranteed={"gpus": Fraction(33, 2)}),
                Member(name="crd-new"),
            ),
        ),
        conditions=(Condition("Ready", "True", "Ready", "counted", "2026-11-22T11:00:00Z", 1),),
        observed_generation=1,
    )
    _, stored = client.get(team_path(NAME))
    record = decode_team(msgspec.json.encode(stored))
    reference = team_reference(NAME, record.uid)
    written = msgspec.json.decode(encode_status(reference, record.version, status))
    accepted(client.put(team_path(NAME, "status"), written, STRICT))
    assert decode_team(msgspec.json.encode(client.get(team_path(NAME))[1])).status == status
    shown, wide = (
        teams.kubectl("get", "cgpuq", NAME, *options).stdout.splitlines() for options in ((), ("-o", "wide"))
    )
    client.delete(team_path(NAME))

    assert shown[0].split() == ["NAME", "USED", "HARD", "NAMESPACES", "STATUS", "COUNTED", "AGE"]
    assert shown[1].split()[:5] == [NAME, "13.14", "64", "11", "Ready"]
    assert wide[1].split()[5:8] == ["2", "6", "120"]
    assert "#crd-leads" in wide[1]
