"""Sources of configuration: their base, the source that watches a directory, and their metrics."""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.gpus.device_classes import NO_DEVICES, ClusterDevices
from policies.policy import end_of_pause
from webhook.cluster.api import ApiClient
from webhook.configuration.documents import Document
from webhook.configuration.dynamic_resources import ClusterDevicesWatch
from webhook.configuration.loader import Configuration, ConfigurationError, load_directory
from webhook.threads import thread

POLL_SECONDS = 2.0
"""How often the directory is polled. A stat of a few files takes some 20 µs; kubelet itself takes up to a minute."""

FIRST_POLL_SECONDS = 0.05
"""How often the directory is polled until the DeviceClasses and kinds of devices are read."""

log = logging.getLogger("gpu_admission.configuration")


class ConfigurationState(msgspec.Struct, frozen=True):
    """The version in force, the time at which it was loaded, and the problems of the newest version if that was rejected."""

    version: str
    loaded_at: float
    rejected: tuple[str, ...] = ()
    read: bool = True
    """False while the built-in documents are in force because no others could be read yet."""

    def log_rejected(self) -> None:
        if self.rejected:
            problems = "; ".join(self.rejected)
            log.error("new configuration rejected, version %s stays in force: %s", self.version, problems)


class ConfigurationSource:
    """Provides the configuration in force, and follows documents, DeviceClasses and kinds of devices once started.

    It replaces `configuration` as a whole, or not at all if the new version has a problem, and then calls `changed`. So
    requests read one attribute, and never wait.
    """

    origin: str
    configuration: Configuration
    state: ConfigurationState

    def __init__(
        self, api: ApiClient | None, changed: Callable[[ConfigurationState], object], namespace: str = ""
    ) -> None:
        """`namespace`: that of the installation, if there is a cluster (`api`)."""
        self._changed = changed
        self._wake, self._read, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._devices = ClusterDevicesWatch(api, namespace, self._wake.set) if api else None

    def start(self) -> None:
        if self._devices is not None:
            self._devices.start(self._stopping)

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def wait(self) -> None:
        """Wait for the first read of everything, or until serving may begin without it."""
        while self.must_wait:
            self._read.wait(FIRST_POLL_SECONDS)

    def refresh(self) -> None:
        """Read `documents` again. Files are not reviewed as they are written, so they need no other reading."""

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, in force or not; a new document must be valid together with them."""
        return self.configuration.documents

    @property
    def devices(self) -> ClusterDevices:
        """The known DeviceClasses and kinds of devices of the cluster."""
        return self._devices.all() if self._devices else NO_DEVICES

    @property
    def unconfirmed_seconds(self) -> float | None:
        """Seconds since the cluster last confirmed its documents; None without a cluster."""
        return None

    @property
    def must_wait(self) -> bool:
        """Whether serving must wait for the first read of documents, DeviceClasses and kinds of devices."""
        watch = self._devices
        return watch is not None and watch.awaits_first_list and not self._read.is_set()


def readiness_details(source: ConfigurationSource) -> dict[str, Any]:
    """Return the state of the configuration as `/readyz` shows it."""
    state, unconfirmed = source.state, source.unconfirmed_seconds
    detail: dict[str, Any] = {
        "from": source.origin,
        "version": state.version,
        "loadedAt": datetime.fromtimestamp(state.loaded_at, UTC).isoformat(timespec="seconds"),
        "rejected": list(state.rejected),
    }
    if unconfirmed is not None:
        detail["unconfirmedSeconds"] = round(unconfirmed, 1)
        detail["read"] = state.read
    return detail


class ConfigurationCollector(Collector):
    def __init__(self, source: ConfigurationSource) -> None:
        self._source = source

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state, unconfirmed = self._source.state, self._source.unconfirmed_seconds
        yield GaugeMetricFamily(
            "gpu_admission_config_loaded_timestamp_seconds",
            "Time at which the configuration in force was loaded.",
            value=state.loaded_at,
        )
        yield GaugeMetricFamily(
            "gpu_admission_config_valid",
            "1 if the newest configuration is in force; 0 if it was rejected or could not be read, and an older one is.",
            value=float(state.read and not state.rejected),
        )
        info = GaugeMetricFamily(
            "gpu_admission_config_info", "Version of the configuration in force.", labels=["version", "from"]
        )
        info.add_metric([state.version, self._source.origin if state.read else "built-in"], 1)
        yield info
        if unconfirmed is not None:
            yield GaugeMetricFamily(
                "gpu_admission_config_unconfirmed_seconds",
                "Seconds since the API server last confirmed its documents; up to a minute is normal.",
                value=unconfirmed,
            )
        until = GaugeMetricFamily(
            "gpu_admission_policy_paused_until_timestamp_seconds",
            "When the pause of a policy ends; absent unless it is paused.",
            labels=["policy"],
        )
        now, paused = datetime.now(UTC), 0
        for policy in self._source.configuration.policies.policies:
            if end := end_of_pause(policy.spec.paused_until, now):
                until.add_metric([policy.name], end.timestamp())
                paused += 1
        yield GaugeMetricFamily("gpu_admission_policies_paused", "Number of paused policies.", value=paused)
        yield until


class DirectorySource(ConfigurationSource):
    """Loads and watches `directory`, or the built-in documents alone. The first load raises `ConfigurationError`.

    Without a cluster (`api`), what needs one is a problem: namespace selectors, and lines of pods that wait.
    """

    def __init__(
        self,
        directory: Path | None,
        changed: Callable[[ConfigurationState], object],
        api: ApiClient | None = None,
        namespace: str = "",
    ) -> None:
        super().__init__(api, changed, namespace)
        self.origin = "directory" if directory is not None else "built-in"
        self._directory = directory
        self._signature = self._signature_now()
        self._load()

    def start(self) -> None:
        super().start()
        if self._directory is not None:
            thread("configuration", self._watch, self._stopping).start()

    def poll(self) -> None:
        """Load the directory again if anything in it, or a DeviceClass or kind, has changed since the last poll."""
        is_read = self._devices is None or self._devices.is_read
        signature = self._signature_now()
        differs, self._signature = signature != self._signature, signature
        if differs:
            try:
                self._load()
            except ConfigurationError as error:
                self.state = msgspec.structs.replace(self.state, rejected=tuple(map(str, error.problems)))
                self.state.log_rejected()
            else:
                log.info("configuration version %s is in force", self.state.version)
        if is_read:
            self._read.set()
        if differs:
            self._changed(self.state)

    def _load(self) -> None:
        self.configuration = load_directory(
            self._directory, standalone=self._devices is None, devices=self.devices
        )
        self.state = ConfigurationState(self.configuration.version, time())

    def _watch(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._wake.wait(FIRST_POLL_SECONDS if self.must_wait else POLL_SECONDS)
            self._wake.clear()
            self.poll()

    def _signature_now(self) -> object:
        """Return a value that differs after a change of a DeviceClass or kind, of a file, or of what is behind a link."""
        if self._directory is None:
            return None
        if self._directory.is_file():
            return _identity(self._directory), self.devices
        try:
            paths = [path for path in self._directory.iterdir() if not path.name.startswith(".")]
            return sorted((path.name, *_identity(path)) for path in paths), self.devices
        except OSError as error:
            return error.errno


def _identity(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
