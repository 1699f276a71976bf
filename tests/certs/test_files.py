import datetime as dt
import stat
from collections.abc import Callable
from pathlib import Path

from certs.check import problems
from certs.files import LIFETIME, ensure_self_signed
from tests.cases import cases

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
NAMES = ["localhost", "127.0.0.1"]
MODES = {"ca.crt": 0o644, "tls.crt": 0o644, "tls.key": 0o600}


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def wrong(directory: Path, names: list[str], now: dt.datetime) -> list[str]:
    found = content(directory)
    return problems(found["tls.crt"], found["tls.key"], found["ca.crt"], names, now)


def test_a_directory_without_files_gets_all_three(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "certs"
    assert ensure_self_signed(folder, NAMES, NOW) == (folder / "tls.crt", folder / "tls.key")
    assert wrong(folder, NAMES, NOW) == []
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == MODES


def damage(name: str, text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_text(text)


@cases(
    ("change", "names", "days", "replaced"),
    valid_files_are_kept=(None, NAMES, 100, set()),
    a_new_name=(None, [*NAMES, "a.svc"], 0, set(MODES)),
    due_for_renewal=(None, NAMES, 0.7 * LIFETIME.days, set(MODES)),
    a_lost_key=(lambda folder: (folder / "tls.key").unlink(), NAMES, 0, set(MODES)),
    a_damaged_certificate=(damage("tls.crt", "?"), NAMES, 0, set(MODES)),
    a_damaged_authority=(damage("ca.crt", "?"), NAMES, 0, set(MODES)),
)
def test_unusable_files_are_replaced(
    tmp_path: Path,
    change: Callable[[Path], object] | None,
    names: list[str],
    *,
    days: float,
    replaced: set[str],
) -> None:
    ensure_self_signed(tmp_path, NAMES, NOW)
    before = content(tmp_path)
    if change:
        change(tmp_path)
    now = NOW + dt.timedelta(days=days)
    ensure_self_signed(tmp_path, names, now)
    after = content(tmp_path)
    assert {name for name in after if after[name] != before[name]} == replaced
    assert wrong(tmp_path, names, now) == []
    assert set(after) == set(MODES), "no temporary file is left"
