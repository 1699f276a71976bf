"""`--kubeconfig`, `--context` and `--standalone` have one meaning in every command that works with a cluster."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.webhook.cluster.apiserver import ApiServer, status
from webhook.cluster.access import context_namespace
from webhook.commands import main

COMMANDS = (
    ("serve",),
    ("console",),
    ("controller",),
    ("canary",),
    ("doctor",),
    ("export",),
    ("quota",),
    ("status",),
    ("why",),
    ("classes",),
    ("certs", "show"),
    ("certs", "check"),
    ("certs", "rotate"),
    ("config",),
    ("pause",),
    ("resume",),
)


def command(path: tuple[str, ...]) -> click.Command:
    found: click.Command = main
    for name in path:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), name) or pytest.fail(f"no command {name}")
    return found


def helps(path: tuple[str, ...]) -> dict[str, str | None]:
    options = (each for each in command(path).params if isinstance(each, click.Option))
    return {each.opts[0]: each.help for each in options if each.opts[0] in {"--kubeconfig", "--context"}}


@pytest.mark.parametrize("path", [pytest.param(each, id="-".join(each)) for each in COMMANDS])
def test_every_command_says_the_same_of_its_cluster(path: tuple[str, ...]) -> None:
    assert helps(path) == helps(COMMANDS[0])
    assert "left out: the pod's service account, else what kubectl would use" in str(
        helps(path)["--kubeconfig"]
    )


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["console"], id="console"),
        pytest.param(["canary"], id="canary"),
        pytest.param(["doctor"], id="doctor"),
        pytest.param(["export"], id="export"),
        pytest.param(["quota"], id="quota"),
        pytest.param(["certs", "show"], id="certs-show"),
        pytest.param(["certs", "rotate"], id="certs-rotate"),
        pytest.param(["config"], id="config"),
        pytest.param(["resume"], id="resume"),
        pytest.param(["controller"], id="controller"),
    ],
)
def test_without_a_usable_cluster_every_command_ends_with_2(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [*arguments, "--kubeconfig", str(tmp_path / "nowhere")])

    assert result.exit_code == 2
    assert f"kubeconfig {tmp_path / 'nowhere'}: " in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("context", "written", "want"),
    [
        pytest.param(None, "team", "team", id="of-the-current-context"),
        pytest.param("test", "team", "team", id="of-the-named-context"),
        pytest.param(None, None, "default", id="none-is-written"),
    ],
)
def test_the_namespace_in_which_kubectl_would_work(
    context: str | None, written: str | None, want: str, tmp_path: Path
) -> None:
    names = {"cluster": "test", "user": "me"} | ({"namespace": written} if written else {})
    contexts = [{"name": "test", "context": names}, {"name": "other", "context": {**names, "namespace": "x"}}]
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": "https://localhost"}}],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": contexts,
        "current-context": "test",
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    assert context_namespace(str(tmp_path / "kubeconfig"), context) == want


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


@pytest.mark.parametrize("name", [pytest.param("serve", id="serve"), pytest.param("export", id="export")])
def test_standalone_and_a_cluster_exclude_each_other(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--standalone", "--context", "prod"])

    assert result.exit_code == 2
    assert "--standalone works without a cluster" in result.stderr


def test_export_takes_a_directory_or_a_cluster(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["export", "--config", str(tmp_path), "--context", "prod"])

    assert result.exit_code == 2
    assert "--config needs no cluster" in result.stderr
