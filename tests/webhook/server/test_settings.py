from pathlib import Path
from typing import Any

import pytest

from tests.cases import cases
from webhook.server.settings import ServerSettings, StartupError


def settings(**given: Any) -> ServerSettings:
    return ServerSettings(certificate=Path("tls.crt"), key=Path("tls.key"), **given)


@cases(
    ("given", "want"),
    {
        "port": ({"port": 65536}, "port: 65536 is not a port (1 to 65535; 0 picks a free one)"),
        "same": ({"metrics_port": 8443}, "metrics_port: 8443 is the port of the webhook itself"),
        "no-threads": ({"threads": 0}, "threads: 0 must be at least 1"),
        "keepalive": (
            {"keepalive_seconds": 90},
            "keepalive_seconds: 90 must be more than 90, the idle time of the API server's connections",
        ),
        "few": ({"connections": 9}, "connections: 9 leaves some of 32 threads without work"),
        "buffer": ({"buffer_limit": 100}, "buffer_limit: 100 must not be less than body_limit, 8388608"),
        "any-certificate": (
            {"client_ca": Path("ca.crt")},
            "client_names: must name the callers: client_ca alone would admit every certificate of these authorities",
        ),
        "empty-name": (
            {"client_ca": Path("ca.crt"), "client_names": ("a", "")},
            "client_names: must name the callers: client_ca alone would admit every certificate of these authorities",
        ),
        "no-authority": (
            {"client_names": ("a",)},
            "client_ca: must be the authorities that issue the certificates of client_names",
        ),
        "drain": ({"drain_seconds": -1}, "drain_seconds: -1 must be at least 0"),
    },
)
def test_impossible_setting_is_refused(given: dict[str, Any], want: str) -> None:
    with pytest.raises(StartupError) as refused:
        settings(**given)
    assert str(refused.value) == want


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(StartupError) as refused:
        settings(threads=0, port=-1, request_seconds=0)
    assert len(str(refused.value).splitlines()) == 3


def test_ports_that_the_system_picks_do_not_collide() -> None:
    assert settings(port=0, metrics_port=0).port == 0
