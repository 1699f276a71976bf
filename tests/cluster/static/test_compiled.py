"""Before files are written, the API server compiles what is in them on a dry run: nothing is written that it would refuse."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.static.files import export
from tests.controlplane import ControlPlane, accepted, minor_version
from tests.controlplane.gpuquota import install_kinds
from webhook.configuration.documents import Document

MAPPINGS = "/apis/gpu-admission.dev/v1alpha1/gpuresourcemappings"
MAX_PATTERNS = 500
"""As many as a GPUResourceMapping may have."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        install_kinds(plane.client(), "gpupolicies", "gpuclasses", "gpuresourcemappings")
        yield plane


@pytest.mark.skipif(minor_version() < 37, reason="API servers read policies from files since 1.37")
def test_policies_that_grew_beyond_what_cel_may_be(plane: ControlPlane, tmp_path: Path) -> None:
    domain = ".".join(["accelerators"] * 15)
    patterns = [{"pattern": f"{domain}/r{number}", "measure": "devices"} for number in range(MAX_PATTERNS)]
    mapping = Document("GPUResourceMapping", "long", {"resources": patterns})
    accepted(plane.client().post(MAPPINGS, mapping.data))

    result = export("--kubeconfig", plane.kubeconfig(), "--static", tmp_path / "made")

    accepted(plane.client().delete(f"{MAPPINGS}/long"))
    assert (result.exit_code, (tmp_path / "made").exists()) == (2, False), result.output
    assert "MutatingAdmissionPolicy/gpu-admission.built-in.gpu-toleration: " in result.stderr
    assert "expression code point size exceeds limit" in result.stderr
    assert result.stderr.endswith("; nothing is written\n")


@pytest.mark.skipif(minor_version() >= 37, reason="these API servers read policies from files")
def test_an_older_api_server(plane: ControlPlane, tmp_path: Path) -> None:
    result = export("--kubeconfig", plane.kubeconfig(), "--static", tmp_path / "made")

    assert (result.exit_code, (tmp_path / "made").exists()) == (2, False)
    assert result.stderr.endswith(
        f"error: the API server has version 1.{minor_version()}: it must be 1.37 or newer to read policies from files\n"
    )
