"""The configuration in force, kept up to date with its directory.

A new version takes over as a whole; one with any error is refused as a whole, and the old one stays in force. Requests read
one attribute and never wait.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from time import time

import msgspec

from webhook.configuration.loader import ConfigurationError, load_directory
from webhook.configuration.snapshot import Configuration
from webhook.engine import Engine

POLL_SECONDS = 2.0
"""How often the directory is looked at. A stat of a few files costs some 20 µs; kubelet itself takes up to a minute."""

log = logging.getLogger("gpu_admission.configuration")


class State(msgspec.Struct, frozen=True):
    """What is in force since when, and why the newest version is not, if it is not (one text for every problem)."""

    version: str
    loaded_at: float
    refused: tuple[str, ...] = ()


class ConfigurationSource:
    """Loads `directory` (None: the built-in documents alone) and, once started, watches it in a thread of its own.

    The first load raises `ConfigurationError`. `changed` is told every new state, in the thread that found it.
    """

    def __init__(self, directory: Path | None, changed: Callable[[State], object]) -> None:
        self._directory = directory
        self._changed = changed
        self._signature = self._look()
        self._stopping = threading.Event()
        self.state: State
        self.engine: Engine
        self._take(load_directory(directory))

    def start(self) -> None:
        if self._directory is not None:
            threading.Thread(target=self._watch, name="configuration", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def poll(self) -> None:
        """Load the directory again if anything in it has changed since the last look."""
        signature = self._look()
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._take(load_directory(self._directory))
        except ConfigurationError as error:
            self._refuse(tuple(str(problem) for problem in error.problems))
        else:
            log.info("configuration version %s is in force", self.state.version)
        self._changed(self.state)

    def _take(self, configuration: Configuration) -> None:
        self.engine = Engine(configuration)
        self.state = State(configuration.version, time())

    def _refuse(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            log.error("new configuration refused, version %s stays in force: %s", self.state.version, problem)
        self.state = State(self.state.version, self.state.loaded_at, problems)

    def _watch(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            try:
                self.poll()
            except Exception:  # a defect while reloading must not end the watching; the old version stays
                log.exception("the configuration could not be looked at")

    def _look(self) -> object:
        """Return something that differs once any file has been written, added, removed or swapped behind a link."""
        if self._directory is None:
            return None
        try:
            return sorted(
                (p.name, *_identity(p)) for p in self._directory.iterdir() if not p.name.startswith(".")
            )
        except OSError as error:
            return error.errno


def _identity(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
