"""Where a configuration comes from; and the one that is kept up to date with a directory.

A new version takes over as a whole; one with any error is refused as a whole, and the old one stays in force. Requests read
one attribute and never wait.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any, Protocol

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.policy import still_paused
from webhook.configuration.documents import Document
from webhook.configuration.loader import ConfigurationError, load_with_origins
from webhook.serving.engine import Engine

POLL_SECONDS = 2.0
"""How often the directory is looked at. A stat of a few files costs some 20 µs; kubelet itself takes up to a minute."""

log = logging.getLogger("gpu_admission.configuration")


class State(msgspec.Struct, frozen=True):
    """What is in force since when, and why the newest version is not, if it is not (one text for every problem)."""

    version: str
    loaded_at: float
    refused: tuple[str, ...] = ()
    read: bool = True
    """False while the built-in documents hold because no others could be read yet."""


class Source(Protocol):
    """What every source has. `engine` and `state` are replaced as a whole, so they are read without waiting."""

    origin: str
    engine: Engine
    state: State

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def refresh(self) -> None:
        """Make sure that `documents` has what is there now."""

    @property
    def documents(self) -> tuple[Document, ...]:
        """Everything that a new document has to go together with."""

    @property
    def unconfirmed_seconds(self) -> float | None:
        """Since the cluster last said what it has; None where it is not asked."""

    @property
    def waits(self) -> bool:
        """Whether it is too early to answer by what is in force."""


def told(source: Source) -> dict[str, Any]:
    """Return what `/readyz` says of the configuration."""
    state, unconfirmed = source.state, source.unconfirmed_seconds
    detail: dict[str, Any] = {
        "from": source.origin,
        "version": state.version,
        "loadedAt": datetime.fromtimestamp(state.loaded_at, UTC).isoformat(timespec="seconds"),
        "refused": list(state.refused),
    }
    if unconfirmed is not None:
        detail["unconfirmedSeconds"] = round(unconfirmed, 1)
        detail["read"] = state.read
    return detail


class ConfigurationCollector(Collector):
    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name nothing ahead: collecting is cheap, but the registry shall not do it while we are being made."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state, unconfirmed = self._source.state, self._source.unconfirmed_seconds
        yield GaugeMetricFamily(
            "gpu_admission_config_loaded_timestamp_seconds",
            "When the configuration in force was loaded.",
            value=state.loaded_at,
        )
        yield GaugeMetricFamily(
            "gpu_admission_config_valid",
            "1 if the newest configuration is in force, 0 if it was refused or could not be read, and another one is.",
            value=float(state.read and not state.refused),
        )
        info = GaugeMetricFamily(
            "gpu_admission_config_info", "Version of the configuration in force.", labels=["version", "from"]
        )
        info.add_metric([state.version, self._source.origin if state.read else "built-in"], 1)
        yield info
        if unconfirmed is not None:
            yield GaugeMetricFamily(
                "gpu_admission_config_unconfirmed_seconds",
                "Since the API server was last heard about its documents; up to a minute is normal.",
                value=unconfirmed,
            )
        yield from self._pauses(datetime.now(UTC))

    def _pauses(self, now: datetime) -> Iterator[GaugeMetricFamily]:
        until = GaugeMetricFamily(
            "gpu_admission_policy_paused_until_timestamp_seconds",
            "When the pause of a policy ends; there only while it is paused.",
            labels=["policy"],
        )
        policies = self._source.engine.configuration.policies.policies
        ends = {p.name: at.timestamp() for p in policies if (at := still_paused(p.spec.paused_until, now))}
        for name, end in ends.items():
            until.add_metric([name], end)
        yield GaugeMetricFamily("gpu_admission_policies_paused", "Policies that are paused.", value=len(ends))
        yield until


class ConfigurationSource:
    """Loads `directory` (None: the built-in documents alone) and, once started, watches it in a thread of its own.

    Without `labels_known` selectors of namespaces are refused. The first load raises `ConfigurationError`. `changed` is
    told every new state, in the thread that found it.
    """

    unconfirmed_seconds = None
    waits = False

    def __init__(
        self, directory: Path | None, changed: Callable[[State], object], *, labels_known: bool = True
    ) -> None:
        self._labels_known = labels_known
        self.origin = "directory" if directory is not None else "built-in"
        self._directory = directory
        self._changed = changed
        self._signature = self._look()
        self._stopping = threading.Event()
        self.state: State
        self.engine: Engine
        self.documents: tuple[Document, ...] = ()
        self._load()

    def start(self) -> None:
        if self._directory is not None:
            threading.Thread(target=self._watch, name="configuration", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def refresh(self) -> None:
        """Do nothing: nobody refuses a file while it is being written."""

    def poll(self) -> None:
        """Load the directory again if anything in it has changed since the last look."""
        signature = self._look()
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._load()
        except ConfigurationError as error:
            self._refuse(tuple(str(problem) for problem in error.problems))
        else:
            log.info("configuration version %s is in force", self.state.version)
        self._changed(self.state)

    def _load(self) -> None:
        configuration, origins = load_with_origins(self._directory, labels_known=self._labels_known)
        self.documents = origins.documents
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
