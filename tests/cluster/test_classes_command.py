"""`gpu-admission classes` on a real API server: what is free, what a namespace may use, and what a tenant does not see."""

import re
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from tests.cluster.configuration import install_configuration_kinds
from tests.cluster.controllers import eventually
from tests.controlplane import ControlPlane, accepted, create_gpu_node
from tests.controlplane.gpuquota import Namespace
from webhook.commands import main
from webhook.configuration.documents import API_VERSION, Document

POLICIES = f"/apis/{API_VERSION}/gpupolicies"
NAMESPACE, POLICY = "classes", "of-classes"
L40S, MIG = "nvidia-l40s", "nvidia-h200"
"""Classes of which no other test has nodes."""


@pytest.fixture(scope="module")
def team(quotas: ControlPlane) -> Iterator[Namespace]:
    """Make a namespace that may use three classes, of one of them nothing; 12 cards, 5 requested; MIG slices."""
    install_configuration_kinds(quotas)
    client = quotas.client()
    team = Namespace(quotas, NAMESPACE)
    spec = {
        "match": {"namespaces": [NAMESPACE]},
        "rules": {"gpu-class": {"allowed": [L40S, MIG, "nvidia-t4"]}},
    }
    accepted(client.post(POLICIES, Document("GPUPolicy", POLICY, spec).data))
    team.quota({"gpus": 16, "classes": {"nvidia-t4": 0}})
    create_gpu_node(client, "l40s-0", labels={"accelerator": L40S})
    create_gpu_node(client, "l40s-1", labels={"accelerator": L40S}, resources={"nvidia.com/gpu": "4"})
    create_gpu_node(client, "h200-0", labels={"accelerator": MIG}, resources={"nvidia.com/mig-1g.18gb": "14"})
    client.patch("/api/v1/nodes/l40s-1", {"spec": {"unschedulable": True}})
    team.pod("big", 5)
    team.bind("big", "l40s-0")
    yield team
    client.delete(f"{POLICIES}/{POLICY}")
    for name in ("l40s-0", "l40s-1", "h200-0"):
        client.delete(f"/api/v1/nodes/{name}")
    team.delete_pod("big")
    team.delete_quota()


def run(plane: ControlPlane, *arguments: str, user: str = "admin") -> Result:
    kubeconfig = str(plane.kubeconfig(user))
    return CliRunner().invoke(main, ["classes", "--kubeconfig", kubeconfig, "-n", NAMESPACE, *arguments])


@pytest.mark.usefixtures("team")
def test_what_is_free(quotas: ControlPlane) -> None:
    """3 of the 8 cards of the node that takes pods; nothing of the one that is cordoned."""
    lines = run(quotas, "--all").stdout.splitlines()
    ledger_objects = {line.split()[0]: line.split() for line in lines if line.strip()}

    assert ledger_objects["CLASS"] == ["CLASS", "FAMILY", "GIB", "ALLOWED", "NODES", "GPUS", "FREE"]
    assert ledger_objects[L40S] == [L40S, L40S, "48", "yes", "2", "12", "3"]
    assert ledger_objects["nvidia-a10"][-3:] == ["0", "0", "0"]
    at = lines.index(next(line for line in lines if line.startswith(L40S)))
    assert lines[at + 1] == "  1 node not Ready or cordoned"
    at = lines.index(next(line for line in lines if line.startswith(MIG)))
    assert lines[at + 1].startswith("  MIG 1g.18gb, ")
    assert "  nvidia.com/mig-1g.18gb: 14 of 14 free" in lines[at:]
    assert lines.index(next(line for line in lines if line.startswith("amd-mi300x"))) > at
    assert max(len(line) for line in lines if not line.startswith("  ")) <= 80


@pytest.mark.usefixtures("team")
def test_classes_that_have_nodes_or_can_have_them_are_listed(quotas: ControlPlane) -> None:
    def names() -> list[str]:
        lines = run(quotas).stdout.splitlines()
        return [
            line.split()[0] for line in lines if line.startswith(("nvidia-", "amd-")) and "family" not in line
        ]

    with_nodes = names()
    assert {L40S, MIG} <= {*with_nodes}
    assert "nvidia-a10" not in with_nodes
    assert re.search(r"and \d+ classes without nodes; --all lists them", run(quotas).stdout)

    def autoscale(classes: list[str] | None) -> None:
        rules = {"gpu-class": {"autoscaledClasses": classes}}
        accepted(quotas.client().patch(f"{POLICIES}/{POLICY}", {"spec": {"rules": rules}}))

    autoscale(["nvidia-a10"])
    assert eventually(lambda: names() == [*with_nodes, "nvidia-a10"])
    autoscale(None)


@pytest.mark.usefixtures("team")
def test_the_share_of_a_gpu_is_proposed_where_a_rule_needs_it(quotas: ControlPlane) -> None:
    def turn(mode: str | None) -> None:
        rules = {"host-resources": None if mode is None else {"mode": mode}}
        accepted(quotas.client().patch(f"{POLICIES}/{POLICY}", {"spec": {"rules": rules}}))

    proposed = "  perGPU not set; nodes have 8 CPUs and 64Gi of memory\n"
    assert proposed not in run(quotas).stdout
    turn("audit")
    assert eventually(lambda: proposed in run(quotas).stdout)
    turn(None)


@pytest.mark.usefixtures("team")
def test_a_tenant_without_rights_sees_the_catalogue_and_what_is_missing(quotas: ControlPlane) -> None:
    """Before the next one: rights that were taken away hold for some moments."""
    shown = run(quotas, "--verbose", user="engineer")

    assert shown.exit_code == 0
    assert "nvidia-t4            nvidia-t4              16  ?\n" in shown.stdout
    assert " ".join(shown.stdout.split("you may not ")[1].split()) == (
        "list gpupolicies.gpu-admission.dev, list gpuclasses.gpu-admission.dev, "
        f"list gpuresourcemappings.gpu-admission.dev, get gpuquotas.gpu-admission.dev -n {NAMESPACE}, list nodes: "
        "what depends on it is not shown"
    )


def test_a_tenant_without_nodes_sees_the_classes_that_documents_name(
    quotas: ControlPlane, team: Namespace
) -> None:
    team.let_read("engineer")
    policies = ("--verb=get,list", "--resource=gpupolicies.gpu-admission.dev")
    quotas.kubectl("create", "clusterrole", "sees-policies", *policies)
    quotas.kubectl(
        "create", "clusterrolebinding", "sees-policies", "--clusterrole=sees-policies", "--user=engineer"
    )
    try:
        assert eventually(lambda: "policy of-classes" in run(quotas, user="engineer").stdout)
        shown = run(quotas, user="engineer").stdout
        named = [line.split()[0] for line in shown.splitlines() if line.startswith("nvidia-")]
        assert named == [MIG, L40S, "nvidia-t4"]
        assert "that neither quota, policy nor document names; --all lists them" in " ".join(shown.split())
    finally:
        quotas.kubectl("delete", "clusterrole,clusterrolebinding", "sees-policies")
