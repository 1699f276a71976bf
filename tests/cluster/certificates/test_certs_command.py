"""`gpu-admission certs` on a real API server."""

from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.cluster.certificates.damage import damage_leaf, other_authority, reconciler
from tests.controlplane import ControlPlane
from tests.controlplane.certificates import NAME, SECRET, Installation, within
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import CONFIGURATIONS, NAMESPACE, set_bundles
from webhook.cluster.objects import InstallationNames
from webhook.commands import main
from webhook.tools.doctor.check import run_check
from webhook.tools.doctor.checks import certificates, configurations
from webhook.tools.installed_cluster import InstalledCluster


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
    assert found(running) == set()

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


def test_check_finds_what_is_missing_and_what_is_damaged(installation: Installation) -> None:
    """What it says of each: tests/webhook/tools/doctor/test_certificates.py."""
    assert found(installation) == {"ca-bundle-missing", "secret-missing"}
    assert certs(installation, "show").exit_code == 1
    assert certs(installation, "rotate").exit_code == 1

    own = reconciler(api_client(installation.plane))
    while own.reconcile().written:
        pass
    assert found(installation) == set()
    set_bundles(installation.client, other_authority())
    damage_leaf(installation)
    installation.plane.kubectl("delete", CONFIGURATIONS[0], NAME)
    assert found(installation) == {"configuration-missing", "certificate-unusable", "ca-bundle-differs"}
    pending = certs(installation, "rotate", "--wait", "--timeout-seconds", "1")
    assert pending.exit_code == 1
    assert "waiting for a controller" in pending.output
    assert "is a controller running with --certificate-secret?" in pending.output


def found(installation: Installation) -> set[str]:
    """Return the ids of what doctor finds in both configurations and the certificates."""
    names = InstallationNames(namespace=NAMESPACE, secret=SECRET)
    cluster = InstalledCluster(api_client(installation.plane), names, config=None, now=datetime.now(UTC))
    results = [run_check(each, cluster) for each in (configurations.CHECKS[0], *certificates.CHECKS[:3])]
    return {each.id for result in results for each in result.findings}
