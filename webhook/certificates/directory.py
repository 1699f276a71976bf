"""A directory that nobody else may read, in memory where there is some, for the pair that a server loads from files."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - keys should not reach a disk
_OWNER_ONLY = 0o600


class PrivateDirectory:
    """Holds one pair at a time, swapped as kubelet does. It goes when the process ends that made it, not its children."""

    def __init__(self) -> None:
        base = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
        self._path = Path(tempfile.mkdtemp(prefix="gpu-admission-", dir=base))  # mode 0700
        self.certificate = self._path / "..data" / "tls.crt"
        self.key = self._path / "..data" / "tls.key"
        atexit.register(self._remove, os.getpid())

    def write(self, certificate: bytes, key: bytes) -> None:
        """Put this pair in the place of the one before; who reads just then finds either, or a mixture that does not match."""
        folder = Path(tempfile.mkdtemp(prefix="..pair-", dir=self._path))
        for name, content in (("tls.crt", certificate), ("tls.key", key)):
            path = folder / name
            path.touch(_OWNER_ONLY)
            path.write_bytes(content)
        published, link = self._path / "..data", self._path / "..data_tmp"
        before = published.resolve().name  # may be being read
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        link.rename(published)
        for other in self._path.glob("..pair-*"):
            if other.name not in (before, folder.name):
                shutil.rmtree(other, ignore_errors=True)

    def _remove(self, owner: int) -> None:
        if os.getpid() == owner:
            shutil.rmtree(self._path, ignore_errors=True)
