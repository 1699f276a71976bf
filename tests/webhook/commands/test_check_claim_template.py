"""`gpu-admission check` on a ResourceClaimTemplate, with the quota of its namespace in the configuration."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from webhook.commands.check import check

QUOTA = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: team}
spec: {hard: {gpus: "2"}}
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: cards, namespace: NAMESPACE}
spec:
  spec:
    devices:
      requests:
      - {name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 3}}
"""


@pytest.mark.parametrize(
    ("namespace", "warns"),
    [pytest.param("team", True, id="never-fits"), pytest.param("other", False, id="no-quota")],
)
def test_a_template_that_never_fits_is_reported_with_its_line(
    tmp_path: Path, namespace: str, warns: bool
) -> None:
    file, config = tmp_path / "template.yaml", tmp_path / "config"
    config.mkdir()
    (config / "quota.yaml").write_text(QUOTA)
    file.write_text(TEMPLATE.replace("NAMESPACE", namespace))

    done = CliRunner().invoke(check, ["-f", str(file), "--config", str(config)])

    assert done.exit_code == 0
    reported = " ".join(done.output.split())
    assert ("requested: gpus=3, limited: gpus=2" in reported) is warns
    assert (
        f"{file}:8: warning: spec.spec.devices.requests: exceeds the quota, so no claim can be made"
        in reported
    ) is warns
    assert "1 object: 0 refused, 0 would change, 1 ok" in reported
