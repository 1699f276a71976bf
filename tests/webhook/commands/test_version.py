"""What --version says: the commit that was written into the package, or that of the checkout, or that neither is known."""

import re
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from webhook import version
from webhook.commands import main


def said(monkeypatch: pytest.MonkeyPatch, package: Path) -> str:
    monkeypatch.setattr(version, "PACKAGE", package)
    return CliRunner().invoke(main, ["--version"]).output


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "webhook"
    folder.mkdir()
    return folder


def test_a_wheel_says_the_commit_that_it_was_built_from(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    (package / "commit.txt").write_text("4ebd4ac\n")

    assert said(monkeypatch, package) == "gpu-admission, version 0.1.0, commit 4ebd4ac\n"


def test_a_checkout_says_its_commit_and_whether_it_is_changed(
    monkeypatch: pytest.MonkeyPatch, package: Path
) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *identity, *arguments], cwd=package.parent, check=True, capture_output=True)

    (package / "a.py").write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "a")
    assert re.fullmatch(r"gpu-admission, version 0\.1\.0, commit [0-9a-f]{40}\n", said(monkeypatch, package))
    (package / "a.py").write_text("changed = True\n")
    assert said(monkeypatch, package).endswith("-dirty\n")


def test_what_nobody_recorded_is_said(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    assert said(monkeypatch, package) == (
        "gpu-admission, version 0.1.0, commit not recorded: built without Git and without GPU_ADMISSION_COMMIT\n"
    )
