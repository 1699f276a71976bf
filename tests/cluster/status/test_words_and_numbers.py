"""A fact reads alike on every surface that shows it: for an administrator, a tenant, and a tenant without each right in turn.

Where a right is missing, the surface says so, and shows no other words or numbers. `tests/webhook/tools/status/test_surfaces.py`
has what is not counted now, and rights that differ by object.
"""

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from tests.cluster.controllers import eventually, shows
from tests.cluster.quota.quotas import gpu_pod, in_force
from tests.cluster.quota.teams import TEAMS
from tests.cluster.status.conftest import RBAC, READER, TAINT
from tests.cluster.waiting.line import Line
from tests.controlplane import ControlPlane, accepted, create_gpu_node
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.commands import main
from webhook.configuration.documents import API_VERSION, Document
from webhook.quota.documents import QuotaStatus
from webhook.tools.console.app import console_server

TEAM, L40S, GPU = "surfaces", "nvidia-l40s", "nvidia.com/gpu"
INSTALLATION = "/namespaces/gpu-admission"
OWN, CAPACITY_CONFIG_MAP = f"namespaces/{TEAM}", f"/api/v1{INSTALLATION}/configmaps/gpu-admission-capacity"
LEASES = f"/apis/coordination.k8s.io/v1{INSTALLATION}/leases"
QUOTAS = f"/apis/{API_VERSION}/{OWN}/gpuquotas"
ON_L40S: dict[str, Any] = {"nodeSelector": {"accelerator": L40S}}


class Right(NamedTuple):
    """A right of a tenant: the namespace of its rule ("" for the cluster), the rule, what can be read with it, and its name."""

    namespace: str
    rule: Mapping[str, Any]
    path: str
    said: str


def right(resource: str, path: str, namespace: str = "", name: str = "", verb: str = "list") -> Right:
    plural, _, group = resource.partition(".")
    rule = {"apiGroups": [group], "resources": [plural], "verbs": [verb]}
    said = f"{verb} {plural}/{name}" if name else f"{verb} {resource}"
    return Right(namespace, {**rule, "resourceNames": [name]} if name else rule, path, said)


RIGHTS = {
    "list gpupolicies": right("gpupolicies.gpu-admission.dev", f"/apis/{API_VERSION}/gpupolicies"),
    "list gpuclasses": right("gpuclasses.gpu-admission.dev", f"/apis/{API_VERSION}/gpuclasses"),
    "list gpuresourcemappings": right(
        "gpuresourcemappings.gpu-admission.dev", f"/apis/{API_VERSION}/gpuresourcemappings"
    ),
    "list gpuquotas": right("gpuquotas.gpu-admission.dev", QUOTAS, TEAM),
    "get gpuquotas": right("gpuquotas.gpu-admission.dev", f"{QUOTAS}/default", TEAM, verb="get"),
    "list pods": right("pods", f"/api/v1/{OWN}/pods", TEAM),
    "list events": right("events", f"/api/v1/{OWN}/events", TEAM),
    "list limitranges": right("limitranges", f"/api/v1/{OWN}/limitranges", TEAM),
    "get the capacity": right(
        "configmaps", CAPACITY_CONFIG_MAP, "gpu-admission", "gpu-admission-capacity", "get"
    )._replace(said="list nodes"),  # it stands for these
    "get the lease": right(
        "leases.coordination.k8s.io",
        f"{LEASES}/gpu-admission-controller",
        "gpu-admission",
        "gpu-admission-controller",
        "get",
    ),
}
ALWAYS = {
    "": [{"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"], "verbs": ["list"]}],
    TEAM: [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create"]},
        {"apiGroups": ["resource.k8s.io", "apps", "batch", "policy"], "resources": ["*"], "verbs": ["list"]},
    ],
    "gpu-admission": [],
}


@pytest.fixture(scope="module")
def scene(cluster: ControlPlane) -> Iterator[dict[str, str]]:
    """Two pods hold 9 of 12 GPUs, one of them without a node, two wait in line; return what is true of them."""
    client, team = cluster.client(), Line(cluster, TEAM)
    client.post("/api/v1/namespaces", {"metadata": {"name": "gpu-admission"}})
    queue = {"gpu-quota": {"mode": "enforce", "onExceeded": "Queue"}}
    spec = {"priority": 9, "match": {"namespaces": [TEAM]}, "help": "#gpus on chat", "rules": queue}
    accepted(client.post(f"/apis/{API_VERSION}/gpupolicies", Document("GPUPolicy", TEAM, spec).data))
    granted = {"hard": {"gpus": "16"}, "contact": "#speech on chat", "namespaces": {"names": [TEAM]}}
    accepted(client.post(TEAMS, Document("ClusterGPUQuota", TEAM, granted).data))
    create_gpu_node(client, "l40s-0", labels=ON_L40S["nodeSelector"], taints=(TAINT,))
    in_force(team, {"gpus": "12"})
    team.pod("holder", 5, **ON_L40S)
    assert eventually(lambda: team.get("holder")["spec"].get("nodeName") == "l40s-0")
    team.pod("stuck", 4, **ON_L40S)
    assert shows(team, 9)
    assert eventually(lambda: team.create(gpu_pod("probe", 4), {"dryRun": "All"})[0] == 201)
    team.pod("first", 4, **ON_L40S)
    team.in_a_later_second("second", 1, **ON_L40S)
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 36000}
    spec["renewTime"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
    accepted(client.post(LEASES, {"metadata": {"name": "gpu-admission-controller"}, "spec": spec}))
    _publish(cluster)
    _bind(cluster)
    assert eventually(lambda: _is_complete(team.status()))
    at = datetime.fromisoformat(team.get("second")["metadata"]["creationTimestamp"])
    yield {
        "state": "Ready",
        "used": "9",
        "free": "3",
        "holders": "Pod/holder 5, Pod/stuck 4",
        "waiting": "2",
        "place of the second": "2",
        "since when the second waits": f"{at:%H:%M:%S} UTC".replace(":00 UTC", " UTC"),
        "free of the class": "3",
        "free of the team": "7",
        "contact of the team": "#speech on chat",
        "contact of the policy": "#gpus on chat",
    }
    for name in ("first", "second", "stuck", "holder"):
        team.delete_pod(name)
    for path in (
        f"{QUOTAS}/default",
        f"{TEAMS}/{TEAM}",
        f"/apis/{API_VERSION}/gpupolicies/{TEAM}",
        f"{LEASES}/gpu-admission-controller",
        CAPACITY_CONFIG_MAP,
        "/api/v1/nodes/l40s-0",
    ):
        accepted(client.delete(path))


@pytest.fixture
def late(cluster: ControlPlane, scene: dict[str, str]) -> Iterator[datetime]:  # noqa: ARG001 - the Lease is in it
    """No controller has renewed the Lease since a minute ago; return when one did."""
    client, at = cluster.client(), datetime.now(UTC) - timedelta(minutes=1)
    path = f"{LEASES}/gpu-admission-controller"
    before = accepted(client.get(path))["spec"]
    spec = {"leaseDurationSeconds": 5, "renewTime": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}"}
    accepted(client.patch(path, {"spec": spec}))
    yield at
    accepted(client.patch(path, {"spec": before}))


def _is_complete(status: QuotaStatus) -> bool:
    """Whether the status has the team, and both places in line."""
    return status.team is not None and status.waiting is not None and len(status.waiting.next) == 2


def _publish(plane: ControlPlane) -> None:
    """Put what the controller has published into the namespace where commands look for it."""
    client, name = plane.client(), "gpu-admission-capacity"

    def counted() -> Any:
        data = client.get(f"/api/v1/namespaces/default/configmaps/{name}")[1].get("data", {})
        classes = json.loads(data.get("capacity", "{}")).get("classes", {})
        return data if classes.get(L40S, {}).get("free") == "3" else None

    body = {"metadata": {"name": name}, "data": eventually(counted)}
    accepted(client.post(f"/api/v1{INSTALLATION}/configmaps", body))


def _bind(plane: ControlPlane) -> None:
    client, subject = (
        plane.client(),
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": READER},
    )
    for namespace, rules in ALWAYS.items():
        kind, within = ("Role", f"/namespaces/{namespace}") if namespace else ("ClusterRole", "")
        plural = f"{kind.lower()}s"
        accepted(
            client.post(f"{RBAC}{within}/{plural}", {"metadata": {"name": "reads-surfaces"}, "rules": rules})
        )
        reference = {"apiGroup": subject["apiGroup"], "kind": kind, "name": "reads-surfaces"}
        binding = {"metadata": {"name": "reads-surfaces"}, "roleRef": reference, "subjects": [subject]}
        accepted(client.post(f"{RBAC}{within}/{kind.lower()}bindings", binding))


def permit(plane: ControlPlane, refused: str) -> None:
    """Give READER the rights of a tenant without one; return once the API server acts by them."""
    client, reader = plane.client(), plane.client(READER)
    given = {name: each for name, each in RIGHTS.items() if name != refused}
    for namespace, always in ALWAYS.items():
        rules = [*always, *(each.rule for each in given.values() if each.namespace == namespace)]
        path = f"{RBAC}/namespaces/{namespace}/roles" if namespace else f"{RBAC}/clusterroles"
        accepted(client.patch(f"{path}/reads-surfaces", {"rules": rules}))

    def acts() -> bool:
        answers = {name: reader.get(each.path)[0] for name, each in RIGHTS.items()}
        return answers == {name: 200 if name in given else 403 for name in RIGHTS}

    assert eventually(acts)


def shown(plane: ControlPlane, user: str) -> dict[str, str]:
    """Return the words of every surface, in one line each."""
    texts = {
        "quota": run(plane, user, "quota", "-n", TEAM),
        "status": run(plane, user, "status", "-n", TEAM),
        "why": " ".join(run(plane, user, "why", f"pod/{name}", "-n", TEAM) for name in ("stuck", "second")),
        "classes": run(plane, user, "classes", "-n", TEAM),
        "scan": run(plane, user, "scan", "-n", TEAM),
    }
    pods = [
        {"apiVersion": "v1", "kind": "Pod", **gpu_pod(f"new-{gpus}", gpus, **ON_L40S)} for gpus in (4, 13)
    ]
    for pod in pods:
        pod["metadata"]["namespace"] = TEAM
    of_check = (run(plane, user, "check", "-f", "-", stdin=json.dumps(pod)) for pod in pods)
    texts["check"] = " ".join(of_check)
    client = plane.client(user)
    answers = [client.send("POST", f"/api/v1/{OWN}/pods", pod, {"dryRun": "All"}) for pod in pods]
    texts["apply"] = " ".join(" ".join([str(each.body.get("message")), *each.warnings]) for each in answers)
    listed = plane.kubectl("get", "gpuquotas", "-n", TEAM, user=user, check=False)
    texts["columns"] = listed.stdout + listed.stderr
    for name, path in (
        ("conditions", f"{QUOTAS}/default"),
        ("Events", RIGHTS["list events"].path),
        ("capacity", CAPACITY_CONFIG_MAP),
    ):
        texts[name] = _words(client.get(path)[1])
    console: Any = console_server(
        ApiClient(load_access(str(plane.kubeconfig(user)))), cluster="test", namespaces=[TEAM], home=TEAM
    )
    pages = {
        "overview": ("/",),
        "quota's page": (f"/quotas/{TEAM}",),
        "Why?": tuple(f"/why?object=pod/{name}&namespace={TEAM}" for name in ("stuck", "second")),
    }
    try:
        browser = console.app.test_client()
        for name, paths in pages.items():
            read = " ".join(browser.get(path, base_url="http://127.0.0.1").text for path in paths)
            texts[name] = html.unescape(re.sub("<[^>]*>", " ", read))
    finally:
        console.server_close()
    return {name: " ".join(text.split()) for name, text in texts.items()}


def run(plane: ControlPlane, user: str, *command: str, stdin: str = "") -> str:
    arguments = [*command, "--verbose", "--kubeconfig", str(plane.kubeconfig(user))]
    result = CliRunner(env={"COLUMNS": None}).invoke(main, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def _words(answer: Any) -> str:
    """Return what people read of an object, a list of Events, or a refusal."""
    if answer["kind"] == "Status":
        return str(answer["message"])
    if "items" in answer:
        return " ".join(f"{each['involvedObject']['name']}: {each['message']}" for each in answer["items"])
    if answer["kind"] == "ConfigMap":
        of = json.loads(answer["data"]["capacity"])["classes"][L40S]
        return f"{L40S} {of['free']} of {of['gpus']}"
    return " ".join(f"{each['type']} {each['reason']}" for each in answer["status"]["conditions"])


FREE, HOLDERS, UTC_TIME = r"(\d+) of 12 free", r"(Pod/\w+ \d, Pod/\w+ \d)", r"([\d: -]+ UTC)"
ASKED = r"ask (?!the platform team)(.*?) to raise spec.hard.gpus"
LINE = ("quota", "status", "why", "Events", "overview", "quota's page", "Why?")
OF_TEAM = ("quota", "status", "why", "quota's page", "Why?")
SHOWN: dict[str, dict[str, str]] = {
    "state": {
        "quota": rf"{TEAM} ([A-Z]\w+) ▄",
        "status": rf"reserved of hard {TEAM} (\w+)",
        "columns": r"default 9 2 12 (\w+)",
        "conditions": r"Ready (\w+)",
        "overview": r"Pod/holder and 1 more \S+ (\w+)",
        "quota's page": rf"Quotas / {TEAM} (\w+) ClusterGPUQuota",
    },
    "used": {
        "quota": r"gpus \S+ (\d+) \+ 0 of 12",
        "status": r"gpus \S+ (\d+) \+ 0 of 12",
        "why": r"gpus: (\d+) of 12 used",
        "check": r"requested 4 GPUs, (\d+) of 12 used",
        "apply": r"requested 4 GPUs, (\d+) of 12 used",
        "columns": r"default (\d+) 2 12",
        "scan": rf"changed warned {TEAM} (\d+)",
        "overview": r"GPUs of quotas (\S+) of",
        "quota's page": r"GPUs (\d+) of 12 used",
        "Why?": r"GPUs of the quota (\d+) of 12 requests",
    },
    "free": dict.fromkeys(LINE, FREE),
    "holders": {**dict.fromkeys(LINE, HOLDERS), "apply": HOLDERS},
    "waiting": {
        **dict.fromkeys(("quota", "status"), r"(\d+) pods wait in line"),
        **dict.fromkeys(("check", "apply"), r"default: (.*?)(?: pods before it)?, requested 4 GPUs"),
        "columns": r"default 9 (\d+) 12",
        "overview": rf"longest first {TEAM} (\d+) pods",
        "quota's page": r"in line for quota (\d+) pods",
    },
    "place of the second": {
        "quota": r"(\d+) Pod/second",
        **dict.fromkeys(("why", "Why?"), r"UTC: (\d+)nd in line"),
        "quota's page": r"Pod/second (\d+) ",
    },
    "since when the second waits": {
        "quota": rf"Pod/second since {UTC_TIME}",
        **dict.fromkeys(("why", "Why?"), rf"second waits in line for quota since {UTC_TIME}"),
        "quota's page": rf"Pod/second 2 1 GPU · since {UTC_TIME}",
    },
    "free of the class": {
        "status": rf"{L40S} 48 GiB 1 8 (\S+)",
        "classes": rf"{L40S} {L40S} 48 \S+ 1 8 (\S+)",
        **dict.fromkeys(("why", "Why?"), r"(\S+) of 8 nvidia.com/gpu free"),
        "capacity": rf"{L40S} (\d+) of 8",
        "overview": rf"{L40S} 1 node · 48 GiB (\S+) of 8",
    },
    "free of the team": dict.fromkeys(OF_TEAM, r"(\d+) of 16 GPUs free"),
    "contact of the team": {
        **dict.fromkeys(OF_TEAM, r"contact: (#speech on chat)"),
        **dict.fromkeys(("check", "apply"), r"and (.*?) to raise the team's"),
    },
    "contact of the policy": dict.fromkeys(("why", "Why?", "check", "apply"), ASKED),
}
"""By fact, the surfaces that show it, and where."""
Lost = frozenset[tuple[str, str]]
"""A fact and a surface that does not show it."""


def lost(surfaces: Iterable[str], *facts: str) -> Lost:
    """Return these facts, by default all, on these surfaces."""
    return frozenset((fact, each) for fact in facts or SHOWN for each in surfaces if each in SHOWN[fact])


OF_CLASS = lost(SHOWN["free of the class"], "free of the class")
BY_POLICY = lost(("why", "Why?"), "contact of the policy")
BY_POD_AND_EVENTS = lost(("why", "Why?"), "since when the second waits", "free", "holders")
LOST: dict[str, Lost] = {
    "list gpupolicies": lost(["check"]) | BY_POLICY,
    "list gpuclasses": lost(["check"]),
    "list gpuresourcemappings": lost(["check"]),
    "list gpuquotas": lost(["quota", "status", "columns", "overview", "quota's page"]) - OF_CLASS,
    "get gpuquotas": lost(["why", "check", "conditions", "Why?"]) - OF_CLASS - BY_POD_AND_EVENTS,
    "list pods": lost(["scan"]),
    "list events": lost(["Events"]),
    "get the capacity": OF_CLASS,
}
"""What is not shown without a right; without any other right everything is."""


@pytest.mark.parametrize("refused", [None, "", *RIGHTS])
def test_a_fact_reads_alike_or_is_said_to_be_unreadable(
    cluster: ControlPlane, scene: dict[str, str], refused: str | None
) -> None:
    """`refused`: None of an administrator, "" of a tenant."""
    if refused is not None:
        permit(cluster, refused)
    texts = shown(cluster, "admin" if refused is None else READER)

    values = {
        (fact, surface): {each.replace("ready", "Ready") for each in re.findall(pattern, texts[surface])}
        for fact, patterns in SHOWN.items()
        for surface, pattern in patterns.items()
    }
    is_lost = LOST.get(refused or "", frozenset())
    want = {
        (fact, surface): set() if (fact, surface) in is_lost else {scene[fact]} for fact, surface in values
    }
    assert values == want, texts
    for surface in {surface for _, surface in is_lost}:
        said = "forbidden", RIGHTS[refused or ""].said
        assert any(each in texts[surface] for each in said), texts[surface]


@pytest.mark.parametrize(
    ("refused", "is_said"),
    [
        pytest.param(None, True, id="to-an-administrator"),
        pytest.param("", True, id="to-a-tenant"),
        pytest.param("get the lease", False, id="to-a-tenant-who-may-not-read-the-lease"),
    ],
)
def test_every_surface_says_that_no_controller_counts(
    cluster: ControlPlane, late: datetime, refused: str | None, is_said: bool
) -> None:
    if refused is not None:
        permit(cluster, refused)
    texts = shown(cluster, "admin" if refused is None else READER)

    at = f"{late:%H:%M:%S} UTC".replace(":00 UTC", " UTC")
    of = "quota", "status", "why", "overview", "quota's page", "Why?"
    stale = {
        each: re.findall(r"quotas as of \S+ \S+ ago \((.*?)\), not counted now", texts[each]) for each in of
    }
    assert {each: {*found} for each, found in stale.items()} == dict.fromkeys(of, {at} if is_said else set())
    assert is_said or all(RIGHTS["get the lease"].said in texts[each] for each in of)
