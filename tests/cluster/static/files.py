"""Files of `gpu-admission export --static`, and an API server that reads them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from tests.controlplane import ControlPlane
from webhook.commands import main
from webhook.tools.export.static import MOUNTED_AT

POLICY = """
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUPolicy
metadata: {name: default}
spec:
  rules:
    gpu-requests: {maxPerPod: 8}
    gpu-isolation: {mode: enforce}
"""
GUARDED = ("--release-account", "release", "--break-glass-group", "breakers")
CONTROLLER = "system:serviceaccount:gpu-admission:gpu-admission-controller"
RELOADED_WITHIN = 90  # seconds; it looks once a minute if it misses a change
API_SERVER_ITSELF = "system:apiserver"
CA_INJECTOR = "system:serviceaccount:cert-manager:cert-manager-cainjector"


def export(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, arguments)])


def written(folder: Path, policy: str = POLICY, guarded: tuple[str, ...] = GUARDED) -> Path:
    """Return a directory with the files of the policy, as a control plane node has it at MOUNTED_AT."""
    (folder / "documents").mkdir(exist_ok=True)
    (folder / "documents/policy.yaml").write_text(policy)
    made = export("--config", folder / "documents", "--static", folder / "static", *guarded)
    assert made.exit_code == 0, made.output
    admission = folder / "static/admission.yaml"
    admission.write_text(admission.read_text().replace(MOUNTED_AT, str(folder / "static")))
    return folder / "static"


@contextmanager
def reading(directory: Path) -> Iterator[ControlPlane]:
    """Run an API server that reads the directory; cluster-admins are `admin`, `breaker`, `release` and our service accounts."""
    plane = ControlPlane(apiserver_args=[f"--admission-control-config-file={directory}/admission.yaml"])
    plane.add_user("release", groups=["system:masters"])
    plane.add_user("breaker", groups=["system:masters", "breakers"])
    for account in (CONTROLLER, CA_INJECTOR, API_SERVER_ITSELF):
        plane.add_user(account, groups=["system:masters"])
    with plane:
        yield plane


def series(plane: ControlPlane, name: str) -> list[str]:
    """Return the lines of a metric of the API server, below its usual prefix."""
    text = plane.client().get("/metrics")[1]
    prefix = f"apiserver_manifest_admission_config_controller_{name}"
    return [line for line in text.splitlines() if line.startswith(prefix)]
