"""`gpu-admission doctor` on a real installation: nothing to say where all is well, and what it could not look at said as such."""

import os
import subprocess
import sys
from datetime import UTC, datetime

from tests.cluster.controllers import ROOT, eventually
from tests.cluster.doctor.faults import MUTATING, deleted, webhook_down
from tests.cluster.doctor.installation import Installation
from tests.controlplane.gpuquota import api_client
from tests.controlplane.webhook import NAMESPACE
from webhook.tools.doctor.checks import CHECKS
from webhook.tools.doctor.cluster import InstalledCluster, Names
from webhook.tools.status.reading import read_installation
from webhook.tools.status.report import Health

# ---- all is well


def test_a_healthy_installation_gives_nothing_to_say(installation: Installation) -> None:
    status, printed = installation.text()

    assert (status, printed) == (0, f"{len(CHECKS)} checks, no findings\n")


def test_json_names_every_check(installation: Installation) -> None:
    status, document = installation.run()

    assert (status, document["healthy"]) == (0, True)
    assert [check["id"] for check in document["checks"]] == [check.id for check in CHECKS]


def test_status_shows_the_parts_of_a_healthy_installation(installation: Installation) -> None:
    names = Names(namespace=NAMESPACE)
    cluster = InstalledCluster(api_client(installation.plane), names, config=None, now=datetime.now(UTC))
    found = read_installation(cluster)

    assert (found.findings, found.not_checked) == ((), ())
    webhook, controller, canary, certificate = found.parts
    # The webhook of this test is a process without a Deployment, and its certificate is in files.
    assert (webhook.name, webhook.health) == ("webhook", Health.UNKNOWN)
    assert (controller.health, controller.text.endswith(" leads")) == (Health.OK, True)
    assert (canary.health, canary.text) == (Health.OK, "a GPU pod passes both webhooks on a dry run")
    assert (certificate.health, certificate.text) == (Health.OK, "API servers trust what is served")


# ---- what cannot be looked at


def test_who_may_do_nothing_is_told_what_is_missing_and_not_that_all_is_well(
    installation: Installation,
) -> None:
    status, document = installation.run(user="engineer")
    told = {check["id"]: " ".join(check["notChecked"]) for check in document["checks"]}

    assert (status, document["healthy"]) == (1, False)
    assert [check["findings"] for check in document["checks"] if check["findings"]] == []
    assert told["untainted-nodes"] == "you may not list nodes"
    assert "you may not get mutatingwebhookconfigurations.admissionregistration.k8s.io" in told["entries"]
    assert told["service-accounts"] == "you may not create subjectaccessreviews.authorization.k8s.io"
    assert 'User "engineer" cannot create resource "pods"' in told["canary"]
    assert 'cannot get resource "leases"' in told["controller"]
    assert told["kubernetes-version"] == ""


def test_a_tenant_reads_one_line_about_what_needs_an_administrator(installation: Installation) -> None:
    _, document = installation.run(user="engineer")
    missed = sum(bool(check["notChecked"]) for check in document["checks"])

    assert 20 < missed < len(CHECKS), "anybody may read the API server's version"
    assert installation.text(user="engineer") == (
        1,
        f"not checked: {missed} checks need rights of an administrator (-o json says which)\n"
        f"{len(CHECKS)} checks, no findings, {missed} not checked, or not in full\n",
    )


def test_a_certificate_out_of_reach_without_secret_is_not_called_fine(installation: Installation) -> None:
    with webhook_down(installation):
        _, document = installation.run()
    (certificate,) = [check for check in document["checks"] if check["id"] == "certificate"]

    assert certificate["notChecked"] == [
        f"{installation.webhook.address}:443 is not reachable from here, and "
        "Secret/gpu-admission-certificates in gpu-admission does not exist"
    ]
    assert eventually(lambda: installation.run()[1]["healthy"])


def test_a_canary_namespace_that_is_not_there(installation: Installation) -> None:
    findings = installation.findings("--canary-namespace", "nowhere")

    assert findings["canary-namespace"]["remedy"] == "kubectl create namespace nowhere"


def test_the_command_itself_prints_text_that_fits_into_80_columns(installation: Installation) -> None:
    with deleted(MUTATING)(installation):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "webhook", "doctor"),
                *("--kubeconfig", installation.plane.kubeconfig()),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "80"},
        )

    assert (done.returncode, done.stderr) == (1, "")
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "[configuration-missing]" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"{len(CHECKS)} checks, ")
    assert eventually(lambda: installation.run()[1]["healthy"])
