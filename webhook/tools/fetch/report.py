"""The output of a run: log lines, the termination message of its container, and exit codes, all without secrets."""

import contextlib
import os
import re
from pathlib import Path
from typing import NoReturn

EXIT_FAILED, EXIT_BAD_REQUEST, EXIT_STOPPED = 1, 2, 143  # 128 + SIGTERM

TERMINATION_LOG = "/dev/termination-log"
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTHORIZ")


class PermanentError(Exception):
    """A problem that a retry does not solve."""


class FetchReport:
    """`shown` is the model's URI without secrets, `query` what its text has after the question mark."""

    def __init__(self, shown: str, query: str = "") -> None:
        self.shown = shown
        values = [value for name, value in os.environ.items() if _SECRET.search(name.upper())]
        # Words of up to five letters are too common to be hidden.
        self._secrets = [word for text in (query, *values) for word in text.split() if word[5:]]

    def log(self, text: str) -> None:
        os.write(1, f"{self._redacted(text)}\n".encode())  # safe in a signal handler, unlike print

    def end(self, code: int, text: str) -> NoReturn:
        """Exit without waiting for other threads. Partial files are on disk, and the kernel releases the lock."""
        self.log(text)
        os._exit(code)

    def fail(self, problem: str, code: int = EXIT_FAILED) -> NoReturn:
        """End the run as failed. `kubectl describe pod` also shows the line."""
        text = self._redacted(f"failed: {self.shown}: {problem}")
        log = Path(os.environ.get("MODEL_TERMINATION_LOG", TERMINATION_LOG))
        with contextlib.suppress(OSError), log.open("r+", encoding="utf-8") as file:
            file.write(text)
        self.end(code, text)

    def _redacted(self, text: str) -> str:
        line = re.sub(r"//[^/\s@]*@", "//", text)
        line = re.sub(r"\?[^\s'\")>]+", "?...", line)
        for secret in self._secrets:
            line = line.replace(secret, "***")
        return " ".join(line.split())


def describe(error: BaseException) -> str:
    """Return an error as one phrase. Errors of libraries begin with their type."""
    return str(error) if isinstance(error, PermanentError) else f"{type(error).__name__}: {error}"


def human_size(size: float) -> str:
    power = min(max(int(size).bit_length() - 1, 0) // 10, 4)
    return f"{size / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
