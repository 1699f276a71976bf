"""Where the oracle's binaries come from: built once from Go files beside this one, with the modules of the control plane."""

import hashlib
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TextIO

from tests.controlplane.build import HERE, ControlPlaneUnavailable, GoModule, build_once, folder_for

VERSION = "1.37.2"
"""What the control plane is built of by default. Other versions of Kubernetes do not compile with the programs."""
COMMAND = "python -m tests.controlplane build-oracle"


class Program(NamedTuple):
    """A binary, and the folder of its Go files."""

    name: str
    sources: Path

    def locate(self) -> Path:
        """Return the binary. Raises ControlPlaneUnavailable when it has not been built, or cannot be for this version."""
        binary = self._folder() / self.name
        if binary.exists():
            return binary
        without_go = "" if shutil.which("go") else "; no `go` on PATH here"
        raise ControlPlaneUnavailable(
            f"no {self.name} of Kubernetes {VERSION}: build it once with `{COMMAND}` (a minute on two cores after the "
            f"control plane, needs Go{without_go})"
        )

    def build(self, out: TextIO) -> Path:
        """Return the binary after building it if it is not there yet. Raises ControlPlaneUnavailable when that cannot be."""
        go, folder = shutil.which("go"), self._folder()
        if not folder.is_dir():
            if go is None:
                raise ControlPlaneUnavailable(
                    "building the oracle needs a Go toolchain on PATH (https://go.dev/dl)"
                )
            with TemporaryDirectory() as module:
                for each in (*self._files(), *(HERE / f"kubernetes-{VERSION}").glob("go.*")):
                    shutil.copy(each, module)
                what = f"the {self.name} of Kubernetes {VERSION}"
                build_once(what, folder, GoModule(go, Path(module), {self.name: "."}, "-s -w"), out)
        return self.locate()

    def _files(self) -> list[Path]:
        return sorted(self.sources.glob("*.go"))

    def _folder(self) -> Path:
        source = hashlib.sha256(b"".join(each.read_bytes() for each in self._files())).hexdigest()
        return folder_for(f"{self.name}-{VERSION}-{source[:12]}")


ORACLE = Program("oracle", Path(__file__).parent)
SELECTORS = Program("selectors", Path(__file__).parent / "selectors")
