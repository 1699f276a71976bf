"""Hot reload. The poll is called by hand, and once by the thread that does it in a running webhook."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases import cases
from tests.cluster.controllers import eventually
from webhook.configuration import source as source_module
from webhook.configuration.loader import ConfigurationError
from webhook.configuration.source import ConfigurationState, DirectorySource

HEAD = "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUPolicy\n"


def policy(name: str, spec: str = "{}") -> str:
    return f"{HEAD}metadata: {{name: {name}}}\nspec: {spec}\n"


class Watched:
    """A source on `directory`, and every state it reported."""

    def __init__(self, directory: Path | None) -> None:
        self.states: list[ConfigurationState] = []
        self.source = DirectorySource(directory, self.states.append)

    def governing(self, namespace: str = "ml") -> str:
        return self.source.configuration.policies.for_namespace(namespace).name


def test_the_first_load_must_succeed(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(policy("one", "{x: 1}"))

    with pytest.raises(ConfigurationError, match=r"p.yaml:4: GPUPolicy/one spec.x: unknown field"):
        DirectorySource(tmp_path, lambda _state: None)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    (tmp_path / "p.yaml").write_text(policy("one"))
    return Watched(tmp_path)


def test_nothing_changes_without_a_change(watched: Watched) -> None:
    configuration = watched.source.configuration

    watched.source.poll()

    assert watched.source.configuration is configuration
    assert watched.states == []


def test_a_new_version_takes_over(watched: Watched, tmp_path: Path) -> None:
    before = watched.source.state

    (tmp_path / "p.yaml").write_text(policy("second"))
    watched.source.poll()

    assert watched.governing() == "second"
    assert watched.source.state.version != before.version
    assert watched.states == [watched.source.state]


@cases(
    "change",
    added=(lambda folder: (folder / "q.yaml").write_text(policy("added", "{priority: 1}"))),
    renamed=lambda folder: (folder / "p.yaml").rename(folder / "r.yml"),
    removed=lambda folder: (folder / "extra.yaml").unlink(),
)
def test_every_change_of_the_directory_is_seen(tmp_path: Path, change: Callable[[Path], object]) -> None:
    (tmp_path / "p.yaml").write_text(policy("one"))
    (tmp_path / "extra.yaml").write_text(policy("two", "{priority: -1}"))
    watched = Watched(tmp_path)

    change(tmp_path)
    watched.source.poll()

    assert len(watched.states) == 1


def test_a_bad_version_is_refused_once_and_a_repaired_one_takes_over(
    watched: Watched, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = watched.source.state

    (tmp_path / "p.yaml").write_text(policy("second", "{x: 1, priority: high}"))
    with caplog.at_level(logging.ERROR, logger="gpu_admission.configuration"):
        watched.source.poll()
        watched.source.poll()

    refused = (
        'p.yaml:4: GPUPolicy/second spec.priority: must be a whole number, not text "high"',
        "p.yaml:4: GPUPolicy/second spec.x: unknown field: must be one of priority, match, pausedUntil, exemptions, "
        "templates, help, rules",
    )
    assert watched.governing() == "one"
    assert watched.states == [ConfigurationState(before.version, before.loaded_at, refused)]
    assert watched.source.state == watched.states[0]
    rejected = f"new configuration rejected, version {before.version} stays in force"
    assert caplog.messages == [f"{rejected}: {'; '.join(refused)}"]

    (tmp_path / "p.yaml").write_text(policy("repaired"))
    watched.source.poll()

    assert watched.governing() == "repaired"
    assert watched.source.state.rejected == ()


def test_a_directory_that_goes_away_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "config"
    directory.mkdir()
    (directory / "p.yaml").write_text(policy("one"))
    watched = Watched(directory)

    directory.rename(tmp_path / "elsewhere")
    watched.source.poll()

    assert watched.governing() == "one"
    assert watched.states[-1].rejected == (f"{directory}: No such file or directory",)

    (tmp_path / "elsewhere").rename(directory)
    watched.source.poll()

    assert watched.source.state.rejected == ()


def mounted(directory: Path, version: str, text: str) -> None:
    """Publish `text` as p.yaml the way kubelet updates a ConfigMap volume: a new directory, and `..data` swapped onto it."""
    (directory / version).mkdir()
    (directory / version / "p.yaml").write_text(text)
    (directory / "..data_tmp").symlink_to(version)
    os.replace(directory / "..data_tmp", directory / "..data")  # noqa: PTH105 - the call that kubelet makes
    if not (directory / "p.yaml").is_symlink():
        (directory / "p.yaml").symlink_to("..data/p.yaml")


def test_a_config_map_volume_is_followed(tmp_path: Path) -> None:
    mounted(tmp_path, "..2027_01_01", policy("one"))
    watched = Watched(tmp_path)
    first = watched.source.state.version

    mounted(tmp_path, "..2027_01_02", policy("one"))
    watched.source.poll()
    assert watched.source.state.version == first, "the same content is the same version"

    mounted(tmp_path, "..2027_01_03", policy("two"))
    watched.source.poll()
    assert watched.governing() == "two"


def test_without_a_directory_the_built_in_documents_hold() -> None:
    watched = Watched(None)

    watched.source.start()
    watched.source.poll()

    assert watched.governing() == "built-in"
    assert watched.states == []


def test_the_thread_finds_a_change_by_itself(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "POLL_SECONDS", 0.02)
    watched.source.start()

    (tmp_path / "p.yaml").write_text(policy("second"))

    assert eventually(lambda: watched.governing() == "second")
    watched.source.stop()
