"""The one file of `make plugin`, run by the real kubectl, and krew's manifest of it."""

import hashlib
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.controlplane import ControlPlaneUnavailable, locate
from tests.deploy.plugin import BINARY, COMPLETION, archive, build, manifest, target

ADDRESS = "https://releases.example.com/v0.1.0"


def test_the_manifest_names_what_a_release_has(tmp_path: Path) -> None:
    binary = tmp_path / BINARY
    binary.write_text("#!/bin/sh\n")
    packed = archive(binary)
    (found,) = manifest([({"os": "linux", "arch": "amd64"}, packed)], ADDRESS)["spec"]["platforms"]

    with tarfile.open(packed) as unpacked:
        assert unpacked.getnames() == [found["bin"], "kubectl_complete-gpu_admission"]
    assert found == {
        "selector": {"matchLabels": {"os": "linux", "arch": "amd64"}},
        "uri": f"{ADDRESS}/{packed.name}",
        "sha256": hashlib.sha256(packed.read_bytes()).hexdigest(),
        "bin": "kubectl-gpu_admission",
    }


def test_krew_takes_the_values_of_the_manifest(tmp_path: Path) -> None:
    """The rules of `ValidatePlugin` in `internal/index/validation` of sigs.k8s.io/krew, for what we write."""
    (tmp_path / "a.tar.gz").write_bytes(b"")
    found = manifest([(target(), tmp_path / "a.tar.gz")], ADDRESS)
    spec = found["spec"]

    assert (found["apiVersion"], found["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", found["metadata"]["name"])
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert "\n" not in spec["shortDescription"]
    assert len(spec["shortDescription"]) <= 50
    assert all(re.fullmatch("[0-9a-f]{64}", each["sha256"]) for each in spec["platforms"])


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plugin"))


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_kubectl_runs_the_one_file(plugin: Path, tmp_path: Path) -> None:
    try:
        binaries = locate()
    except ControlPlaneUnavailable as unavailable:
        pytest.skip(str(unavailable))
    path = os.pathsep.join(map(str, (plugin.parent, COMPLETION.parent, os.environ["PATH"])))
    environment = {**os.environ, "PATH": path, "PEX_ROOT": str(tmp_path / "pex"), "HOME": str(tmp_path)}

    def kubectl(*arguments: str) -> str:
        done = subprocess.run(
            [binaries / "kubectl", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert kubectl("gpu-admission", "--version").startswith("gpu-admission, version ")
    assert kubectl("gpu-admission", "--help").startswith("Usage: kubectl gpu-admission ")
    assert "nvidia-t4 " in kubectl("gpu-admission", "classes", "--standalone")
    assert kubectl("__complete", "gpu-admission", "class") == "classes\n:4\n"
