"""`gpu-admission doctor` on a real installation: nothing to say where all is well, and what it could not look at said as such."""

from datetime import UTC, datetime

from tests.cluster.doctor.installation import Installation
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import NAMESPACE
from webhook.cluster.objects import InstallationNames
from webhook.tools.doctor.checks import CHECKS
from webhook.tools.installed_cluster import InstalledCluster
from webhook.tools.status.reading import read_installation
from webhook.tools.status.report import Health


def test_a_healthy_installation_gives_nothing_to_say(installation: Installation) -> None:
    assert installation.text() == (0, f"{len(CHECKS)} checks, no findings\n")
    status, document = installation.run()
    assert (status, document["healthy"]) == (0, True)
    assert [check["id"] for check in document["checks"]] == [check.id for check in CHECKS]


def test_status_shows_the_parts_of_a_healthy_installation(installation: Installation) -> None:
    names = InstallationNames(namespace=NAMESPACE)
    cluster = InstalledCluster(api_client(installation.plane), names, config=None, now=datetime.now(UTC))
    found = read_installation(cluster)

    assert (found.findings, found.not_checked) == ((), ())
    webhook, controller, canary, certificate = found.parts
    # The webhook of this test is a process without a Deployment, and its certificate is in files.
    assert (webhook.name, webhook.health) == ("webhook", Health.UNKNOWN)
    assert (controller.health, controller.text.endswith(" leads")) == (Health.OK, True)
    assert (canary.health, canary.text) == (Health.OK, "a GPU pod passes both webhooks on a dry run")
    assert (certificate.health, certificate.text) == (Health.OK, "API servers trust what is served")


def test_who_may_do_nothing_is_told_what_is_missing_and_not_that_all_is_well(
    installation: Installation,
) -> None:
    status, document = installation.run(user="engineer")
    reported = {check["id"]: " ".join(check["notChecked"]) for check in document["checks"]}

    assert (status, document["healthy"]) == (1, False)
    assert [check["findings"] for check in document["checks"] if check["findings"]] == []
    assert reported["untainted-nodes"] == "you may not list nodes"
    assert "you may not get mutatingwebhookconfigurations.admissionregistration.k8s.io" in reported["entries"]
    assert reported["service-accounts"] == "you may not create subjectaccessreviews.authorization.k8s.io"
    assert 'User "engineer" cannot create resource "pods"' in reported["canary"]
    assert reported["controller"] == "", "every user may read the Lease"
    assert reported["kubernetes-version"] == ""


def test_a_tenant_reads_one_line_about_what_needs_an_administrator(installation: Installation) -> None:
    _, document = installation.run(user="engineer")
    missed = sum(bool(check["notChecked"]) for check in document["checks"])

    assert 20 < missed < len(CHECKS), "anybody may read the API server's version"
    assert installation.text(user="engineer") == (
        1,
        f"not checked: {missed} checks need rights of an administrator (-o json says which)\n"
        f"{len(CHECKS)} checks, no findings, {missed} not checked, or not in full\n",
    )


def test_a_canary_namespace_that_is_not_there(installation: Installation) -> None:
    findings = installation.findings("--canary-namespace", "nowhere")

    assert findings["canary-namespace"]["remedy"] == "kubectl create namespace nowhere"
