from pathlib import Path
from typing import Any

import pytest

from tests.cases import cases
from webhook.server.settings import ServerSettings, StartupError


def settings(**given: Any) -> ServerSettings:
    return ServerSettings(certificate=Path("tls.crt"), key=Path("tls.key"), **given)


NAME_CALLERS = (
    "client_names: must name the callers: client_ca alone would admit every certificate of these authorities"
)
NO_AUTHORITY = "client_ca: must be the authorities that issue the certificates of client_names"


@cases(
    ("given", "want"),
    same=({"metrics_port": 8443}, "metrics_port: 8443 is the port of the webhook itself"),
    any_certificate=({"client_ca": Path("ca.crt")}, NAME_CALLERS),
    empty_name=({"client_ca": Path("ca.crt"), "client_names": ("a", "")}, NAME_CALLERS),
    no_authority=({"client_names": ("a",)}, NO_AUTHORITY),
)
def test_impossible_setting_is_refused(given: dict[str, Any], want: str) -> None:
    with pytest.raises(StartupError) as refused:
        settings(**given)
    assert str(refused.value) == want


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(StartupError) as refused:
        settings(metrics_port=8443, client_names=("a",))
    assert str(refused.value).splitlines() == [
        "metrics_port: 8443 is the port of the webhook itself",
        NO_AUTHORITY,
    ]


def test_ports_that_the_system_picks_do_not_collide() -> None:
    assert settings(port=0, metrics_port=0).port == 0
