"""The installation as `status` shows it, by the checks of doctor."""

from pathlib import Path

from tests.webhook.tools.doctor.clusters import cluster_of
from webhook.tools.status.reading import read_installation
from webhook.tools.status.report import Health


def test_a_cluster_without_an_installation_has_one_finding(tmp_path: Path) -> None:
    with cluster_of(tmp_path, {}) as cluster:
        found = read_installation(cluster)

    assert [finding.id for finding in found.findings] == ["not-installed"]
    assert found.not_checked == ()
    (part,) = found.parts
    assert (part.name, part.health) == ("webhook", Health.FAILED)
    assert part.text.startswith("gpu-admission is not installed in this cluster")
    assert part.text.endswith("no policy and no quota has an effect")
