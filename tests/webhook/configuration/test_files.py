"""Files that are read as they were found, and replaced only as they were read."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases import cases
from webhook.configuration.files import read_file, replace_file


def a_link_outside(file: Path) -> None:
    file.symlink_to("../outside.yaml")


def a_pipe(file: Path) -> None:
    os.mkfifo(file)


def too_long(file: Path) -> None:
    file.write_text("x" * (2**20 + 1))


@cases(
    ("make", "want"),
    a_link_outside=(
        a_link_outside,
        "is a link that leads out of the directory: name what it leads to, if that is meant",
    ),
    a_pipe=(a_pipe, "must be a regular file"),
    too_long=(too_long, "must be at most 1 MiB"),
)
def test_what_a_directory_must_not_hold(tmp_path: Path, make: Callable[[Path], None], want: str) -> None:
    (tmp_path / "outside.yaml").write_text("a: 1")
    folder = tmp_path / "policies"
    folder.mkdir()
    make(folder / "p.yaml")

    with pytest.raises(OSError) as refused:
        read_file(folder / "p.yaml", 2**20, top=folder)

    assert refused.value.strerror == want


def test_only_what_was_read_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("a: 1")
    text, source = read_file(file, 2**20)

    replace_file(source, text, "a: 2")
    _, source = read_file(file, 2**20)
    file.write_text("a: 3")
    with pytest.raises(OSError) as refused:
        replace_file(source, "a: 2", "a: 4")

    assert (file.read_text(), refused.value.strerror) == ("a: 3", "has changed since it was checked")
