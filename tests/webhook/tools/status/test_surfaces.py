"""A fact reads alike on every surface that shows it, for an administrator, a tenant, and with each right refused in turn.

Where somebody may not read what a fact is taken from, the surface names the right, and shows no other number.
"""

import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.builders import JSON, gpu_container
from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, GROUP, QUOTA, cluster
from tests.webhook.tools.status.stored import CONFIG_MAP, published
from webhook.commands import main
from webhook.tools.console.app import console_server
from webhook.tools.why.explaining import explain

A100, GPU = "nvidia-a100-80gb", "nvidia.com/gpu"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gpu-admission/leases/gpu-admission-controller"
NODES, PODS, OF_NAMESPACE = "/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/ml/pods"
QUOTAS = f"{GROUP}/namespaces/ml/gpuquotas"
SURFACES = {
    "quota": ("quota", "-n", "ml"),
    "status": ("status", "-n", "ml"),
    "why": ("why", "pod/p", "-n", "ml"),
    "classes": ("classes", "-n", "ml"),
}
PAGES = {"overview": "/", "quota's page": "/quotas/ml", "Why?": "/why?object=pod/p&namespace=ml"}
STALE = re.compile(r"quotas as of (\d+) s ago \([^)]*\), not counted now: no controller leads")
HAS = {"cpu": "64", "memory": "512Gi", GPU: "8"}
NODE = {
    "metadata": {"name": "a1", "uid": "a1", "labels": {"accelerator": A100}},
    "spec": {},
    "status": {"allocatable": HAS, "capacity": HAS},
}
HOLDING = {
    "metadata": {"name": "h", "uid": "h"},
    "spec": {"nodeName": "a1", "containers": [gpu_container("5")]},
}


def waiting() -> JSON:
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-11-28T08:00:00Z"},
        "spec": {"nodeSelector": {"accelerator": A100}, "containers": [gpu_container("4")]},
        "status": {"phase": "Pending", "conditions": [unscheduled]},
    }


def served(seconds: int, refused: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a cluster whose controller renewed its Lease so many seconds ago, with these paths refused."""
    now = datetime.now(UTC)
    renewed = (now - timedelta(seconds=seconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": renewed,
    }
    status = {"hard": {"gpus": "8"}, "used": {"gpus": "4"}, "conditions": [ready]}
    quota = {
        "metadata": {"name": "default", "namespace": "ml", "uid": "q", "generation": 1},
        "spec": {"hard": {"gpus": "8"}},
        "status": status,
    }
    spec = {"holderIdentity": "one", "leaseDurationSeconds": 5, "renewTime": renewed}
    found = {
        **cluster(),
        "/version": {"gitVersion": "v1.37.2"},
        "/api/v1/namespaces/ml/events": [],
        LEASE: {"metadata": {"name": "gpu-admission-controller"}, "spec": spec},
        QUOTAS: [quota],
        QUOTA: quota,
        f"{GROUP}/gpuquotas": [quota],
        NODES: [NODE],
        PODS: [HOLDING, waiting()],
        OF_NAMESPACE: [waiting()],
        f"{OF_NAMESPACE}/p": waiting(),
        CONFIG_MAP: published(now - timedelta(seconds=5), [NODE], {"a1": 5}),
    }
    return {**found, **dict.fromkeys(refused, FORBIDDEN)}


def shown(folder: Path, objects: dict[str, Any]) -> dict[str, str]:
    """Return the words of every surface, in one line each."""
    with ApiServer(folder, answering(objects)) as server:
        texts = {}
        for name, command in SURFACES.items():
            arguments = [*command, "--kubeconfig", str(server.kubeconfig())]
            texts[name] = CliRunner(env={"COLUMNS": "300"}).invoke(main, arguments).output
        pages: Any = console_server(server.client(), cluster="test", namespaces=["ml"], home="ml")
        try:
            client = pages.app.test_client()
            for name, path in PAGES.items():
                page = client.get(path, base_url="http://127.0.0.1").text
                texts[name] = re.sub("<[^>]*>", " ", page)
        finally:
            pages.server_close()
    return {name: " ".join(text.split()) for name, text in texts.items()}


TENANT = (NODES, PODS)
SHOWS_QUOTA = ("quota", "status", "why", "overview", "quota's page", "Why?")
"""The surfaces that show figures of a quota."""


@cases(
    ("seconds", "refused", "is_said"),
    to_an_administrator=(45, (), True),
    to_a_tenant=(45, TENANT, True),
    who_may_not_read_what_is_published=(45, (*TENANT, CONFIG_MAP), True),
    who_may_not_read_pods=(45, (PODS, f"{OF_NAMESPACE}"), True),
    while_one_leads=(2, (), False),
    to_a_tenant_while_one_leads=(2, TENANT, False),
)
def test_since_when_a_quota_is_not_counted(
    tmp_path: Path, seconds: int, refused: tuple[str, ...], is_said: bool
) -> None:
    found = shown(tmp_path, served(seconds, refused))
    ages = {name: [int(age) for age in STALE.findall(found[name])] for name in SHOWS_QUOTA}
    assert {name: bool(age) for name, age in ages.items()} == dict.fromkeys(SHOWS_QUOTA, is_said), found
    assert all(seconds <= age <= seconds + 30 for each in ages.values() for age in each)


def test_who_may_not_read_the_lease_is_told_so(tmp_path: Path) -> None:
    found = shown(tmp_path, served(45, (LEASE,)))
    assert [name for name in SHOWS_QUOTA if STALE.search(found[name])] == []
    right = "get leases/gpu-admission-controller -n gpu-admission"
    said = {name: right in found[name] or "rights that you lack" in found[name] for name in SHOWS_QUOTA}
    assert said == dict.fromkeys(SHOWS_QUOTA, True), found


FREE = {
    "status": rf"{A100} 80 GiB 1 8 (\S+)",
    "why": r"(\S+) of 8 nvidia.com/gpu free",
    "classes": rf"{A100} nvidia-a100 80 yes 1 8 (\S+)",
    "Why?": r"(\S+) of 8 nvidia.com/gpu free",
}
"""Where each surface says how much of the class is free."""


@cases(
    ("refused", "want"),
    an_administrator=((), "3"),
    a_tenant=(TENANT, "3"),
    who_may_not_list_nodes=((NODES,), "3"),
    who_may_not_list_pods=((PODS,), "?"),
    who_may_read_nothing_of_nodes=((*TENANT, CONFIG_MAP), None),
)
def test_what_is_free_of_a_class(tmp_path: Path, refused: tuple[str, ...], want: str | None) -> None:
    found = shown(tmp_path, served(2, refused))
    free = {name: next(iter(re.findall(pattern, found[name])), None) for name, pattern in FREE.items()}
    assert free == dict.fromkeys(FREE, want), found


CORDONED, TAINTED = (
    {**NODE, "spec": spec}
    for spec in ({"unschedulable": True}, {"taints": [{"key": "own", "effect": "NoSchedule"}]})
)


@cases(
    ("nodes", "refused", "remedy"),
    a_full_node=([NODE], (), "wait until 4 are free on one node"),
    a_full_node_for_a_tenant=([NODE], TENANT, "wait until 4 are free on one node"),
    a_cordoned_node=([CORDONED], (), "ask the platform team to uncordon one of them"),
    no_node=([], (), f"ask the platform team for nodes of {A100}"),
    a_taint=([TAINTED], (), "add {key: own, operator: Exists, effect: NoSchedule} if the pod may run there"),
)
def test_what_to_do_reads_alike(
    tmp_path: Path, nodes: list[JSON], refused: tuple[str, ...], remedy: str
) -> None:
    objects = {**served(2, refused), **({NODES: nodes, PODS: [waiting()]} if nodes != [NODE] else {})}
    found = shown(tmp_path, objects)
    with ApiServer(tmp_path, answering(objects)) as server:
        reasons = explain(server.client(), "pod", "p", "ml", datetime.now(UTC)).reasons

    assert any(each.remedy.startswith(remedy) for each in reasons), reasons
    for text in (each for reason in reasons for each in (reason.message, reason.remedy)):
        assert text in found["why"]
        assert text in html.unescape(found["Why?"])
