"""`--kubeconfig`, `--context` and `--standalone` have one meaning in every command that works with a cluster."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from tests.cases import cases
from tests.pages import ROOT
from tests.webhook.cluster.apiserver import ApiServer, status
from webhook.cluster.access import context_namespace
from webhook.commands import main


def commands(group: click.Group, *above: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name: `certs show`."""
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        if isinstance(found, click.Group):
            yield from commands(found, *above, name)
        elif found is not None:
            yield " ".join((*above, name)), found


def test_every_command_says_the_same_of_its_cluster() -> None:
    helps: dict[str, dict[str, str | None]] = {"--kubeconfig": {}, "--context": {}}
    for name, command in commands(main):
        for option in command.params:
            if isinstance(option, click.Option) and option.opts[0] in helps:
                helps[option.opts[0]][name] = option.help

    assert helps["--kubeconfig"].keys() == helps["--context"].keys()
    assert helps["--kubeconfig"].keys() >= {"serve", "controller", "doctor", "certs show", "why"}
    of_check = [str(texts.pop("check")) for texts in helps.values()]
    assert all(text.startswith("Evaluate by the cluster") for text in of_check), "check needs no cluster"
    assert [len(set(texts.values())) for texts in helps.values()] == [1, 1]
    text = str(helps["--kubeconfig"]["serve"])
    assert "Default: the pod's service account, else what kubectl would use" in text


def options(command: click.Command) -> dict[str, click.Option]:
    """Return the options by each of their names."""
    found = [each for each in command.params if isinstance(each, click.Option)]
    return {name: option for option in found for name in option.opts}


PROCESSES = {"controller", "serve", "fetch-model"}
"""Their options are written into manifests; `controller --namespace` is of its Lease."""


def test_a_namespace_means_the_same_in_every_command() -> None:
    for name, command in commands(main):
        if name in PROCESSES:
            continue
        known = options(command)
        assert known.get("--namespace") is known.get("-n"), name
        assert known.get("--all-namespaces") is known.get("-A"), name
        if "-A" in known:
            assert known["-A"].help == "All namespaces.", name
            assert str(known["-n"].help).startswith("Namespace. Default: "), name
        if "--install-namespace" in known:
            assert known["--install-namespace"].help == "Where gpu-admission is installed.", name


LISTING = {"console", "quota", "release", "rightsize", "scan", "status", "why"}


def test_what_lists_namespaces_lists_all_of_them() -> None:
    assert {name for name, command in commands(main) if "-A" in options(command)} == LISTING


@pytest.mark.parametrize("command", sorted(LISTING))
def test_one_and_all_exclude_each_other(command: str) -> None:
    more = ["--prometheus-url", "http://127.0.0.1:9"] if command == "rightsize" else []
    result = CliRunner().invoke(main, [command, "-A", "-n", "ml", *more])

    assert result.exit_code == 2
    assert result.stderr.endswith("\n\nError: -A means all namespaces: omit -n\n")


def test_yaml_stands_beside_json_in_every_command() -> None:
    formats = {
        name: options(command)["-o"].type for name, command in commands(main) if "-o" in options(command)
    }

    assert len(formats) > 15
    for name, choice in formats.items():
        if name != "export":
            assert isinstance(choice, click.Choice)
            assert list(choice.choices[:3]) == ["text", "json", "yaml"], name


OFFLINE = (
    "estimate --params 7b",
    "rules",
    "rules gpu-quota",
    "classes --standalone",
    "config examples/policies",
    "version --client",
)


@pytest.mark.parametrize("command", OFFLINE)
def test_yaml_has_what_json_has(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = [*command.split(), *(("--now", "2026-11-22T08:00:00Z") if "config" in command else ())]
    as_json, as_yaml = (
        CliRunner().invoke(main, [*arguments, "-o", kind]).stdout for kind in ("json", "yaml")
    )

    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    assert as_yaml.partition(":")[0].isidentifier()


OF_THE_CLUSTER = ("console", "canary", "doctor", "export", "quota", "config", "resume", "controller")


@pytest.mark.parametrize("command", [*OF_THE_CLUSTER, "certs show", "certs rotate"])
def test_without_a_usable_cluster_every_command_ends_with_2(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [*command.split(), "--kubeconfig", str(tmp_path / "nowhere")])

    assert result.exit_code == 2
    assert f"kubeconfig {tmp_path / 'nowhere'}: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["status", "quota", "export", "doctor", "why job/train"])
def test_a_command_names_the_server_that_does_not_answer(command: str, tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: status(500, "never asked")) as server:
        path = server.kubeconfig()
    url = json.loads(path.read_text())["clusters"][0]["cluster"]["server"]

    result = CliRunner().invoke(main, [*command.split(), "--kubeconfig", str(path)])

    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert f"error: {url}: GET /" in said
    assert "the API server refused the connection" in said


@cases(
    ("context", "written", "want"),
    of_the_current_context=(None, "team", "team"),
    of_the_named_context=("test", "team", "team"),
    none_is_written=(None, None, "default"),
)
def test_the_namespace_in_which_kubectl_would_work(
    context: str | None, written: str | None, want: str, tmp_path: Path
) -> None:
    with ApiServer(tmp_path, lambda _: status(500, "never asked")) as server:
        path = server.kubeconfig()
    document = json.loads(path.read_text())
    names = document["contexts"][0]["context"] | ({"namespace": written} if written else {})
    document["contexts"] = [
        {"name": "test", "context": names},
        {"name": "other", "context": {**names, "namespace": "x"}},
    ]
    path.write_text(json.dumps(document))
    assert context_namespace(str(path), context) == want


def test_a_context_that_the_file_lacks(tmp_path: Path) -> None:
    with ApiServer(tmp_path, lambda _: status(500, "never asked")) as server:
        kubeconfig = str(server.kubeconfig())
        result = CliRunner().invoke(main, ["doctor", "--kubeconfig", kubeconfig, "--context", "prod"])

    assert (result.exit_code, server.requests) == (2, [])
    assert "prod" in result.stderr


def test_serve_names_the_way_to_do_without_a_cluster(tmp_path: Path) -> None:
    certificate = ("--self-signed", tmp_path / "certs", "--port", "0", "--metrics-port", "0")
    result = subprocess.run(
        [sys.executable, "-m", "webhook", "serve", "--kubeconfig", tmp_path / "nowhere", *certificate],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )

    assert result.returncode == 2
    assert "name one with --kubeconfig, or serve without one: --standalone" in result.stderr
