"""Files as they are read and written again: of bounded length, and in a directory only what is below it.

A link is followed if the caller named it, and not if it was found in a directory: its author may have made a link to a file
that only the caller may read or change.
"""

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

LEADS_OUT = "is a link that leads out of the directory: name what it leads to, if that is meant"
UTF8_MARK = b"\xef\xbb\xbf"
"""Of UTF-8."""


class Source(NamedTuple):
    """A file that was read: its path without links, and its device and inode."""

    path: Path
    identity: tuple[int, int]


def leads_out(path: Path, top: Path) -> bool:
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(top))


def read_file(path: Path, max_bytes: int, top: Path | None = None) -> tuple[str, Source]:
    """Return the text of a file, which was found below `top` or was named. Raises OSError and UnicodeDecodeError."""
    real = Path(os.path.realpath(path))
    if top is not None and leads_out(real, top):
        raise OSError(errno.EXDEV, LEADS_OUT)
    opened = os.open(path, os.O_RDONLY) if top is None else _open_file(real)
    with os.fdopen(opened, "rb") as file:
        status = os.fstat(file.fileno())
        if top is not None and (leads_out(real, top) or not stat.S_ISREG(status.st_mode)):
            raise OSError(errno.EINVAL, "must be a regular file")
        return decode_text(file.read(max_bytes + 1), max_bytes), Source(real, (status.st_dev, status.st_ino))


def decode_text(content: bytes, max_bytes: int) -> str:
    """Return the text without the mark of its encoding. Raises OSError if it is longer, and UnicodeDecodeError."""
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"must be at most {max_bytes >> 20} MiB")
    return content.decode("utf-8-sig")


def replace_file(source: Source, before: str, after: str) -> None:
    """Replace the text of the file that was read, at once, with its mode. Raises OSError, also if it is another file by now."""
    folder = os.open(source.path.parent, os.O_RDONLY | os.O_DIRECTORY)  # whatever becomes of its path
    name, new = source.path.name, f".{source.path.name[:200]}-{secrets.token_hex(8)}"
    try:
        mode, mark = _check_unchanged(source, before, folder)
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder), "wb"
        ) as file:
            file.write(mark + after.encode())
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        os.close(folder)


def _check_unchanged(source: Source, before: str, folder: int) -> tuple[int, bytes]:
    """Return the mode of the file, and the mark of its encoding if it has one."""
    with contextlib.suppress(OSError), os.fdopen(_open_file(source.path.name, folder), "rb") as file:
        status, content = os.fstat(file.fileno()), file.read()
        if (status.st_dev, status.st_ino) == source.identity and content.removeprefix(
            UTF8_MARK
        ) == before.encode():
            return stat.S_IMODE(status.st_mode), UTF8_MARK if content.startswith(UTF8_MARK) else b""
    raise OSError(errno.ESTALE, "has changed since it was checked")


def _open_file(path: Path | str, folder: int | None = None) -> int:
    """Open a file that may have been replaced just now: by a link, or by a pipe, whose writer may never come."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
