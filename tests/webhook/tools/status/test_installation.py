"""The installation as `status` shows it, by the checks of doctor."""

from base64 import b64encode
from datetime import timedelta
from pathlib import Path

import pytest

from certs.issue import issue_authority
from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.objects import LEADS
from tests.webhook.tools.installed_clusters import NOW, cluster_of
from webhook.tools.doctor.check import CheckResult
from webhook.tools.doctor.checks import CHECKS
from webhook.tools.status import reading
from webhook.tools.status.reading import read_installation
from webhook.tools.status.report import Health


def test_a_cluster_without_an_installation_has_one_finding(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {}) as cluster:
        found = read_installation(cluster)

    assert [finding.id for finding in found.findings] == ["not-installed"]
    assert found.not_checked == ()
    (part,) = found.parts
    assert (part.name, part.health) == ("webhook", Health.FAILED)
    assert part.text == (
        "gpu-admission is not installed in this cluster: no webhook configuration, and no Service in gpu-admission: "
        "no policy and no quota has an effect"
    )


IN_NAMESPACE = "/api/v1/namespaces/gpu-admission"
DEPLOYMENT = "/apis/apps/v1/namespaces/gpu-admission/deployments/gpu-admission-webhook"
CERTIFICATE = issue_authority(common_name="ours", now=NOW, lifetime=timedelta(days=365))
SECRET = {"metadata": {}, "data": {"tls.crt": b64encode(CERTIFICATE.certificate_pem()).decode()}}


def parts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, objects: JSON, ready: int = 2
) -> dict[str, tuple[Health, str]]:
    """Return the parts of an installation with two replicas of the webhook, in which no check finds anything."""
    monkeypatch.setattr(reading, "run_checks", lambda _cluster: map(CheckResult, CHECKS))
    spec = {"replicas": 2, "template": {"spec": {"containers": [{"image": "gpu-admission:1"}]}}}
    webhook = {DEPLOYMENT: {"spec": spec, "status": {"readyReplicas": ready}}}
    with cluster_of(folder, {**webhook, **LEADS, **objects}) as cluster:
        return {part.name: (part.health, part.text) for part in read_installation(cluster).parts}


def test_an_installation_in_which_nothing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {f"{IN_NAMESPACE}/secrets/gpu-admission-certificates": SECRET}

    assert parts(tmp_path, monkeypatch, secret) == {
        "webhook": (Health.OK, "2 of 2 replicas ready, gpu-admission:1"),
        "controller": (Health.OK, "a leads"),
        "canary": (Health.OK, "a GPU pod passes both webhooks on a dry run"),
        "certificate": (
            Health.OK,
            "API servers trust what is served; the Secret's is valid until 2028-01-31",
        ),
    }


@cases(
    ("objects", "ready", "part", "want"),
    no_replica=({}, 0, "webhook", (Health.FAILED, "0 of 2 replicas ready, gpu-admission:1")),
    no_deployment=(
        {DEPLOYMENT: None},
        2,
        "webhook",
        (Health.UNKNOWN, "Deployment/gpu-admission-webhook in gpu-admission does not exist"),
    ),
    a_certificate_in_files=({}, 2, "certificate", (Health.OK, "API servers trust what is served")),
)
def test_a_part(
    objects: JSON,
    ready: int,
    part: str,
    want: tuple[Health, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parts(tmp_path, monkeypatch, objects, ready)[part] == want
