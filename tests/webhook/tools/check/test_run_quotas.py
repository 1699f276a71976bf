"""`gpu-admission check` with a GPUQuota: all documents of one run count together, in their order."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

from policies.quota.amounts import Hard
from policies.quota.ledger.decide import VerdictReason
from policies.quota.ledger.team import Team, TeamState
from policies.quota.quota_request import quota_request_for_pod
from policies.quota.team_spec import TeamNamespaces, TeamSpec
from tests.builders import JSON, gpu_container, manifest, quota_ledger, uid, view
from tests.cases import cases
from tests.policies.quota.ledger.creations import amounts
from tests.webhook.commands.checking import check, configuration, document
from webhook.configuration.loader import load_objects
from webhook.quota.team_documents import Member, Members, TeamRecord, TeamStatus
from webhook.tools.check.run_quotas import RunQuota, run_teams


def made(api_version: str, kind: str, name: str, spec: JSON, **metadata: Any) -> JSON:
    return manifest(api_version, kind, name, spec, **{"namespace": "ml", **metadata})


def quota(**hard: Any) -> JSON:
    return made("gpu-admission.dev/v1alpha1", "GPUQuota", "default", {"hard": hard})


def template(gpus: int, **spec: Any) -> JSON:
    return {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [gpu_container(str(gpus))], **spec}}


def deployment(name: str, replicas: int | None, gpus: int = 1, **tweaks: Any) -> JSON:
    written = {} if replicas is None else {"replicas": replicas}
    spec = {**written, "selector": {"matchLabels": {"app": "a"}}, "strategy": {"type": "Recreate"}}
    return made("apps/v1", "Deployment", name, {**spec, "template": template(gpus)}, **tweaks)


def pod(name: str, gpus: int, **metadata: Any) -> JSON:
    return made("v1", "Pod", name, template(gpus)["spec"], **metadata)


def gang(name: str, pods: int) -> JSON:
    tasks = [{"replicas": pods, "template": template(2)}]
    return made("batch.volcano.sh/v1alpha1", "Job", name, {"minAvailable": pods, "tasks": tasks})


def hpa(target: str, most: int) -> JSON:
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": target}
    spec = {"maxReplicas": most, "scaleTargetRef": reference}
    return made("autoscaling/v2", "HorizontalPodAutoscaler", target, spec)


def scaled_object(target: str, **spec: Any) -> JSON:
    return made("keda.sh/v1alpha1", "ScaledObject", target, {"scaleTargetRef": {"name": target}, **spec})


OWNED = {"ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "1", "controller": True}]}
SUSPENDED = "spec.parallelism: needs 9 GPUs, which can never fit: the GPUQuota of ml grants 8 in all; 8 of 9 pods will start"
SURGE = (
    "spec.strategy: an update needs 2 GPUs for a pod beside the others, and will not finish: "
    "ml will have 1 of 8 free"
)


@cases(
    ("documents", "want"),
    what_stands_before_counts_as_used=([quota(gpus="8"), deployment("a", 6), deployment("b", 4)],
        {"b": "spec.replicas: needs 4 GPUs; ml has 2 of 8 free: 2 of 4 pods will start"}),
    wherever_the_quota_stands=([deployment("a", 6), deployment("b", 4), quota(gpus="8")],
        {"b": "spec.replicas: needs 4 GPUs; ml has 2 of 8 free: 2 of 4 pods will start"}),
    of_one_object_twice_the_later_one_counts=([quota(gpus="8"), deployment("a", 6), deployment("a", 8)], {}),
    each_namespace_by_itself=(
        [quota(gpus="8"), deployment("a", 8), deployment("elsewhere", 8, namespace="other")],
        {}),
    what_is_denied_holds_nothing=(
        [quota(gpus="8"), pod("p", 6), pod("q", 3), deployment("b", 3), deployment("c", 1)], {
            "q": "exceeded quota: ml/default, requested 3 GPUs, 6 of 8 used",
            "b": "spec.replicas: needs 3 GPUs; ml has 2 of 8 free: 2 of 3 pods will start",
            "c": "spec.template: needs 1 GPU; ml has 0 of 8 free: 0 of 1 pods will start",
        }),
    what_can_never_start_holds_nothing=(
        [quota(gpus="8"), deployment("a", 2, 9), pod("p", 9), gang("g", 5), pod("q", 8)],
        {
            "a": "spec.template: a pod needs 9 GPUs, which can never fit: the GPUQuota of ml grants 8 in all",
            "p": "exceeded quota: ml/default, 9 GPUs can never fit: the quota grants 8",
            "g": "spec.tasks[0].template: 5 pods that must run together need 10 GPUs, which can never fit: "
            "the GPUQuota of ml grants 8 in all",
        }),
    a_dump_of_a_workload_with_its_pods=(
        [quota(gpus="8"), deployment("a", 8), pod("a-1", 1, **OWNED), pod("a-2", 1, **OWNED)],
        {}),
    an_autoscaler_before_its_target=([quota(gpus="8"), hpa("a", 9), deployment("a", 2)], {
            "HPA": "spec.maxReplicas: may grow to 9 pods and then needs 9 GPUs, which can never fit: "
            "the GPUQuota of ml grants 8 in all; 8 of 9 pods will start"
        }),
    what_others_in_the_run_ask_is_not_free_for_an_autoscaler=(
        [quota(gpus="8"), deployment("a", 2, 2), deployment("b", 2), scaled_object("a", maxReplicaCount=4)],
        {
            "ScaledObject": "spec.maxReplicaCount: may grow to 4 pods and then needs 8 GPUs; ml has 6 of 8 free: "
            "3 of 4 pods will start"
        }),
    an_autoscaler_of_what_is_not_among_the_documents=([quota(gpus="8"), hpa("unknown", 100)], {}),
    an_update_that_had_room_when_it_was_written=([quota(gpus="8"), made("apps/v1", "Deployment", "a", {
            "replicas": 3, "selector": {"matchLabels": {"app": "a"}}, "template": template(2)}), pod("p", 1)],
        {}),
    an_update_that_has_none=([quota(gpus="8"), pod("p", 1), made("apps/v1", "Deployment", "a", {
            "replicas": 3, "selector": {"matchLabels": {"app": "a"}}, "template": template(2)})], {"a": SURGE}),
    suspended=(
        [quota(gpus="8"), made("batch/v1", "Job", "a", {"parallelism": 9, "suspend": True, "template": template(1)})],
        {"a": SUSPENDED}),
    suspended_jobs_do_not_count=(
        [quota(gpus="8"), deployment("b", 8),
            made("batch/v1", "Job", "a", {"parallelism": 8, "suspend": True, "template": template(1)})], {}),
    a_quota_that_is_rejected_limits_nothing=([quota(gpus="x"), deployment("a", 9)], {}),
    of_a_placeholder_nothing_is_certain=([quota(gpus="${GPUS}"), deployment("a", 9)],
        {"default": 'spec.hard.gpus: must be an amount such as 16, "0.5" or "2/7", not "${GPUS}"'}),
    nor_of_one_in_a_key=([quota(classes={"$CLASS": "8"}), deployment("a", 9)],
        {"default": "spec.hard.classes.$CLASS: must be a GPU class or family"}),
)  # fmt: skip
def test_documents_count_together(documents: list[JSON], want: dict[str, str]) -> None:
    assert found(documents) == want


def found(documents: list[JSON], *arguments: str) -> dict[str, str]:
    """Return what the quota says of each object, by its name, of an autoscaler by its kind; each is a warning."""
    said: dict[str, str] = {}
    for each in document(*arguments, stdin=yaml.safe_dump_all(documents))["objects"]:
        evaluated = [finding for found_in in (each, *each["pods"]) for finding in found_in["findings"]]
        for finding in evaluated:
            if finding["rule"] == "gpu-quota":
                key = {"HorizontalPodAutoscaler": "HPA", "ScaledObject": "ScaledObject"}.get(
                    each["kind"], each["name"]
                )
                assert finding["outcome"] == "warned"
                said[key] = ": ".join(filter(None, (finding["path"], finding["message"])))
    return said


def test_a_quota_of_the_configuration_counts_as_well(tmp_path: Any) -> None:
    (tmp_path / "quota.yaml").write_text(json.dumps(quota(gpus="4")))

    assert found([deployment("a", 5)], "--config", str(tmp_path)) == {
        "a": "spec.replicas: needs 5 GPUs, which can never fit: the GPUQuota of ml grants 4 in all; 4 of 5 pods will start"
    }
    assert found([quota(gpus="5"), deployment("a", 5)], "--config", str(tmp_path)) == {}


def budget(namespace: str, labels: Any) -> JSON:
    spec = {"selector": {"matchLabels": labels}}
    return made("policy/v1", "PodDisruptionBudget", "a", spec, namespace=namespace)


@cases(
    ("documents", "is_warned"),
    none=([], True),
    of_its_pods=([budget("ml", {"app": "a"})], False),
    of_other_pods=([budget("ml", {"app": "b"})], True),
    of_another_namespace=([budget("web", {"app": "a"})], True),
    one_that_cannot_be_read=([budget("ml", "a")], True),
)
def test_a_budget_among_the_documents(documents: list[JSON], is_warned: bool, tmp_path: Any) -> None:
    rules = {"rules": {"disruption": {"mode": "enforce"}}}
    policy = manifest("gpu-admission.dev/v1alpha1", "GPUPolicy", "default", rules)
    (tmp_path / "policy.yaml").write_text(json.dumps(policy))
    written = yaml.safe_dump_all([deployment("a", 2), *documents])

    objects = document("--config", str(tmp_path), stdin=written)["objects"]

    found_in = [finding["reason"] for each in objects for finding in each["findings"]]
    assert [each for each in found_in if each != "SelectsNoPod"] == ["NoDisruptionBudget"] * is_warned


@cases(
    ("hard", "want"),
    no_amount=({"gpus": "x"}, 'spec.hard.gpus: must be an amount such as 16, "0.5" or "2/7", not "x"'),
    a_number_that_yaml_reads=(
        {"gpus": 8.5},
        "spec.hard.gpus: must be a whole number or text; YAML reads 8.5 as a number: quote it",
    ),
    no_class=(
        {"classes": {"nvidia-a1000": "8"}},
        "spec.hard.classes.nvidia-a1000: must be a GPU class or family; did you mean nvidia-a100?",
    ),
    no_field=({"gpu": 1}, "spec.hard.gpu: unknown field; did you mean gpus?"),
)
def test_what_the_api_server_rejects_is_refused(hard: JSON, want: str) -> None:
    run = check("-f", "-", stdin=json.dumps(quota(**hard)))

    assert run.exit_code == 1
    assert " ".join(run.stdout.split()) == (
        f"denied stdin:1 GPUQuota ml/default stdin:1: {want} [configuration] "
        "the API server rejects the GPUQuota: by its schema, or because the webhook denies it "
        "1 object: 1 denied, 0 would change, 0 ok"
    )


def test_a_class_that_a_document_defines_is_not_refused() -> None:
    own = manifest(
        "gpu-admission.dev/v1alpha1", "GPUClass", "lab-card", {"family": "lab-card", "memoryGiB": 8}
    )

    of_quota = (
        [quota(classes={"lab-card": "8"}), {**own, "kind": "GPUPolicy"}],
        [quota(classes={"lab-card": "8"}), own],
    )

    assert [check("-f", "-", stdin=yaml.safe_dump_all(each)).exit_code for each in of_quota] == [1, 0]


def team(name: str, **spec: Any) -> JSON:
    return manifest("gpu-admission.dev/v1alpha1", "ClusterGPUQuota", name, {"hard": {"gpus": 8}, **spec})


@cases(
    ("spec", "verdict", "want"),
    valid=({"namespaces": {"names": ["ml"]}}, "ok", []),
    invalid=(
        {"namespaces": {}, "hard": {"classes": {"nvidia-t5": 1}}},
        "denied",
        [
            "spec.namespaces: must have names, selector or both",
            "spec.hard.classes.nvidia-t5: must be a GPU class or family; did you mean nvidia-t4?",
        ],
    ),
    of_no_kind=({}, "denied", ["spec.namespaces: Required value"]),
    mistyped=(
        {"namespaces": {"names": ["ml"]}, "guarantee": {"ml": {"gpus": 1}}},
        "denied",
        ["spec.guarantee: unknown field; did you mean guaranteed?"],
    ),
    sharing=(
        {"namespaces": {"names": ["web"]}},
        "warned",
        [
            "spec.namespaces.names[0]: overlaps web* of ClusterGPUQuota other: a namespace that both match belongs to team"
        ],
    ),
)
def test_a_team_is_read_as_the_webhook_does(spec: JSON, verdict: str, want: list[str]) -> None:
    written = yaml.safe_dump_all([team("team", **spec), team("other", namespaces={"names": ["web*"]})])

    objects = document(stdin=written)["objects"]

    (mine,) = (each for each in objects if each["name"] == "team")
    assert check("-f", "-", stdin=written).stdout.count("  ClusterGPUQuota other\n") == 1, (
        "it is in no namespace"
    )
    assert [f"{finding['path']}: {finding['message']}" for finding in mine["findings"]] == want
    assert mine["verdict"] == verdict


@cases(
    ("has_controller", "want"),
    a_controller_starts_them=(True, VerdictReason.OTHERS_WAIT),
    none_leads=(False, VerdictReason.RESERVED),
)
def test_pods_of_a_team_that_wait_go_first_only_while_a_controller_leads(
    has_controller: bool, want: VerdictReason
) -> None:
    built_in, hard = load_objects([]), {"gpus": Fraction(8)}
    state = TeamState(
        team=Team(name="vision", uid="t", generation=1, hard=hard),
        taken_by_others={"gpus": Fraction(0)},
        guaranteed_to_others={"gpus": Fraction(0)},
        taken={},
        waiting=1,
        scarce=frozenset({"gpus"}),
    )
    ledger = quota_ledger(hard=hard, team_state=state).using({"gpus": Fraction(0)})
    quota = RunQuota("ml", ledger, built_in, {}, has_controller=has_controller)

    outcome = quota.reserve(quota_request_for_pod(uid("review"), view(pod("a", 1)), None, built_in))

    assert outcome.verdict is not None
    assert outcome.verdict.reason is want


def config_map(value: str, **metadata: Any) -> JSON:
    return {**made("v1", "ConfigMap", "shown", {}, **metadata), "data": {"NVIDIA_VISIBLE_DEVICES": value}}


READING = made(
    "v1", "Pod", "a", {"containers": [gpu_container(envFrom=[{"configMapRef": {"name": "shown"}}])]}
)


@cases(
    ("documents", "want"),
    beside_the_pod=(
        [READING, config_map("all")],
        ['must be "void" or unset beside a GPU request: it replaces'],
    ),
    which_hides=([config_map("none"), READING], []),
    of_another_namespace=(
        [READING, config_map("none", namespace="other")],
        ["can replace the GPUs that the"],
    ),
    with_a_placeholder=([READING, config_map("${GPUS}")], ["can replace the GPUs that the"]),
    not_text=([READING, {**config_map(""), "data": {"A": 1}}], ["can replace the GPUs that the"]),
)
def test_what_a_config_map_among_the_documents_holds(
    tmp_path: Path, documents: list[JSON], want: list[str]
) -> None:
    config = configuration(tmp_path, "{rules: {gpu-isolation: {mode: enforce}}}")
    objects = document("--config", config, stdin=yaml.safe_dump_all(documents))["objects"]
    said = [finding["message"] for each in objects for made in each["pods"] for finding in made["findings"]]

    assert len(said) == len(want)
    assert all(part in message for part, message in zip(want, said, strict=True))


SPEC = TeamSpec(
    namespaces=TeamNamespaces(names=("lab-*",)), hard=Hard(gpus=40), guaranteed={"lab-prod": Hard(gpus=2)}
)


@cases(
    ("used", "idle", "requested", "free"),
    nothing=(32, 0, 0, 8),
    beyond_a_guarantee_that_is_in_use=(32, 0, 5, 3),
    beyond_a_guarantee_that_is_idle=(30, 2, 5, 5),
    within_a_guarantee_that_is_idle=(30, 2, 2, 8),
)
def test_a_namespace_that_the_status_does_not_name(used: int, idle: int, requested: int, free: int) -> None:
    """Ten others hold 3 GPUs each, and the namespace with a guarantee of 2 the rest."""
    status = TeamStatus(
        used=amounts(gpus=used),
        guaranteed_idle=amounts(gpus=idle),
        namespaces=Members(
            count=11, largest=tuple(Member(name=f"lab-{each}", used=amounts(gpus=3)) for each in range(10))
        ),
    )
    record = TeamRecord(
        name="lab", uid="u", version="1", spec=SPEC, namespaces=SPEC.namespaces, status=status
    )
    team = run_teams(lambda: [record], {}, lambda _namespace: ())("lab-prod")
    assert team is not None
    other = team.ledger("lab-0", None)
    assert other is not None
    assert other.team_state is not None
    if requested:
        team.count("lab-prod", amounts(gpus=requested))
    assert team.team_state("lab-0", other.team_state).free("gpus", amounts(gpus=3)["gpus"]) == free
