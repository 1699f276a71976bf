"""Helm, by which the manifests of deploy/ are rendered and tried: built once from its Go module, as the control plane is."""

import shutil
import subprocess
from pathlib import Path
from typing import TextIO

from tests.controlplane.build import HERE, ControlPlaneUnavailable, GoModule, build_once, folder_for

VERSION = "4.3.1"
PACKAGES = {"helm": "helm.sh/helm/v4/cmd/helm"}
COMMAND = "python -m tests.controlplane build-helm"


class HelmFailed(RuntimeError):  # noqa: N818 - pairs with ControlPlaneFailed
    """Helm refused; the message is what it said."""


def locate() -> Path:
    """Return the binary. Raises ControlPlaneUnavailable when it has not been built."""
    helm = _folder() / "helm"
    if helm.exists():
        return helm
    without_go = "" if shutil.which("go") else "; no `go` on PATH here"
    raise ControlPlaneUnavailable(
        f"no Helm {VERSION}: build it once with `{COMMAND}` (3 minutes on two cores, needs Go{without_go})"
    )


def build(out: TextIO) -> Path:
    """Return the binary after building it if it is not there. Raises ControlPlaneUnavailable when that cannot be."""
    go = shutil.which("go")
    if not _folder().is_dir():
        if go is None:
            raise ControlPlaneUnavailable(
                f"building Helm {VERSION} needs a Go toolchain on PATH (https://go.dev/dl)"
            )
        module = GoModule(go, HERE / f"helm-{VERSION}", PACKAGES, "-s -w")
        build_once(f"Helm {VERSION}", _folder(), module, out)
    return locate()


def run(*arguments: str | Path) -> str:
    """Return what `helm` printed. Raises HelmFailed."""
    done = subprocess.run([locate(), *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise HelmFailed(done.stdout + done.stderr)
    return done.stdout


def _folder() -> Path:
    return folder_for(f"helm-{VERSION}")
