"""The oracle's binary: of the control plane's version, and skipped for one reason where it is not built."""

import os
from pathlib import Path

import pytest

from tests.controlplane import ControlPlaneUnavailable
from tests.controlplane.build import wanted_version
from tests.oracle import binary


def test_is_of_the_version_of_the_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("K8S", raising=False)

    assert wanted_version() == binary.VERSION


def test_without_it_the_reason_says_how_to_build_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", os.devnull)

    with pytest.raises(ControlPlaneUnavailable) as unavailable:
        binary.ORACLE.locate()
    assert str(unavailable.value) == (
        "no oracle of Kubernetes 1.37.2: build it once with `python -m tests.controlplane build-oracle` (a minute on two cores "
        "after the control plane, needs Go; no `go` on PATH here)"
    )
