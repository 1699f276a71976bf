"""Building the binaries, with a `go` that writes a file and logs its call: once, whole, or explained."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import cases
from tests.controlplane import ControlPlaneUnavailable, build, locate

ROOT = Path(__file__).parents[2]
COMMANDS = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd"]
CACHE = "cache/gpu-admission/kubernetes-1.37.2-linux-amd64"
# Called as: go build <flags> -ldflags <flags> -o <file> <package>
GO = """#!/bin/sh
echo "$GOTOOLCHAIN" >> "$CALLS"
sleep 0.1
if [ -n "$FAIL" ]; then echo "go: $FAIL" >&2; exit 1; fi
for output; do [ "$previous" = -o ] && break; previous=$output; done
printf '#!/bin/sh\\n' > "$output" && chmod +x "$output"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an empty cache, and `go` on PATH writing its calls to calls.txt."""
    go = tmp_path / "bin/go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:{os.defpath}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls.txt"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for name in ("KUBEBUILDER_ASSETS", "K8S", "FAIL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def calls(machine: Path) -> list[str]:
    return (machine / "calls.txt").read_text().splitlines()


def test_builds_once_with_a_line_per_binary(machine: Path) -> None:
    out = io.StringIO()

    folder = build(out)

    assert folder == machine / CACHE == locate()
    assert sorted(path.name for path in folder.iterdir()) == sorted(COMMANDS)
    lines = out.getvalue().splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [
        [f"[{n}/5]", name] for n, name in enumerate(COMMANDS, 1)
    ]
    assert all(len(line) < 80 for line in lines if not line.startswith("/"))
    assert "\r" not in out.getvalue()
    assert build(io.StringIO()) == folder
    assert calls(machine) == ["local"] * 5  # never another toolchain from the network


@cases(
    ("requested", "want"),
    newest_of_a_minor_version=("1.35", "kubernetes-1.35.4-linux-amd64"),
    whole_version=("1.35.4", "kubernetes-1.35.4-linux-amd64"),
    default=("", "kubernetes-1.37.2-linux-amd64"),
)
@pytest.mark.usefixtures("machine")
def test_versions_are_cached_apart(monkeypatch: pytest.MonkeyPatch, requested: str, want: str) -> None:
    monkeypatch.setenv("K8S", requested)

    assert build(io.StringIO()).name == want


def test_leftovers_of_a_killed_build_are_not_taken_for_binaries(machine: Path) -> None:
    unfinished = machine / f"{CACHE}.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "kube-apiserver").write_text("half")

    with pytest.raises(ControlPlaneUnavailable):
        locate()
    assert (build(io.StringIO()) / "kube-apiserver").read_text() == "#!/bin/sh\n"
    assert not unfinished.exists()


def test_failed_build_shows_what_go_said(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "k8s.io/kubernetes@v1.37.2: 403 Forbidden")

    with pytest.raises(
        ControlPlaneUnavailable,
        match=r"`go build k8s.io/kubernetes/cmd/kube-apiserver` in .*:\ngo: .*403 Forbidden",
    ):
        build(io.StringIO())
    assert not (machine / CACHE).exists()


@cases(
    ("environment", "want"),
    version_without_module=({"K8S": "1.2.3"}, "1.2.3/go.mod; versions that have one: 1.35.4, 1.36.3, 1.37.2"),
    minor_without_module=({"K8S": "1.2"}, "versions that have one: 1.35.4, 1.36.3, 1.37.2"),
    not_a_version=({"K8S": "../../etc"}, "K8S=../../etc: write a version such as 1.37"),
    no_go=({"PATH": "/nowhere"}, "needs a Go toolchain on PATH"),
    assets_incomplete=({"KUBEBUILDER_ASSETS": "/"}, "/ lacks etcd, kube-apiserver, kubectl"),
)
@pytest.mark.usefixtures("machine")
def test_why_nothing_can_be_built(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], want: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ControlPlaneUnavailable) as refusal:
        build(io.StringIO())
    assert want in str(refusal.value)


@cases(
    ("required", "want"),
    skipped_for_one_reason=("0", "SKIPPED [5] tests/unavailable.py:"),
    demanded=("1", "GPU_ADMISSION_REQUIRE_CLUSTER=1: no Kubernetes 1.37.2 binaries"),
)
def test_cluster_tests_without_binaries(machine: Path, required: str, want: str) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(machine), "GPU_ADMISSION_REQUIRE_CLUSTER": required}
    environment.pop("PYTEST_ADDOPTS", None)  # the summary is counted
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/cluster/test_controlplane.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert want in done.stdout
    assert done.returncode == int(required)
    assert done.stdout.count("SKIPPED") == 1 - int(required)
