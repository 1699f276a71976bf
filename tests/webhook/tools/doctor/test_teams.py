"""Doctor on ClusterGPUQuotas: namespaces, guarantees, and what the nodes have."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.controller.counters import Counter, slices_of
from tests.webhook.tools.doctor.objects import COUNTED, QUOTAS, conditions, node, quota
from tests.webhook.tools.installed_clusters import assert_found, checked
from webhook.controller.class_capacity import granted_and_allocatable
from webhook.quota.team_documents import decode_team

TEAMS = "/apis/gpu-admission.dev/v1alpha1/clustergpuquotas"
NAMESPACES, NODES = "/api/v1/namespaces", "/api/v1/nodes"
ALL = ("vision-cv", "vision-prod", "other")


def team(
    *found: tuple[str, str, str], name: str = "team-vision", status: JSON | None = None, **spec: Any
) -> JSON:
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "generation": 1},
        "spec": {"namespaces": {"names": ["vision-*"]}, "hard": {"gpus": 64}, **spec},
        "status": {"conditions": conditions(*found), **(status or {})},
    }


def installed(*teams: JSON, names: tuple[str, ...] = ALL) -> JSON:
    return {TEAMS: list(teams), NAMESPACES: [{"metadata": {"name": name}} for name in names]}


IDLE = {"hard": {"gpus": "64"}, "reserved": {}, "guaranteedIdle": {"gpus": "16"}}


@cases(
    ("objects", "want"),
    all_is_well=(installed(team(COUNTED)), []),
    no_teams=({}, []),
    unreadable=(
        installed(team(COUNTED, hard={"gpus": "many"})),
        [
            "team-unreadable: ClusterGPUQuota team-vision the ClusterGPUQuota cannot be read: must be an amount "
            'such as 16, "0.5" or "2/7", not "many" - at `$.hard.gpus`\n'
            "correct it: kubectl edit cgpuq team-vision; until then its last valid version stays in force"
        ],
    ),
    never_counted=(
        installed(team()),
        [
            "team-not-ready: ClusterGPUQuota team-vision is not Ready: was never counted: every GPU pod is "
            "denied\n"
            "wait ten seconds; after that see kubectl -n gpu-admission logs deployment/gpu-admission-controller"
        ],
    ),
    not_counted_again=(
        installed(team(("Ready", "False", "vision-cv is not counted"))),
        ["team-not-ready: ClusterGPUQuota team-vision is not Ready: vision-cv is not counted"],
    ),
    of_too_large_ledgers=(
        installed(team(COUNTED, ("TooLarge", "True", "not in force: the GPUQuota of vision-cv"))),
        [
            "team-toolarge: ClusterGPUQuota team-vision is TooLarge: not in force: the GPUQuota of vision-cv\n"
            "shorten spec.hard of the GPUQuotas of its namespaces, or split the team"
        ],
    ),
    exceeded=(
        installed(team(COUNTED, ("Exceeded", "True", "gpus: 70 used of 64"))),
        [
            "team-exceeded: ClusterGPUQuota team-vision is Exceeded: gpus: 70 used of 64\n"
            "see which namespaces hold it: gpu-admission quota; nothing more is admitted"
        ],
    ),
    of_too_many_namespaces=(
        installed(team(COUNTED, ("TooManyNamespaces", "True", "501 namespaces belong to it"))),
        [
            "team-toomanynamespaces: ClusterGPUQuota team-vision is TooManyNamespaces: 501 namespaces belong to "
            "it\n"
            "split the team, or match fewer namespaces"
        ],
    ),
    of_no_namespace=(
        installed(team(COUNTED), names=("other",)),
        [
            "team-without-namespaces: ClusterGPUQuota team-vision matches no namespace, or only those of other "
            "teams\n"
            "correct spec.namespaces: kubectl edit cgpuq team-vision"
        ],
    ),
    of_the_namespaces_of_another_team=(
        installed(
            team(COUNTED), team(COUNTED, name="team-a", namespaces={"names": ["vision-*-*", "visio*"]})
        ),
        [
            "team-without-namespaces: ClusterGPUQuota team-a matches no namespace, or only those of other teams"
        ],
    ),
    a_guarantee_for_a_namespace_that_is_gone=(
        installed(team(COUNTED, guaranteed={"vision-old": {"gpus": 16}, "vision-cv": {"gpus": 8}})),
        [
            "guarantee-of-no-namespace: ClusterGPUQuota team-vision guarantees 16 GPUs to vision-old, which does "
            "not belong to it now: they stay free\n"
            "remove the guarantee: kubectl edit cgpuq team-vision"
        ],
    ),
    a_guarantee_that_idles_while_the_rest_is_used=(
        installed(team(COUNTED, status={**IDLE, "used": {"gpus": "48"}})),
        [
            "guarantee-idle: ClusterGPUQuota team-vision has nothing left but 16 GPUs that are guaranteed and "
            "not used\n"
            "lower spec.guaranteed, if that is not meant: kubectl edit cgpuq team-vision"
        ],
    ),
    a_guarantee_that_idles_beside_what_is_free=(
        installed(team(COUNTED, status={**IDLE, "used": {"gpus": "47"}})),
        [],
    ),
)
def test_teams(objects: JSON, want: list[str], tmp_path: Path) -> None:
    assert_found("teams", objects, want, tmp_path)


@cases(
    ("reason", "remedy"),
    not_counted=(
        "NotCounted",
        "wait ten seconds; after that see kubectl -n gpu-admission logs deployment/gpu-admission-controller",
    ),
    whose_ledgers_cannot_be_read=(
        "Unreadable",
        "when little is created, kubectl -n gpu-admission delete gpuquotaledgers clustergpuquota.team-vision: everything is "
        "then counted again",
    ),
)
def test_what_makes_a_team_ready(reason: str, remedy: str, tmp_path: Path) -> None:
    found = team(("Ready", "False", "requests are denied"))
    found["status"]["conditions"][0]["reason"] = reason
    (finding,) = checked("teams", installed(found), tmp_path).findings

    assert (finding.message, finding.remedy) == ("is not Ready: requests are denied", remedy)


@cases(
    ("granted", "want"),
    more=(
        {"gpus": "120"},
        ("ClusterGPUQuota team-vision: its namespaces are granted 120 of 64 GPUs: first come, first served",),
    ),
    as_much=({"gpus": "64"}, ()),
)
def test_quotas_may_grant_more_than_their_team(granted: JSON, want: tuple[str, ...], tmp_path: Path) -> None:
    objects = installed(team(COUNTED, status={"hard": {"gpus": "64"}, "granted": granted}))

    result = checked("teams", objects, tmp_path)

    assert (result.findings, result.notes) == ((), want)


A100 = {"accelerator": "nvidia-a100-80gb"}


@cases(
    ("teams", "want"),
    no_teams=([], []),
    as_many_as_there_are=([team(hard={"gpus": 16})], []),
    more_in_sum=(
        [team(hard={"gpus": 9}), team(hard={"gpus": 8}, name="team-audio")],
        [
            "teams-exceed-nodes: ClusterGPUQuotas grant 17 GPUs together, and the nodes have 16\n"
            "lower spec.hard of some, unless an autoscaler adds nodes: pods beyond that find no node"
        ],
    ),
    more_of_a_class=(
        [team(hard={"classes": {"nvidia-a100-80gb": 9}})],
        ["teams-exceed-nodes: ClusterGPUQuotas grant 9 nvidia-a100-80gb together, and the nodes have 8"],
    ),
    of_its_family=([team(hard={"classes": {"nvidia-a100": 8}})], []),
    of_a_family_and_its_class=(
        [
            team(hard={"classes": {"nvidia-a100": 4}}),
            team(hard={"classes": {"nvidia-a100-80gb": 5}}, name="b"),
        ],
        ["teams-exceed-nodes: ClusterGPUQuotas grant 9 nvidia-a100 together, and the nodes have 8"],
    ),
    of_a_class_without_nodes=(
        [team(hard={"classes": {"nvidia-t4": 1}})],
        ["teams-exceed-nodes: ClusterGPUQuotas grant 1 nvidia-t4 together, and the nodes have 0"],
    ),
    slices_depend_on_how_cards_are_cut=([team(hard={"resources": {"nvidia.com/mig-1g.10gb": 100}})], []),
)
def test_whether_the_nodes_have_what_teams_are_granted(
    teams: list[JSON], want: list[str], tmp_path: Path
) -> None:
    nodes = [node("a", A100), node("b", {})]
    assert_found("team-capacity", {TEAMS: teams, NODES: nodes}, want, tmp_path)
    assert len(_exceeded_by_metrics(teams, nodes)) == len(want), "the alert fires for the same"


def _exceeded_by_metrics(teams: list[JSON], nodes: list[JSON]) -> list[str]:
    """Return the dimensions of which the metrics of the controller have more granted than there is."""
    records = [decode_team(msgspec.json.encode(each)) for each in teams]
    membership: Any = SimpleNamespace(records=dict(enumerate(records)))
    counter: Any = Counter([{**each, "metadata": {**each["metadata"], "uid": "u"}} for each in nodes], [])
    usage_cache: Any = SimpleNamespace(own_counter=counter)
    no_quotas: Any = SimpleNamespace(all=list)
    informers: Any = SimpleNamespace(
        usage=usage_cache, membership=membership, quotas=no_quotas, slices=slices_of()
    )
    found = granted_and_allocatable(informers)
    return [key for key, (granted, there) in found.items() if granted > there]


@cases(
    ("namespace", "want"),
    of_the_team=("vision-cv", []),
    outside_teams=(
        "other",
        [
            "teams-exceed-nodes: ClusterGPUQuotas and GPUQuotas outside teams grant 10 GPUs together, and the nodes have 8"
        ],
    ),
)
def test_gpu_quotas_outside_teams_are_granted_too(namespace: str, want: list[str], tmp_path: Path) -> None:
    own = quota()
    own["metadata"]["namespace"] = namespace
    objects = {**installed(team(hard={"gpus": 6})), QUOTAS: [own], NODES: [node("a", A100)]}
    assert_found("team-capacity", objects, want, tmp_path)


ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
IN_FORCE: JSON = {f"{ADMISSION}ies/gpu-admission-teams": {"spec": {}}}
UNPROTECTED = [
    (
        "membership-unprotected: ValidatingAdmissionPolicy/gpu-admission-teams must exist, with a binding "
        "that denies: else users who may label a namespace can take it out of its team\n"
        "apply deploy/ of this version again: helm upgrade, or kubectl apply -k deploy/static/strict, with "
        "admissionPolicy.enabled and teams.protectMembership of the chart"
    )
]


@cases(
    ("objects", "action", "want"),
    protected=({**installed(team()), **IN_FORCE}, "Deny", []),
    only_audited=({**installed(team()), **IN_FORCE}, "Audit", UNPROTECTED),
    without_the_policy=(installed(team()), "Deny", UNPROTECTED),
    without_teams=(installed(), "Audit", []),
)
def test_who_changes_the_namespaces_of_a_team(
    objects: JSON, action: str, want: list[str], tmp_path: Path
) -> None:
    binding = {f"{ADMISSION}ybindings/gpu-admission-teams": {"spec": {"validationActions": [action]}}}
    assert_found("team-membership", {**binding, **objects}, want, tmp_path)
