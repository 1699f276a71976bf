from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cases import cases
from webhook.commands import main
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
    assert len(str(refused.value).splitlines()) == 2


def test_ports_that_the_system_picks_do_not_collide() -> None:
    assert settings(port=0, metrics_port=0).port == 0


@cases(
    ("option", "value", "want"),
    port=("--port", "65536", "65536 is not in the range 0<=x<=65535"),
    no_threads=("--threads", "0", "0 is not in the range 1<=x<=1000"),
    threads_without_connections=("--threads", "1001", "1001 is not in the range 1<=x<=1000"),
    drain=("--drain-seconds", "-1", "-1.0 is not in the range x>=0"),
)
def test_impossible_option_is_refused(option: str, value: str, want: str) -> None:
    result = CliRunner().invoke(main, ["serve", "--standalone", option, value])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}': {want}" in result.stderr
