"""`gpu-admission check --kubeconfig`: what is read of a cluster, and what is said of what may not be read."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, GROUP, POLICIES, QUOTA, cluster, policy
from tests.webhook.commands.checking import DEPLOYMENT, GOOD, stream
from webhook.commands import main

IN_ML = GOOD.replace("{name: train}", "{name: train, namespace: ml}")
TWO = IN_ML.replace("gpu: 1", "gpu: 2")
NODE = {"metadata": {"name": "a", "uid": "u", "labels": {"accelerator": "nvidia-t4"}}}


def quota(used: str | None, hard: str = "4", **state: Any) -> JSON:
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "x",
        "message": "",
        "lastTransitionTime": "",
        **state,
    }
    found = {"hard": {"gpus": hard}, "conditions": [ready], **({"used": {"gpus": used}} if used else {})}
    metadata = {"name": "default", "namespace": "ml", "uid": "q"}
    return {"metadata": metadata, "spec": {"hard": {"gpus": hard}}, "status": found}


def of_team(stored: JSON, free: str) -> JSON:
    """Return the GPUQuota in a team of 64 GPUs, of which the namespace can have so many."""
    stored["status"]["team"] = {"name": "team-vision", "hard": {"gpus": "64"}, "free": {"gpus": free}}
    return stored


LARGER_QUOTA = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: ml}
spec: {hard: {gpus: 32}}
"""


def check(folder: Path, objects: dict[str, Any], *arguments: str, stdin: str) -> Result:
    with ApiServer(folder, answering(objects)) as server:
        command = ["check", "-f", "-", "--kubeconfig", str(server.kubeconfig()), *arguments]
        return CliRunner(env={"COLUMNS": None}).invoke(main, command, input=stdin)


def evaluated(folder: Path, objects: dict[str, Any], stdin: str) -> tuple[list[str], list[str], list[str]]:
    """Return the verdicts, the findings as outcome and reason, and the notes."""
    shown = json.loads(check(folder, objects, "-o", "json", stdin=stdin).stdout)
    findings = [
        f"{each['outcome']} {each['reason']}"
        for found in shown["objects"]
        for place in (found, *found["pods"])
        for each in place["findings"]
    ]
    return [each["verdict"] for each in shown["objects"]], findings, shown["notes"]


MAX_ONE = {"gpu-requests": {"maxPerContainer": 1}}
LABELLED = {"namespaces": ["*"], "namespaceSelector": {"matchLabels": {"team": "a"}}}
OF_A = policy(LABELLED, **MAX_ONE)
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: ml, labels: {team: b}}\n"
CLASS = {
    "metadata": {"name": "own-card", "uid": "2"},
    "spec": {"memoryGiB": 8, "family": "own", "nodeLabels": [{"key": "accelerator", "values": ["own"]}]},
}
PINNED = IN_ML + "  nodeSelector: {accelerator: own}\n"
ANNOTATED = IN_ML.replace(
    "namespace: ml}", "namespace: ml, annotations: {gpu-admission.dev/gpu-class: own-card}}"
)


@cases(
    ("objects", "text", "verdicts", "findings"),
    by_its_policy=({POLICIES: [policy({"namespaces": ["ml"]}, **MAX_ONE)]}, TWO,
        ["denied"], ["denied ExceedsMaxPerContainer"]),
    by_the_labels_of_the_namespace=({POLICIES: [OF_A]}, TWO,
        ["denied"], ["denied ExceedsMaxPerContainer"]),
    by_labels_that_the_manifests_change=({POLICIES: [OF_A]}, stream(NAMESPACE, TWO),
        ["skipped", "changed"], []),
    by_its_classes=({f"{GROUP}/gpuclasses": [CLASS]}, ANNOTATED,
        ["changed"], ["warned NoNode"]),
    by_its_nodes=({f"{GROUP}/gpuclasses": [CLASS], "/api/v1/nodes": [NODE]}, PINNED,
        ["changed"], ["warned NoNode"]),
    by_what_is_held_of_its_quota=({QUOTA: quota("3")}, TWO,
        ["denied"], ["denied QuotaExceeded"]),
    and_what_the_run_adds=({QUOTA: quota("2")}, stream(IN_ML, TWO.replace("name: train", "name: b")),
        ["changed", "denied"], ["denied QuotaExceeded"]),
    not_for_a_pod_that_is_stored=(
        {QUOTA: quota("3"), "/api/v1/namespaces/ml/pods/train": {"metadata": {"name": "train"}}}, TWO,
        ["changed"], []),
    by_what_its_team_has_left=({QUOTA: of_team(quota("0"), free="1")}, TWO,
        ["denied"], ["denied QuotaExceeded"]),
    by_what_its_team_has_left_under_a_quota_of_the_run=({QUOTA: of_team(quota("0"), free="1")}, stream(LARGER_QUOTA, TWO),
        ["ok", "denied"], ["denied QuotaExceeded"]),
    where_its_team_has_enough=({QUOTA: of_team(quota("0"), free="2")}, TWO,
        ["changed"], []),
    by_a_quota_that_is_only_full_of_others=({QUOTA: quota("2")}, TWO,
        ["changed"], []),
)  # fmt: skip
def test_manifests_are_evaluated_by_the_cluster(
    tmp_path: Path, objects: dict[str, Any], text: str, verdicts: list[str], findings: list[str]
) -> None:
    assert evaluated(tmp_path, {**cluster(), **objects}, text) == (verdicts, findings, [])


TEAMS = f"{GROUP}/clustergpuquotas"
NAMED, LABELS = {"names": ["vision-*"]}, {"selector": {"matchLabels": {"team": "a"}}}


def team(
    used: int | None,
    *largest: tuple[str, int],
    hard: int = 64,
    idle: int = 0,
    match: JSON = NAMED,
    **spec: Any,
) -> JSON:
    """Return a ClusterGPUQuota whose status says what is used, and by which namespaces."""
    members = [{"name": name, "used": {"gpus": str(gpus)}} for name, gpus in largest]
    status: JSON = {"guaranteedIdle": {"gpus": str(idle)}, "namespaces": {"count": 9, "largest": members}}
    if used is not None:
        status["used"] = {"gpus": str(used)}
    return {
        "metadata": {"name": "team-vision", "uid": "t", "resourceVersion": "1", "generation": 1},
        "spec": {"namespaces": match, "hard": {"gpus": hard}, **spec},
        "status": status,
    }


def pods(*wanted: tuple[str, int]) -> str:
    """Return a pod of so many GPUs in each namespace."""
    return stream(
        *(
            GOOD.replace("{name: train}", f"{{name: {where}-{gpus}, namespace: {where}}}").replace(
                "gpu: 1", f"gpu: {gpus}"
            )
            for where, gpus in wanted
        )
    )


def stored_quota(namespace: str, used: int, free: int) -> JSON:
    """Return the GPUQuota of 32 GPUs in a namespace of a team of 64, of which it can have so many."""
    found = of_team(quota(str(used), hard="32"), free=str(free))
    return {**found, "metadata": {**found["metadata"], "namespace": namespace}}


CV, NLP, PROD = "vision-cv", "vision-nlp", "vision-prod"
OF_CV = f"{GROUP}/namespaces/{CV}/gpuquotas/default"
GUARANTEED: JSON = {"guaranteed": {PROD: {"gpus": 8}}}
YES, NO = "changed", "denied"


@cases(
    ("objects", "wanted", "want"),
    it_fits=({TEAMS: [team(60, (PROD, 40))]}, [(CV, 4)], [YES]),
    it_does_not_fit=({TEAMS: [team(61, (PROD, 40))]}, [(CV, 4)], [NO]),
    of_a_namespace_outside=({TEAMS: [team(64)]}, [("speech", 4)], [YES]),
    by_its_label=({TEAMS: [team(64, match=LABELS)]}, [("ml", 4)], [NO]),
    beside_what_others_are_guaranteed=({TEAMS: [team(52, idle=8, **GUARANTEED)]}, [(CV, 4), (CV, 1)], [YES, NO]),
    within_what_it_is_guaranteed=({TEAMS: [team(56, idle=8, **GUARANTEED)]}, [(PROD, 8), (CV, 1)], [YES, NO]),
    beyond_what_it_is_guaranteed=({TEAMS: [team(58, (PROD, 2), idle=6, **GUARANTEED)]}, [(PROD, 6), (PROD, 1)], [YES, NO]),
    what_the_others_of_the_run_request_counts=({TEAMS: [team(58)]}, [(CV, 4), (NLP, 2), (PROD, 1)], [YES, YES, NO]),
    not_what_lies_within_a_guarantee=({TEAMS: [team(54, idle=8, **GUARANTEED)]}, [(PROD, 8), (CV, 2)], [YES, YES]),
    with_a_quota_of_its_own=(
        {TEAMS: [team(58, (CV, 8))], OF_CV: stored_quota(CV, 8, 6)}, [(NLP, 4), (CV, 2), (CV, 1)],
        [YES, YES, NO],
    ),
    that_never_counted=({TEAMS: [team(None)]}, [(CV, 65), (NLP, 4)], [YES, YES]),
    that_may_not_be_read=({TEAMS: FORBIDDEN}, [(CV, 65)], [YES]),
    that_may_not_be_read_beside_quotas=({TEAMS: FORBIDDEN, OF_CV: stored_quota(CV, 8, 6)}, [(CV, 4), (NLP, 4)], [YES, YES]),
    that_is_not_valid=({TEAMS: [team(64, hard=-1)]}, [(CV, 4)], [YES]),
)  # fmt: skip
def test_namespaces_are_evaluated_by_their_team(
    tmp_path: Path, objects: dict[str, Any], wanted: list[tuple[str, int]], want: list[str]
) -> None:
    found, findings, _ = evaluated(tmp_path, {**cluster(), **objects}, pods(*wanted))
    assert found == want
    assert findings.count("denied QuotaExceeded") == want.count(NO)


WRITTEN_TEAM = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: ClusterGPUQuota
metadata: {name: team-vision}
spec: {namespaces: {names: ["vision-*"]}, hard: {gpus: 8}}
"""


@cases(
    ("objects", "wanted", "want"),
    beside_what_the_stored_one_has_used=({TEAMS: [team(6)]}, [(CV, 2), (NLP, 1)], [YES, NO]),
    that_is_new=({TEAMS: []}, [(CV, 6), (NLP, 2)], [YES, YES]),
    that_is_new_and_full=({TEAMS: []}, [(CV, 6), (NLP, 3)], [YES, "warned QuotaExceeded"]),
    over_a_quota_of_the_namespace=(
        {TEAMS: [team(6)], OF_CV: stored_quota(CV, 4, 6)}, [(CV, 2), (CV, 1)], [YES, NO]),
)  # fmt: skip
def test_a_team_among_the_manifests(
    tmp_path: Path, objects: dict[str, Any], wanted: list[tuple[str, int]], want: list[str]
) -> None:
    verdicts, findings, _ = evaluated(tmp_path, {**cluster(), **objects}, stream(WRITTEN_TEAM, pods(*wanted)))
    assert verdicts[1:] == [each.partition(" ")[0].replace("warned", YES) for each in want]
    assert [each for each in findings if each.startswith("warned")] == [each for each in want if " " in each]


def test_the_namespaces_of_a_team_without_a_cluster() -> None:
    command = ["check", "-f", "-", "-o", "json"]
    text = stream(WRITTEN_TEAM, pods((CV, 6), (NLP, 2), (PROD, 1), ("speech", 9)))
    shown = json.loads(CliRunner(env={"COLUMNS": None}).invoke(main, command, input=text).stdout)

    found = {
        each["name"]: [one["message"] for one in each["pods"][0]["findings"]] for each in shown["objects"][1:]
    }
    said = "exceeded quota: ClusterGPUQuota team-vision, requested 1 GPU, 8 of 8 used; largest: vision-cv 6"
    assert found == {"vision-cv-6": [], "vision-nlp-2": [], "vision-prod-1": [said], "speech-9": []}


DRA = "/apis/resource.k8s.io/v1"
CLAIMS = {
    "/apis/resource.k8s.io": {"versions": [{"version": "v1"}]},
    f"{DRA}/namespaces/ml/resourceclaims": [],
    f"{DRA}/namespaces/ml/resourceclaimtemplates": [],
}
SPREAD = policy({"namespaces": ["ml"]}, disruption={"mode": "enforce"})
CLAIMING = IN_ML + "  resourceClaims: [{name: gpu, resourceClaimName: mine}]\n"


@cases(
    ("objects", "text", "verdicts", "notes"),
    a_team_that_was_never_counted=({TEAMS: [team(None)]}, pods((CV, 1), (CV, 2)), ["changed", "changed"],
        ["GPU pods of namespace vision-cv are denied until ClusterGPUQuota team-vision is counted: "
         "kubectl get cgpuq team-vision says whether it is"]),
    teams=({TEAMS: FORBIDDEN}, IN_ML, ["changed"],
        ["you may not list clustergpuquotas.gpu-admission.dev: what depends on it is not evaluated"]),
    teams_that_the_status_of_the_quota_says=({TEAMS: FORBIDDEN, QUOTA: of_team(quota("0"), free="2")}, IN_ML, ["changed"], []),
    nodes=({"/api/v1/nodes": FORBIDDEN}, IN_ML, ["changed"],
        ["you may not list nodes: what depends on it is not evaluated"]),
    a_quota=({QUOTA: FORBIDDEN}, IN_ML, ["changed"],
        ["you may not get gpuquotas.gpu-admission.dev -n ml: what depends on it is not evaluated"]),
    what_counts_already=({QUOTA: quota("0"), "/api/v1/namespaces/ml/pods/train": FORBIDDEN}, IN_ML, ["changed"],
        ["you may not get pods -n ml: what depends on it is not evaluated"]),
    budgets_of_pods=({POLICIES: [SPREAD], "/apis/policy/v1/namespaces/ml/poddisruptionbudgets": FORBIDDEN},
        DEPLOYMENT.replace("COUNT", "1"), ["changed"],
        ["you may not list poddisruptionbudgets.policy -n ml: what depends on it is not evaluated"]),
    labels=({POLICIES: [OF_A], "/api/v1/namespaces/ml": FORBIDDEN}, stream(TWO, GOOD.replace("gpu: 1", "x: 1")),
        ["unknown", "unknown"],
        ["not evaluated: what needs 2 rights that you lack; --verbose lists them"]),
    device_classes=({**CLAIMS, f"{DRA}/deviceclasses": FORBIDDEN}, CLAIMING, ["changed"],
        ["you may not list deviceclasses.resource.k8s.io: what depends on it is not evaluated"]),
    labels_that_no_policy_asks_for=({"/api/v1/namespaces/ml": FORBIDDEN}, IN_ML, ["changed"], []),
    a_namespace_that_is_to_come=({POLICIES: [OF_A], "/api/v1/namespaces/ml": None}, TWO, ["changed"],
        ["namespace ml does not exist yet: its labels are those of the manifests"]),
    usage_that_nobody_counted=({QUOTA: quota(None, status="False", message="is new")}, IN_ML, ["changed"],
        ["GPU pods of namespace ml are denied until its GPUQuota is counted: gpu-admission quota -n ml says why it is not"]),
    without_an_installation=({POLICIES: None}, TWO, ["changed"],
        ["gpu-admission is not installed in this cluster: evaluated by the built-in defaults"]),
)  # fmt: skip
def test_what_is_not_known_is_said(
    tmp_path: Path, objects: dict[str, Any], text: str, verdicts: list[str], notes: list[str]
) -> None:
    given = {**cluster(), **objects}
    given |= {"/api/v1/namespaces/default": FORBIDDEN}

    found, _, said = evaluated(tmp_path, given, text)

    assert (found, said) == (verdicts, notes)
    printed = check(tmp_path, given, stdin=text)
    assert [f"note: {note}" in printed.stderr for note in notes] == [True] * len(notes)


def test_an_object_whose_policy_is_not_known_is_no_pass(tmp_path: Path) -> None:
    given = {**cluster(), POLICIES: [OF_A], "/api/v1/namespaces/ml": FORBIDDEN}

    result = check(tmp_path, given, stdin=TWO)

    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        "unknown  stdin:1  Pod ml/train",
        "         stdin:1: the policy of namespace ml depends on its labels: you may not get namespaces/ml",
        "",
        "1 object: 0 denied, 0 would change, 0 ok, 1 unknown",
    ]


def test_documents_of_a_directory_beside_the_facts_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    written = json.dumps({"apiVersion": "gpu-admission.dev/v1alpha1", "kind": "GPUPolicy", **OF_A})
    (tmp_path / "config" / "p.json").write_text(written.replace(', "uid": "1"', ""))

    result = check(
        tmp_path, {**cluster(), POLICIES: FORBIDDEN}, "--config", str(tmp_path / "config"), stdin=TWO
    )

    assert result.exit_code == 1
    assert "must be at most 1 per container by policy" in result.stdout


def test_the_namespace_of_the_context(tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering(cluster())) as server:
        kubeconfig = server.kubeconfig()
        document = json.loads(kubeconfig.read_text())
        document["contexts"][0]["context"]["namespace"] = "of-context"
        kubeconfig.write_text(json.dumps(document))
        command = ["check", "-f", "-", "--kubeconfig", str(kubeconfig), "-o", "json"]
        shown = json.loads(CliRunner(env={"COLUMNS": None}).invoke(main, command, input=GOOD).stdout)
    assert shown["objects"][0]["namespace"] == "of-context"


def test_fixes_are_tried_by_the_cluster(tmp_path: Path) -> None:
    """A second check asks the API server nothing again, and what may not be read is no reason to end."""
    given = {**cluster(), "/api/v1/nodes": FORBIDDEN, POLICIES: [policy({"namespaces": ["ml"]}, **MAX_ONE)]}
    (tmp_path / "pod.yaml").write_text(TWO)
    with ApiServer(tmp_path, answering(given)) as server:
        named = ["--kubeconfig", str(server.kubeconfig())]
        command = ["check", str(tmp_path / "pod.yaml"), "--fix", "--yes", *named]
        result = CliRunner().invoke(main, command)
        paths = [request.path for request in server.requests]

    assert result.exit_code == 0
    assert (tmp_path / "pod.yaml").read_text() == IN_ML
    assert "note: you may not list nodes: what depends on it is not evaluated" in result.stderr
    assert len(set(paths)) >= len(paths) - 1  # groups that are not served are asked for twice


def test_a_full_quota_does_not_keep_a_pod_from_being_fixed(tmp_path: Path) -> None:
    """The quota answers once nothing else denies the pod. That is no fault of the edit."""
    written = IN_ML.replace("nvidia.com", "amd.com")
    (tmp_path / "pod.yaml").write_text(written.replace("gpu: 1}", "gpu: 500m}"))
    with ApiServer(tmp_path, answering({**cluster(), QUOTA: quota("4")})) as server:
        named = ["--kubeconfig", str(server.kubeconfig())]
        result = CliRunner().invoke(main, ["check", str(tmp_path / "pod.yaml"), "--fix", "--yes", *named])

    assert (result.exit_code, (tmp_path / "pod.yaml").read_text()) == (1, written)
    assert "1 finding can be fixed in 1 file, 1 denial left" in result.stderr


def test_device_classes_among_the_manifests(tmp_path: Path) -> None:
    expression = 'device.driver == "gpu.nvidia.com"'
    document = {"selectors": [{"cel": {"expression": expression}}]}
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "own"}}
    assert evaluated(tmp_path, cluster(), json.dumps({**device_class, "spec": document}))[0] == ["skipped"]
