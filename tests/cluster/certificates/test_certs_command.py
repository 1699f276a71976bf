"""`gpu-admission certs` on a real API server."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.cluster.certificates.damage import bundles_set, damage_leaf, other_authority
from tests.cluster.certificates.reconcilers import reconciler
from tests.controlplane import ControlPlane
from tests.controlplane.certificates import NAME, SECRET, Installation, within
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import CONFIGURATIONS, NAMESPACE
from webhook.commands import main
from webhook.tools.doctor.check import CheckResult, run_check
from webhook.tools.doctor.checks import certificates, configurations
from webhook.tools.doctor.cluster import InstalledCluster, Names


@pytest.fixture
def installation(quotas: ControlPlane) -> Iterator[Installation]:
    """One server and one controller that wait for nothing long: no call depends on them."""
    with Installation(quotas, servers=1, reconcilers=1, propagation=0.5, retirement=1.0) as installed:
        installed.apply()
        yield installed


def certs(installation: Installation, *arguments: str) -> Result:
    kubeconfig = str(installation.plane.kubeconfig())
    return CliRunner().invoke(main, ["certs", *arguments, "--kubeconfig", kubeconfig])


def test_show_and_rotate(running: Installation) -> None:
    assert [(each.findings, each.not_checked) for each in checked(running)] == [((), ())] * 4

    shown = certs(running, "show")
    assert shown.exit_code == 0
    assert max(map(len, shown.output.splitlines())) <= 80
    assert "no rotation under way" in shown.output
    assert f"names    gpu-admission.{NAMESPACE}.svc, gpu-admission.{NAMESPACE}" in shown.output
    assert shown.output.count("carries it") == 2
    assert "PRIVATE" not in shown.output

    before = running.state()
    rotated = certs(running, "rotate", "--ca", "--wait", "--timeout-seconds", "120")
    assert rotated.exit_code == 0, rotated.output
    assert rotated.output.splitlines()[0] == "requested a new certificate authority"
    assert {"propagating", "retiring", "steady"} <= set(rotated.output.splitlines())
    within(60, running.serve_the_secrets)
    report = msgspec.json.decode(certs(running, "show", "-o", "json").output)
    assert [each["role"] for each in report["authorities"]] == ["issuing"]
    assert before.authority.certificate != running.state().authority.certificate
    assert certs(running, "rotate", "--wait", "--timeout-seconds", "120").exit_code == 0
    within(60, lambda: "gpu_admission_certificate_valid 1.0" in running.servers[0].metrics())
    metrics = running.servers[0].metrics()
    assert metrics.count("gpu_admission_certificate_not_after_timestamp_seconds{") == 2


def test_check_finds_everything_at_once(installation: Installation) -> None:
    where = f"Secret/{SECRET} in {NAMESPACE}"
    missing = checked(installation)
    *unsigned, no_secret = problems_of(missing)
    assert no_secret == f"{where} does not exist: the webhook reads its certificate from it"
    assert {problem.rpartition("]")[2] for problem in unsigned} == {
        " must have a caBundle: without one the API server trusts no certificate of ours"
    }
    assert remedies_of(missing) == {
        "run `gpu-admission controller --certificate-secret`, which repairs it within seconds; see its log"
    }
    assert reasons_of(missing) == ["no webhook has a caBundle to check with"]
    assert certs(installation, "show").exit_code == 1
    assert certs(installation, "rotate").exit_code == 1

    own = reconciler(api_client(installation.plane))
    while own.reconcile().written:
        pass
    kept = checked(installation)
    assert problems_of(kept) == []
    assert "is not reachable from here" in "".join(note for each in kept for note in each.notes)
    bundles_set(installation, other_authority())
    damage_leaf(installation)
    installation.plane.kubectl("delete", CONFIGURATIONS[0], NAME)
    damaged = checked(installation)
    assert reasons_of(damaged) == []
    gone, unusable, differs = problems_of(damaged)
    assert (
        gone == f"MutatingWebhookConfiguration/{NAME} does not exist: the API server never calls the webhook"
    )
    assert any(remedy.startswith("apply deploy/ of this version again") for remedy in remedies_of(damaged))
    assert unusable == f"{where} cannot be served: certificate: must be a certificate in PEM"
    assert differs.startswith(f"ValidatingWebhookConfiguration/{NAME} webhooks[")
    assert differs.endswith(f"] caBundle must equal ca.crt of {where}")
    pending = certs(installation, "rotate", "--wait", "--timeout-seconds", "1")
    assert pending.exit_code == 1
    assert "waiting for a controller" in pending.output
    assert "is a controller running with --certificate-secret?" in pending.output


def checked(installation: Installation) -> list[CheckResult]:
    """Return what doctor says of both configurations and the certificates."""
    names = Names(namespace=NAMESPACE, secret=SECRET)
    cluster = InstalledCluster(api_client(installation.plane), names, config=None, now=datetime.now(UTC))
    return [run_check(each, cluster) for each in (configurations.CHECKS[0], *certificates.CHECKS)]


def problems_of(results: list[CheckResult]) -> list[str]:
    return [f"{each.object} {each.message}" for result in results for each in result.findings]


def remedies_of(results: list[CheckResult]) -> set[str]:
    return {each.remedy for result in results for each in result.findings}


def reasons_of(results: list[CheckResult]) -> list[str]:
    """Return why what was not checked was not."""
    return [each.why for result in results for each in result.not_checked]
