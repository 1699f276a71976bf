"""Installations as a scripted API server shows them: objects by their path, and nothing else is there."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from tests.webhook.cluster.apiserver import Answer, ApiServer, Request, answering
from webhook.cluster.objects import InstallationNames
from webhook.tools.doctor.check import CheckResult, run_check
from webhook.tools.doctor.checks import CHECKS
from webhook.tools.installed_cluster import InstalledCluster

BY_ID = {check.id: check for check in CHECKS}
NOW = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)


@contextmanager
def cluster_of(
    folder: Path,
    objects: Mapping[str, Any],
    *,
    denied: Collection[str] = (),
    now: datetime = NOW,
    config: Path | None = None,
) -> Iterator[InstalledCluster]:
    """Serve the objects; a list is a collection. Everything is allowed but what reads as `denied` does: `list nodes`."""

    def answer(request: Request) -> Answer:
        if request.path.startswith("/apis/authorization.k8s.io/"):
            requested = msgspec.json.decode(request.body)["spec"]["resourceAttributes"]
            allowed = f"{requested['verb']} {requested['resource']}" not in denied
            return Answer(json.dumps({"status": {"allowed": allowed}}).encode(), 201)
        return answering(objects)(request)

    with ApiServer(folder, answer) as server:
        yield InstalledCluster(server.client(), InstallationNames(), config=config, now=now)


def checked(check: str, objects: Mapping[str, Any], folder: Path, **more: Any) -> CheckResult:
    with cluster_of(folder, objects, **more) as cluster:
        return run_check(BY_ID[check], cluster)


def assert_found(check: str, objects: Mapping[str, Any], want: Collection[str], folder: Path) -> None:
    """Compare the findings, each `id: object message`, and a second line if the remedy matters; nothing stays unchecked."""
    result = checked(check, objects, folder)
    assert result.not_checked == ()
    assert [f"{each.id}: {each.object} {each.message}" for each in result.findings] == [
        text.partition("\n")[0] for text in want
    ]
    for finding, expected in zip(result.findings, want, strict=True):
        assert finding.remedy == (expected.partition("\n")[2] or finding.remedy or "a remedy")
