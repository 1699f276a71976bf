"""`make release`: the files of a release, the same bytes twice, and what it says that only the owner can do."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.cases import cases
from tests.deploy.release import ROOT, SUMS, CannotRelease, man_page, notes

ADDRESS = "https://releases.example.com/v0.1.0"
CHANGES = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.1.0\n\n- first\n"


@cases(
    ("version", "expected"),
    its_own_section=("0.1.0", "# gpu-admission 0.1.0\n\n- first\n"),
    what_is_not_released_yet=("0.2.0", "# gpu-admission 0.2.0\n\n- new\n"),
)
def test_release_notes_are_of_the_changelog(version: str, expected: str) -> None:
    assert notes(CHANGES, version) == expected


def test_without_a_section_there_are_no_release_notes() -> None:
    with pytest.raises(
        CannotRelease, match=r"^CHANGELOG.md has no section for 1.0.0, and none that is unreleased$"
    ):
        notes("# Changelog\n\n## 0.1.0\n\n- first\n", "1.0.0")


def test_man_page_has_every_command() -> None:
    page = man_page("0.1.0")

    assert page.startswith(
        '.TH GPU-ADMISSION 1 "" "gpu-admission 0.1.0"\n.SH NAME\ngpu-admission \\- Make every GPU pod'
    )
    for command in ("CHECK", "DOCTOR", "SERVE"):
        assert f"\n.SH GPU-ADMISSION {command}\n.nf\n" in page


def released(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    command = [sys.executable, "-m", "tests.deploy.release", *arguments]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)


def cloned(folder: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_a_release_is_whole_and_twice_the_same_bytes(tmp_path: Path) -> None:
    first, second = cloned(tmp_path / "first"), cloned(tmp_path / "second")
    done = released(first, ADDRESS)
    assert done.returncode == 0, done.stderr
    again = released(second, ADDRESS)
    assert again.returncode == 0, again.stderr
    files = {path.name: path.read_bytes() for path in (first / "dist").iterdir()}

    assert {path.name: path.read_bytes() for path in (second / "dist").iterdir()} == files
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=first, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert f"gpu-admission, version 0.1.0, commit {commit}\n" in done.stdout
    (plugin,) = (name for name in files if name.startswith("kubectl-gpu_admission-"))
    assert files.keys() == {
        *("gpu_admission-0.1.0-py3-none-any.whl", "gpu_admission-0.1.0.tar.gz"),
        *("gpu-admission-0.1.0.tgz", "gpu-admission-static-0.1.0.tar.gz"),
        *(plugin, "gpu-admission.yaml"),
        *("gpu-admission-0.1.0.cdx.json", "gpu-admission-fetcher-0.1.0.cdx.json"),
        *("gpu-admission.1", "gpu-admission.bash", "gpu-admission.zsh", "gpu-admission.fish"),
        *("RELEASE_NOTES.md", SUMS),
    }
    assert files[SUMS].decode().splitlines() == [
        f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in sorted(files.items()) if name != SUMS
    ]
    sbom = json.loads(files["gpu-admission-0.1.0.cdx.json"])
    assert sbom["metadata"]["component"]["name"] == "gpu-admission"
    flask = next(part for part in sbom["components"] if part["name"] == "flask")
    assert flask["purl"].startswith("pkg:pypi/flask@")
    with tarfile.open(first / "dist" / "gpu-admission-0.1.0.tgz") as chart:
        assert "gpu-admission/Chart.yaml" in chart.getnames()
    for line in ("choose a licence: there is no LICENSE", f"git tag --sign v0.1.0 {commit}", "is not signed"):
        assert line in done.stdout

    wheel = next((first / "dist").glob("*.whl"))
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", venv], check=True)
    subprocess.run([venv / "bin/pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    packages = next(Path(sys.prefix, "lib").glob("python*/site-packages"))
    environment = {"PYTHONPATH": str(packages), "PATH": os.environ["PATH"]}
    said = subprocess.run(
        [venv / "bin/gpu-admission", "--version"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == f"gpu-admission, version 0.1.0, commit {commit}\n"


@pytest.mark.slow
@pytest.mark.processes
def test_changes_that_no_commit_has_are_not_released(tmp_path: Path) -> None:
    clone = cloned(tmp_path / "clone")
    (clone / "README.md").write_text("changed\n")
    done = released(clone)

    assert done.returncode == 1
    assert done.stderr == (
        "commit or remove what is changed, so that a commit names the release:\nM README.md\n"
    )
