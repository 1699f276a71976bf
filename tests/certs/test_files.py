import datetime as dt
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from certs.check import problems
from certs.files import AUTHORITY_LIFETIME, SERVER_LIFETIME, Paths, ensure_self_signed

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
NAMES = ["localhost", "127.0.0.1"]


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def good(paths: Paths, names: list[str], now: dt.datetime) -> bool:
    pair = paths.certificate.read_bytes(), paths.key.read_bytes()
    return problems(*pair, paths.ca.read_bytes(), names, now) == []


def test_everything_is_made_where_nothing_was(tmp_path: Path) -> None:
    paths = ensure_self_signed(tmp_path / "new" / "certs", NAMES, NOW)
    assert paths.issued
    assert paths.reason == (
        f"issued {paths.certificate} for localhost, 127.0.0.1: ca.crt and tls.crt and tls.key did not exist"
    )
    assert good(paths, NAMES, NOW)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths.ca.parent.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "tls.crt": 0o644, "tls.key": 0o600}


def test_good_files_are_kept(tmp_path: Path) -> None:
    ensure_self_signed(tmp_path, NAMES, NOW)
    before = content(tmp_path)
    paths = ensure_self_signed(tmp_path, NAMES, NOW + dt.timedelta(days=100))
    assert not paths.issued
    assert paths.reason == f"kept {paths.certificate}: valid for localhost, 127.0.0.1"
    assert content(tmp_path) == before


def damage(name: str, text: str | None) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        if text is None:
            (directory / name).unlink()
        else:
            (directory / name).write_text(text)

    return apply


def nothing(_: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "names", "days", "want", "want_same_authority"),
    [
        pytest.param(
            nothing, [*NAMES, "a.svc"], 0, "certificate: does not carry the name a.svc", True, id="new-name"
        ),
        pytest.param(
            nothing,
            NAMES,
            0.7 * SERVER_LIFETIME.days,
            "two thirds of the lifetime of the previous one were over",
            True,
            id="renewal",
        ),
        pytest.param(
            nothing, NAMES, 0.7 * AUTHORITY_LIFETIME.days, "certificate: expired", False, id="authority-aged"
        ),
        pytest.param(damage("tls.key", None), NAMES, 0, "tls.key did not exist", True, id="key-gone"),
        pytest.param(
            damage("tls.crt", "?"), NAMES, 0, "certificate: must be a certificate in PEM", True, id="garbage"
        ),
        pytest.param(
            damage("ca.crt", "?"),
            NAMES,
            0,
            "authority: must be a certificate in PEM",
            False,
            id="authority-garbage",
        ),
    ],
)
def test_what_is_not_good_is_issued_again(
    tmp_path: Path,
    change: Callable[[Path], None],
    names: list[str],
    *,
    days: float,
    want: str,
    want_same_authority: bool,
) -> None:
    ensure_self_signed(tmp_path, NAMES, NOW)
    before = content(tmp_path)
    change(tmp_path)
    now = NOW + dt.timedelta(days=days)
    paths = ensure_self_signed(tmp_path, names, now)
    assert paths.issued
    assert want in paths.reason
    assert good(paths, names, now)
    assert (content(tmp_path)["ca.crt"] == before["ca.crt"]) is want_same_authority
    assert set(content(tmp_path)) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}, "no temporary file is left"


def test_lost_key_of_the_authority_matters_only_when_it_has_to_sign(tmp_path: Path) -> None:
    ensure_self_signed(tmp_path, NAMES, NOW)
    (tmp_path / "ca.key").unlink()
    assert not ensure_self_signed(tmp_path, NAMES, NOW).issued
    paths = ensure_self_signed(tmp_path, ["another"], NOW)
    assert paths.issued
    assert good(paths, ["another"], NOW)
