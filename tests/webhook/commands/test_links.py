"""Links in directories: what a link out of a directory holds is neither shown nor changed. What is named may be a link."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.commands.checking import GOOD, HALF
from webhook.commands import check as command
from webhook.commands import main
from webhook.configuration.documents import LocatedProblem
from webhook.configuration.loader import ConfigurationError, load_directory
from webhook.tools.scan.proposal import write

OUT = "leads out of the directory"
POLICY = (
    "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: secret}\nspec: {bogus: 1}\n"
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def outside(top: Path) -> Path:
    """Make a directory beside the checked one, with a manifest that has a fix."""
    folder = top.parent / "outside"
    folder.mkdir()
    (folder / "secret.yaml").write_text(HALF.replace("name: main", "name: secret"))
    return folder


def a_file(top: Path) -> None:
    (top / "a.yaml").symlink_to(outside(top) / "secret.yaml")


def a_relative_file(top: Path) -> None:
    outside(top)
    (top / "a.yaml").symlink_to("../outside/secret.yaml")


def a_chain(top: Path) -> None:
    (top / "a.yaml").symlink_to("b")
    (top / "b").symlink_to(top / "c")
    (top / "c").symlink_to(outside(top) / "secret.yaml")


def through_a_linked_directory(top: Path) -> None:
    (top / "there").symlink_to(outside(top))
    (top / "a.yaml").symlink_to("there/secret.yaml")


def a_link_back_that_leads_out(top: Path) -> None:
    """Make a link to a link outside, which leads to a file outside again."""
    folder = outside(top)
    (folder / "step").symlink_to("secret.yaml")
    (top / "a.yaml").symlink_to(folder / "step")


def a_directory(top: Path) -> None:
    (top / "a").symlink_to(outside(top))


def a_file_of_a_directory_below(top: Path) -> None:
    (top / "sub").mkdir()
    (top / "sub" / "a.yaml").symlink_to(outside(top) / "secret.yaml")


def a_kustomization(top: Path) -> None:
    folder = outside(top)
    (folder / "k.yaml").write_text("patches: [{path: good.yaml}]\n")
    (top / "kustomization.yaml").symlink_to(folder / "k.yaml")


def a_device(top: Path) -> None:
    outside(top)
    (top / "a.yaml").symlink_to("/dev/zero")


def stdin(top: Path) -> None:
    outside(top)
    (top / "a.yaml").symlink_to("/dev/stdin")


def nowhere(top: Path) -> None:
    outside(top)
    (top / "a.yaml").symlink_to("/nowhere/secret.yaml")


MADE = [
    a_file, a_relative_file, a_chain, through_a_linked_directory, a_link_back_that_leads_out, a_directory,
    a_file_of_a_directory_below, a_kustomization, a_device, stdin, nowhere,
]  # fmt: skip


@pytest.fixture
def top(tmp_path: Path) -> Path:
    folder = tmp_path / "top"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("options", [(), ("--fix", "--yes"), ("-o", "yaml"), ("-o", "diff")], ids=" ".join)
def test_a_link_out_of_a_walk_is_reported(
    top: Path, make: Callable[[Path], None], options: tuple[str, ...]
) -> None:
    make(top)
    (top / "good.yaml").write_text(GOOD)
    secret = top.parent / "outside" / "secret.yaml"
    before = secret.read_bytes(), secret.stat().st_ino

    result = run("check", "-R", *options, str(top))

    assert OUT in result.stderr
    assert "secret" not in result.output.replace("secret.yaml", "")
    assert (secret.read_bytes(), secret.stat().st_ino) == before
    assert result.exit_code == (0 if make is a_directory else 2)


def test_a_loop_ends(top: Path) -> None:
    (top / "good.yaml").write_text(GOOD)
    (top / "loop").symlink_to(".")
    (top / "a.yaml").symlink_to("b.yaml")
    (top / "b.yaml").symlink_to("a.yaml")

    result = run("check", "-R", str(top))

    assert result.exit_code == 2
    assert result.stderr.count("Too many levels of symbolic links") == 2


@cases("make", a_pipe=os.mkfifo, a_directory=os.mkdir)
def test_what_is_no_file_is_left_out(top: Path, make: Callable[[Path], None]) -> None:
    (top / "good.yaml").write_text(GOOD)
    make(top / "b.yaml")

    assert run("check", "-R", str(top)).exit_code == 0


@cases(
    "links",
    a_file={"a.yaml": "files/real"},
    a_chain={"a.yaml": "b", "b": "files/real"},
    as_kubelet_mounts_them={"..data": "files", "a.yaml": "..data/real"},
)
def test_a_link_inside_is_read_and_what_it_leads_to_is_written(top: Path, links: dict[str, str]) -> None:
    (top / "files").mkdir()
    real = top / "files" / "real"
    real.write_text(HALF)
    for name, target in links.items():
        (top / name).symlink_to(target)

    result = run("check", "--fix", "--yes", str(top))

    assert (result.exit_code, "amd.com/gpu: 1}" in real.read_text()) == (0, True)
    assert all((top / name).is_symlink() for name in links)


def test_two_names_of_one_file_are_written_once(top: Path) -> None:
    (top / "a.yaml").write_text(HALF)
    (top / "b.yaml").symlink_to("a.yaml")

    result = run("check", "--fix", "--yes", str(top))

    assert (result.exit_code, "amd.com/gpu: 1}" in (top / "a.yaml").read_text()) == (0, True)
    assert (top / "b.yaml").is_symlink()


def test_what_is_named_may_lead_anywhere(top: Path) -> None:
    secret = outside(top) / "secret.yaml"
    (top / "a.yaml").symlink_to(secret)
    (top.parent / "link").symlink_to(secret.parent)

    assert run("check", "--fix", "--yes", str(top / "a.yaml")).exit_code == 0
    assert "amd.com/gpu: 1}" in secret.read_text()
    assert run("check", str(top.parent / "link")).exit_code == 0


def test_a_pipe_that_is_named_is_read(top: Path) -> None:
    """As in `check <(kustomize build …)`."""
    pipe = top / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(GOOD))
    writer.start()

    assert run("check", str(pipe)).exit_code == 0
    writer.join()


def put_a_link(top: Path, other: Path) -> None:
    (top / "a.yaml").unlink()
    (top / "a.yaml").symlink_to(other / "a.yaml")


def put_another_directory(top: Path, other: Path) -> None:
    top.rename(top.parent / "was")
    top.symlink_to(other)


def put_another_file(top: Path, other: Path) -> None:
    (other / "a.yaml").replace(top / "a.yaml")


def put_a_pipe(top: Path, _other: Path) -> None:
    (top / "a.yaml").unlink()
    os.mkfifo(top / "a.yaml")


@pytest.mark.parametrize(
    "put", [put_a_link, put_another_directory, put_another_file, put_a_pipe], ids=lambda put: put.__name__
)
def test_only_the_file_that_was_read_is_written(
    top: Path, monkeypatch: pytest.MonkeyPatch, put: Callable[[Path, Path], None]
) -> None:
    """Something changes it between the check and the write; the other file holds the same text."""
    other = top.parent / "other"
    other.mkdir()
    for folder in (top, other):
        (folder / "a.yaml").write_text(HALF)
    write_all = command._write_files

    def late(*given: Any) -> None:
        put(top, other)
        write_all(*given)

    monkeypatch.setattr(command, "_write_files", late)
    result = run("check", "--fix", "--yes", str(top))

    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        2,
        f"error: {top}/a.yaml: has changed since it was checked",
    )
    assert [each.read_text() for each in top.parent.rglob("*.yaml") if each.is_file()].count(HALF) >= 1
    assert "amd.com/gpu: 1}" not in "".join(
        each.read_text() for each in top.parent.rglob("*.yaml") if each.is_file()
    )


def problems(top: Path) -> list[LocatedProblem]:
    with pytest.raises(ConfigurationError) as caught:
        load_directory(top)
    return caught.value.problems


@pytest.mark.parametrize(
    "make", [a_file, a_chain, through_a_linked_directory, a_device], ids=lambda make: make.__name__
)
def test_documents_behind_links_out_are_not_read(top: Path, make: Callable[[Path], None]) -> None:
    make(top)

    (problem,) = problems(top)

    assert OUT in str(problem)
    assert (
        run("config", str(top)).exit_code
        == run(
            "check",
            "--config",
            str(top),
            "-",
        ).exit_code
        == 2
    )


def test_a_pipe_among_documents_does_not_hang(top: Path) -> None:
    os.mkfifo(top / "a.yaml")

    assert [str(each) for each in problems(top)] == ["a.yaml: must be a regular file"]


def test_a_proposal_follows_no_link(top: Path) -> None:
    target = top.parent / "target"
    folder = top / "new"
    folder.mkdir()

    class Late(dict[str, str]):
        def items(self) -> Any:
            (folder / "a.yaml").symlink_to(target)
            return super().items()

    proposal: Any = SimpleNamespace(files=Late({"a.yaml": "x"}))
    with pytest.raises(FileExistsError):
        write(proposal, folder)
    assert not target.exists()
