"""Where the oracle's binary comes from: built once from the Go files beside this one, with the modules of the control plane."""

import hashlib
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from tests.controlplane.build import HERE, ControlPlaneUnavailable, GoModule, build_once, folder_for

VERSION = "1.37.2"
"""What the control plane is built of by default. Other versions of Kubernetes do not compile with the program."""
NAME = "oracle"
SOURCES = sorted(Path(__file__).parent.glob("*.go"))
COMMAND = "python -m tests.controlplane build-oracle"


def locate() -> Path:
    """Return the binary. Raises ControlPlaneUnavailable when it has not been built, or cannot be for this version."""
    binary = _folder() / NAME
    if binary.exists():
        return binary
    without_go = "" if shutil.which("go") else "; no `go` on PATH here"
    raise ControlPlaneUnavailable(
        f"no oracle of Kubernetes {VERSION}: build it once with `{COMMAND}` (a minute on two cores after the "
        f"control plane, needs Go{without_go})"
    )


def build(out: TextIO) -> Path:
    """Return the binary after building it if it is not there yet. Raises ControlPlaneUnavailable when that cannot be."""
    go, folder = shutil.which("go"), _folder()
    if not folder.is_dir():
        if go is None:
            raise ControlPlaneUnavailable(
                "building the oracle needs a Go toolchain on PATH (https://go.dev/dl)"
            )
        with TemporaryDirectory() as module:
            for each in (*SOURCES, *(HERE / f"kubernetes-{VERSION}").glob("go.*")):
                shutil.copy(each, module)
            what = f"the oracle of Kubernetes {VERSION}"
            build_once(what, folder, GoModule(go, Path(module), {NAME: "."}, "-s -w"), out)
    return locate()


def _folder() -> Path:
    source = hashlib.sha256(b"".join(each.read_bytes() for each in SOURCES)).hexdigest()
    return folder_for(f"oracle-{VERSION}-{source[:12]}")
