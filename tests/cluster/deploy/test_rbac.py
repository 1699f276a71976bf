"""Both commands do all their work under the service accounts of deploy/, and those may do nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from tests.builders import JSON, deployment, gpu_container, manifest
from tests.cases import cases
from tests.cluster.applying import apply
from tests.cluster.controllers import eventually
from tests.cluster.deploy.installed import CONTROLLER, WEBHOOK, Installed
from tests.cluster.workload_kinds import install
from tests.controlplane import ControlPlane, accepted, helm
from tests.deploy.manifests import CHART, IMAGE, NAMESPACE, RELEASE
from webhook.commands.doctor import doctor
from webhook.configuration.documents import Document

TEAM = "paid-for"
QUOTA = f"/apis/gpu-admission.dev/v1alpha1/namespaces/{TEAM}/gpuquotas"
PODS = f"/api/v1/namespaces/{TEAM}/pods"
LEDGERS = "gpuquotaledgers"
READS = {"get", "list", "watch"}
REVIEWS = "/apis/authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Installed]:
    installed = Installed(plane, host=60)
    installed.apply()
    installed.start()
    plane.kubectl("create", "namespace", TEAM)
    plane.kubectl("wait", "--for=create", "--timeout=90s", "serviceaccount/default", "-n", TEAM)
    yield installed
    installed.stop()


def trainer(name: str) -> JSON:
    return manifest("v1", "Pod", name, {"containers": [gpu_container()]})


def test_they_work(plane: ControlPlane, running: Installed, audit_log: Path) -> None:
    client = plane.client()
    accepted(client.post(QUOTA, Document("GPUQuota", "default", {"hard": {"gpus": "2"}}).data))
    assert eventually(lambda: used(plane) == "0"), plane.logs(CONTROLLER)

    made = [accepted(client.post(PODS, trainer(f"train-{n}"))) for n in (1, 2)]
    assert any(t["key"] == "nvidia.com/gpu" for t in made[0]["spec"]["tolerations"])
    status, refused = client.post(PODS, trainer("train-3"))
    assert (status, "pods.validate.gpu-admission.dev" in refused["message"]) == (403, True), refused
    assert eventually(lambda: used(plane) == "2"), plane.logs(CONTROLLER)
    assert client.delete(f"{PODS}/train-1", {"gracePeriodSeconds": 0})[0] == 200
    assert eventually(lambda: used(plane) == "1"), plane.logs(CONTROLLER)

    assert eventually(lambda: "gpu_admission_canary_success 1.0" in running.metrics(9444)), plane.logs(
        CONTROLLER
    )
    lease = plane.kubectl(
        "get", "lease", CONTROLLER, "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}"
    )
    assert lease.stdout

    assert eventually(
        lambda: (WEBHOOK, "create", "events") in {request[:3] for request in requested(audit_log)}
    )
    requests = requested(audit_log)
    assert {request.account for request in requests} == {WEBHOOK, CONTROLLER}
    written = {
        request[1:3] for request in requests if request.account == WEBHOOK and request.verb not in READS
    }
    events = {("create", "events"), ("patch", "events")}
    assert written == {("update", LEDGERS), *events}, "serve writes ledgers and Events, and nothing else"
    assert not forbidden(audit_log)


def test_the_webhook_reads_what_an_autoscaler_scales(
    plane: ControlPlane, running: Installed, audit_log: Path
) -> None:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}
    scaler = {"maxReplicas": 5, "scaleTargetRef": target}
    documents = [
        deployment("chat", gpu_container(), replicas=0, namespace=TEAM),
        manifest("autoscaling/v2", "HorizontalPodAutoscaler", "chat", scaler, namespace=TEAM),
    ]

    said = [plane.kubectl("apply", "-f", "-", stdin=json.dumps(each)).stderr for each in documents]

    assert "may grow to 5 pods and then needs 5 GPUs" in said[1], running
    assert ("get", "deployments") in {request[1:3] for request in requested(audit_log)}
    assert not forbidden(audit_log)


WRONG_PATH = (
    "Warning: GPUResourceMapping trainers: spec.workloadKinds[0].pods[0].{}: correct the path, or install a "
    "CustomResourceDefinition that has it; must be a path of the CustomResourceDefinition: the object has no field {}; "
    "did you mean {}? [configuration]"
)


@cases(
    ("kind", "pods", "want"),
    right=("Trainer", {"path": "spec.workers[].template", "replicas": [".replicas else 1"]}, ""),
    wrong_path=("Trainer", {"path": "spek.template"}, WRONG_PATH.format("path", "spek", "spec")),
    wrong_number=(
        "Trainer",
        {"path": "spec.template", "replicas": ["metadata.labels.size else stats.size"]},
        WRONG_PATH.format("replicas[0]", "stats", "status"),
    ),
    not_installed=("Unknown", {"path": "spek.template"}, ""),
)
@pytest.mark.usefixtures("running")
def test_the_webhook_compares_paths_with_the_schema_of_their_kind(
    plane: ControlPlane, audit_log: Path, kind: str, pods: JSON, want: str
) -> None:
    install(plane.client(), "schemas.example.com", "v1", "Trainer")
    row = {"group": "schemas.example.com", "kind": kind, "pods": [pods]}
    document = Document("GPUResourceMapping", "trainers", {"workloadKinds": [row]}).data

    assert apply(plane, document, dry_run=True) == (True, want)
    assert (WEBHOOK, "get", "customresourcedefinitions") in {row[:3] for row in requested(audit_log)}
    assert not forbidden(audit_log)


POLICY = {
    "priority": 5,
    "match": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": TEAM}}},
    "rules": {"gpu-toleration": {"tolerations": [{"key": "team", "operator": "Exists"}]}},
}


def test_policies_of_the_cluster_are_in_force(
    plane: ControlPlane, running: Installed, audit_log: Path
) -> None:
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(Document("GPUPolicy", "team", POLICY).data))

    def tolerated() -> set[str]:
        made = plane.client().post(PODS, trainer("dry"), {"dryRun": "All"})[1]
        return {toleration.get("key", "") for toleration in made["spec"]["tolerations"]}

    assert eventually(lambda: "team" in tolerated()), plane.logs(WEBHOOK)
    reported = "jsonpath={.status.conditions[?(@.type=='InForce')].status}"
    assert eventually(lambda: plane.kubectl("get", "gpupolicy", "team", "-o", reported).stdout == "True"), (
        running
    )
    plane.kubectl("delete", "gpupolicy", "team")
    assert ("patch", "gpupolicies/status") in {request[1:3] for request in requested(audit_log)}
    assert not forbidden(audit_log)


def test_a_team_is_reviewed_together_with_the_others(
    plane: ControlPlane, running: Installed, audit_log: Path
) -> None:
    def applied(name: str, names: list[str], **spec: Any) -> str:
        document = Document(
            "ClusterGPUQuota", name, {"namespaces": {"names": names}, "hard": {"gpus": 8}, **spec}
        )
        return plane.kubectl("apply", "-f", "-", stdin=json.dumps(document.data), check=False).stderr

    assert applied("a", ["vision-*"], contact="#vision-leads") == ""
    warned = applied("b", ["vision-prod"])
    refused = applied("c", ["ocr"], guaranteed={"ocr": {"gpus": 9}})
    plane.kubectl("delete", "cgpuq", "a", "b")

    assert "overlaps vision-* of ClusterGPUQuota a: a namespace that both match belongs to b" in warned, (
        running
    )
    assert "spec.guaranteed: must not exceed hard in sum: gpus is 9, and hard has 8" in refused
    assert (WEBHOOK, "list", "clustergpuquotas") in {request[:3] for request in requested(audit_log)}
    assert not forbidden(audit_log)


def test_doctor_misses_nothing_but_pods(plane: ControlPlane, running: Installed) -> None:
    del running
    reported = CliRunner().invoke(doctor, ["--kubeconfig", str(plane.kubeconfig()), "-o", "json"]).output

    findings = {finding["id"] for check in json.loads(reported)["checks"] for finding in check["findings"]}
    # Ours are processes, which no Service selects; and as installed the webhook answers any caller.
    assert findings == {"no-endpoints", "callers-unknown"}, reported


def test_the_test_of_the_release_sends_one_canary(plane: ControlPlane, running: Installed) -> None:
    show = ("--show-only", "templates/tests/canary.yaml")
    text = helm.run("template", RELEASE, CHART, "-n", NAMESPACE, "--set", f"image.repository={IMAGE}", *show)
    test_pod = yaml.safe_load(text)
    (container,) = test_pod["spec"]["containers"]
    account = test_pod["spec"]["serviceAccountName"]

    applied = plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=text)
    status, said = running.command(account, *container["args"])

    assert (applied.stderr, applied.stdout) == ("", "pod/gpu-admission-test created (server dry run)\n")
    assert (status, said.splitlines()[0].partition(" in ")[0]) == (0, "canary: succeeded"), said
    assert "  proved: half a GPU is rejected with our message\n" in said


def used(plane: ControlPlane) -> str | None:
    row: dict[str, Any] = plane.client().get(f"{QUOTA}/default")[1].get("status", {})
    amount: str | None = row.get("used", {}).get("gpus", "0" if "used" in row else None)
    return amount


class Request(NamedTuple):
    account: str
    verb: str
    resource: str
    forbidden: bool


def requested(audit_log: Path) -> list[Request]:
    """Return what our service accounts asked of the API server, and what it would not let them do."""
    found = []
    for line in audit_log.read_text().rpartition("\n")[0].splitlines():  # those that are whole
        event = json.loads(line)
        about = event.get("objectRef", {})
        if about.get("resource") == "selfsubjectaccessreviews":
            continue
        resource = "/".join(about[key] for key in ("resource", "subresource") if about.get(key))
        is_forbidden = event["annotations"].get("authorization.k8s.io/decision") == "forbid"
        account = event["user"]["username"].rpartition(":")[2]
        found.append(Request(account, event["verb"], resource, is_forbidden))
    return found


def forbidden(audit_log: Path) -> list[Request]:
    return [request for request in requested(audit_log) if request.forbidden]


# ---- What they must not be able to do

BOTH = (WEBHOOK, CONTROLLER)
GROUPS = {
    "gpu": "gpu-admission.dev",
    "admission": "admissionregistration.k8s.io",
    "rbac": "rbac.authorization.k8s.io",
    "coordination": "coordination.k8s.io",
    "extensions": "apiextensions.k8s.io",
    "resource": "resource.k8s.io",
}


def attributes(text: str) -> dict[str, str]:
    """Return what `VERB [GROUP:]RESOURCE[/SUBRESOURCE] [-n NAMESPACE] [NAME]` asks of the API server."""
    verb, resource, *where = text.split()
    group, _, resource = resource.rpartition(":")
    resource, _, subresource = resource.partition("/")
    what = {"verb": verb, "group": GROUPS.get(group, ""), "resource": resource, "subresource": subresource}
    if where[:1] == ["-n"]:
        what["namespace"], where = where[1], where[2:]
    return {**what, "name": where[0]} if where else what


FORBIDDEN: dict[tuple[str, ...], str] = {
    BOTH: f"""
        get secrets -n {NAMESPACE} registry-credentials
        list secrets -n {NAMESPACE}
        get secrets -n kube-system gpu-admission-certificates
        create secrets -n default
        patch admission:mutatingwebhookconfigurations istio
        create admission:validatingwebhookconfigurations
        delete admission:mutatingwebhookconfigurations zz-gpu-admission
        create pods -n default
        create pods -n {NAMESPACE}
        delete pods -n default
        create pods/exec -n default
        create pods/binding -n default
        patch nodes a100-0
        update namespaces default
        update gpu:gpuquotas -n default
        create gpu:gpuquotas -n default
        update gpu:clustergpuquotas
        create gpu:clustergpuquotas
        update gpu:gpupolicies
        update gpu:{LEDGERS} -n {TEAM}
        get gpu:{LEDGERS} -n {TEAM}
        get configmaps -n kube-system
        get configmaps -n {NAMESPACE} other
        create serviceaccounts/token -n {NAMESPACE}
        impersonate users
        escalate rbac:clusterroles
        bind rbac:clusterroles
        get coordination:leases -n kube-system
        get events -n default
        delete events -n default
        update extensions:customresourcedefinitions
    """,
    (WEBHOOK,): f"""
        list extensions:customresourcedefinitions
        update gpu:gpuquotas/status
        update gpu:clustergpuquotas/status
        watch gpu:clustergpuquotas
        list gpu:gpuquotas
        create gpu:{LEDGERS} -n {NAMESPACE} {TEAM}
        delete gpu:{LEDGERS} -n {NAMESPACE} {TEAM}
        patch gpu:{LEDGERS} -n {NAMESPACE} {TEAM}
        list gpu:{LEDGERS} -n {NAMESPACE}
        patch configmaps -n {NAMESPACE} gpu-admission-catalogues
        patch configmaps -n {NAMESPACE} gpu-admission-capacity
        get configmaps -n {NAMESPACE} gpu-admission-budgets
        patch configmaps -n {NAMESPACE} gpu-admission-devices
        list resource:resourceslices
        get secrets -n {NAMESPACE} gpu-admission-ca
        update secrets -n {NAMESPACE} gpu-admission-certificates
        patch secrets -n {NAMESPACE} gpu-admission-certificates
        create secrets -n {NAMESPACE}
        patch admission:mutatingwebhookconfigurations zz-gpu-admission
        get coordination:leases -n {NAMESPACE} other
        update coordination:leases -n {NAMESPACE} {CONTROLLER}
        list pods
        patch pods -n {TEAM}
        create pods -n gpu-admission-canary
        patch gpu:gpupolicies/status
    """,
    (CONTROLLER,): f"""
        get coordination:leases -n {NAMESPACE} other
        delete admission:validatingadmissionpolicies gpu-admission-controller
        patch admission:validatingadmissionpolicybindings gpu-admission-controller
        delete pods -n gpu-admission-canary
        update pods -n {TEAM}
        update pods/status
        patch pods/resize -n {TEAM}
        patch pods/ephemeralcontainers -n {TEAM}
        update namespaces
    """,
}
ALLOWED: dict[tuple[str, ...], str] = {
    (WEBHOOK,): f"""
        list gpu:clustergpuquotas
        get extensions:customresourcedefinitions
        watch secrets -n {NAMESPACE} gpu-admission-certificates
        get configmaps -n {NAMESPACE} gpu-admission-catalogues
        watch configmaps -n {NAMESPACE} gpu-admission-devices
        get coordination:leases -n {NAMESPACE} {CONTROLLER}
        patch events -n {TEAM}
        update gpu:{LEDGERS} -n {NAMESPACE} {TEAM}
    """,
    (CONTROLLER,): f"""
        patch secrets -n {NAMESPACE} gpu-admission-certificates
        patch configmaps -n {NAMESPACE} gpu-admission-catalogues
        patch configmaps -n {NAMESPACE} gpu-admission-budgets
        patch configmaps -n {NAMESPACE} gpu-admission-capacity
        patch configmaps -n {NAMESPACE} gpu-admission-devices
        watch resource:resourceslices
        create pods -n gpu-admission-canary
        patch events -n {TEAM}
        create events -n default
        delete gpu:{LEDGERS} -n {NAMESPACE} {TEAM}
        update gpu:gpuquotas/status
        update gpu:clustergpuquotas/status
        watch gpu:clustergpuquotas
    """,
}


def rights(table: dict[tuple[str, ...], str]) -> list[Any]:
    return [
        pytest.param(account, attributes(line), id=f"{account}-{line.strip()}")
        for accounts, lines in table.items()
        for line in lines.strip().splitlines()
        for account in accounts
    ]


@pytest.mark.parametrize(("account", "what"), rights(FORBIDDEN))
def test_they_may_not(running: Installed, account: str, what: dict[str, str]) -> None:
    assert not may(running, account, what)


@pytest.mark.parametrize(("account", "what"), rights(ALLOWED))
def test_the_question_can_be_answered_yes(running: Installed, account: str, what: dict[str, str]) -> None:
    assert may(running, account, what)


def may(running: Installed, account: str, what: dict[str, str]) -> bool:
    client = running.client(account)
    try:
        answer = accepted(
            client.post(f"{REVIEWS}/selfsubjectaccessreviews", {"spec": {"resourceAttributes": what}})
        )
    finally:
        client.close()
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
@pytest.mark.usefixtures("running")  # its roles are there
def test_people_see_the_quotas_of_their_namespace_and_change_none(plane: ControlPlane, role: str) -> None:
    user = f"{role}er"
    plane.kubectl("create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}", "-n", TEAM)

    def may(verb: str, namespace: str = TEAM) -> bool:
        return user_may(plane, user, attributes(f"{verb} gpu:gpuquotas -n {namespace}"))

    assert eventually(lambda: may("get"))  # a controller adds our rules to theirs
    assert not may("get", "default")
    assert not any(may(verb) for verb in ("create", "update", "patch", "delete"))
    rows = (
        attributes(f"{verb} gpu:{LEDGERS} -n {namespace}")
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
        for namespace in (TEAM, NAMESPACE)
    )
    assert not any(user_may(plane, user, what) for what in rows)


@pytest.mark.usefixtures("running")
def test_a_lead_writes_the_quotas_of_the_namespaces_where_it_is_bound(plane: ControlPlane) -> None:
    role = ("--clusterrole=gpu-admission-team-lead", "--user=lead", "-n", TEAM)
    plane.kubectl("create", "rolebinding", "lead", *role)

    def may(what: str) -> bool:
        return user_may(plane, "lead", attributes(what))

    written = [f"{verb} gpu:gpuquotas" for verb in ("create", "update", "patch", "delete")]
    assert eventually(lambda: all(may(f"{each} -n {TEAM}") for each in written))
    others = [
        "update gpu:clustergpuquotas",
        f"update gpu:gpuquotas/status -n {TEAM}",
        f"update gpu:{LEDGERS} -n {NAMESPACE}",
    ]
    assert not any(map(may, (*(f"{each} -n default" for each in written), *others)))


@pytest.mark.parametrize("resource", ["gpuclasses", "gpupolicies", "gpuresourcemappings"])
@pytest.mark.usefixtures("running")
def test_tenants_read_what_they_are_held_to_and_change_none_of_it(plane: ControlPlane, resource: str) -> None:
    def may(verb: str) -> bool:
        return user_may(plane, "tenant", attributes(f"{verb} gpu:{resource}"))

    assert all(may(verb) for verb in ("get", "list", "watch"))
    assert not any(may(verb) for verb in ("create", "update", "patch", "delete"))


def user_may(plane: ControlPlane, user: str, what: dict[str, str]) -> bool:
    spec = {"user": user, "groups": ["system:authenticated"], "resourceAttributes": what}
    answer = accepted(plane.client().post(f"{REVIEWS}/subjectaccessreviews", {"spec": spec}))
    return bool(answer["status"]["allowed"])
