"""`gpu-admission console`: the address that it takes, and what it serves when the cluster does not answer."""

import socket
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
import urllib3
from click.testing import CliRunner
from werkzeug.serving import BaseWSGIServer

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, status
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.commands import main
from webhook.tools.console.app import console_server


def broken(folder: Path) -> ApiServer:
    return ApiServer(folder, lambda _: status(500, "etcd has no leader"))


@contextmanager
def console(server: ApiServer) -> Iterator[str]:
    serving = console_server(ApiClient(load_access(str(server.kubeconfig()))), cluster="test")
    thread = Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{serving.port}"
    finally:
        serving.shutdown()
        thread.join(10)


def get(url: str, **headers: str) -> tuple[int, str]:
    with urllib3.PoolManager(retries=False, timeout=30) as pool:
        answer = pool.request("GET", url, headers=headers)
        return answer.status, answer.data.decode()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with broken(tmp_path) as server, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        named = ("--port", str(port), "--kubeconfig", str(server.kubeconfig()))
        result = CliRunner().invoke(main, ["console", *named])

    assert result.exit_code == 2
    assert result.stderr == (
        f"error: port {port} of 127.0.0.1 cannot be used: Address already in use; name another one with --port\n"
    )


@cases(("arguments", "opened"), by_default=((), 1), no_browser=(("--no-browser",), 0))
def test_the_address_is_printed_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], opened: int
) -> None:
    addresses, ports = list[str](), list[int]()

    def serve(server: BaseWSGIServer) -> None:
        ports.append(server.port)
        server.server_close()

    monkeypatch.setattr(webbrowser, "open", addresses.append)
    monkeypatch.setattr(BaseWSGIServer, "serve_forever", serve)
    with broken(tmp_path) as server:
        named = ("--port", "0", "--kubeconfig", str(server.kubeconfig()))
        result = CliRunner().invoke(main, ["console", *named, *arguments])

    (port,) = ports
    assert (result.exit_code, addresses) == (0, [f"http://127.0.0.1:{port}/"] * opened)
    assert result.stdout == f"The console is at http://127.0.0.1:{port}/ until Ctrl-C.\n"


def test_a_cluster_that_does_not_answer_is_said_on_every_page(tmp_path: Path) -> None:
    with broken(tmp_path) as server, console(server) as address:
        for path in ("/", "/denials", "/quotas/team", "/why?object=job/train"):
            code, text = get(address + path)
            assert (code, "The cluster was not read: " in text) == (502, True), path
            assert "etcd has no leader" in text, path


def test_only_its_own_files_are_served(tmp_path: Path) -> None:
    with broken(tmp_path) as server, console(server) as address:
        assert get(f"{address}/static/console.css")[0] == 200
        assert get(f"{address}/static/..%2fapp.py")[0] != 200
        assert get(f"{address}/static/console.css", Host="evil.example") == (
            403,
            "Host must be 127.0.0.1 or localhost\n",
        )
