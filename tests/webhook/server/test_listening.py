"""Where the server cannot listen; what a process says of it is in test_lifecycle.py."""

import socket

import pytest

from tests.cases import cases
from webhook.server.monitoring import listen
from webhook.server.settings import StartupError


@cases(
    ("host", "want"),
    address_of_another_machine=(
        "192.0.2.1",
        "port: cannot listen on 192.0.2.1 port 0: Cannot assign requested address",
    ),
    no_such_host=("no such host", "port: cannot listen on no such host port 0: Name or service not known"),
)
def test_an_address_that_is_not_ours(host: str, want: str) -> None:
    with pytest.raises(StartupError) as error:
        listen(host, 0)

    assert str(error.value) == want


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(StartupError) as error:
        listen("127.0.0.1", port := taken.getsockname()[1], field="metrics_port")

    assert str(error.value) == f"metrics_port: cannot listen on 127.0.0.1 port {port}: Address already in use"
