"""The configuration in force, kept up to date with the documents that the API server has.

A new version takes over as a whole; one with any error is refused as a whole, and the last good one stays (`choice`). It
stays as well while the API server is away; `unconfirmed_seconds` says for how long it has not been heard. Until the documents
were read for the first time the built-in ones hold.
"""

import logging
import threading
from collections.abc import Callable
from time import monotonic, time

import msgspec

from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Informer, WatchTimings
from webhook.configuration.choice import Chosen, choose
from webhook.configuration.documents import Document
from webhook.configuration.loader import load_directory
from webhook.configuration.records import RESOURCES, Record, reader
from webhook.configuration.source import State

SETTLE_SECONDS = 0.3
"""Documents that are applied together arrive one after the other; half of them may be no configuration."""
SETTLE_LONGEST = 2.0
LOOK_SECONDS = 0.5
FIRST_LOOK_SECONDS = 0.05
START_SECONDS = 10.0
"""How long the first list is waited for before the built-in documents are better than no answer."""

log = logging.getLogger("gpu_admission.configuration")


class EvaluatedDocuments(msgspec.Struct, frozen=True):
    """The documents as they are stored, and what of them is in force."""

    records: tuple[Record, ...]
    chosen: Chosen


class ClusterSource:
    """Watches the three kinds once started. `changed` is told every new state, in the thread that found it."""

    origin = "cluster"

    def __init__(
        self, api: ApiClient, changed: Callable[[State], object], *, pace: WatchTimings | None = None
    ) -> None:
        self._changed = changed
        self._mirrors = [
            Informer(api, resource, reader(kind), lambda _before, _after: self._wake.set(), timings=pace)
            for kind, resource in RESOURCES.items()
        ]
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._read = threading.Event()
        self._made = monotonic()
        built_in = load_directory(None)
        self.configuration = built_in
        self.state = State(built_in.version, time(), read=False)
        self.judged: EvaluatedDocuments | None = None
        """None until the documents were read for the first time."""

    def start(self) -> None:
        for mirror in self._mirrors:
            name = f"watch {mirror.resource.plural}"
            threading.Thread(target=mirror.run, args=(self._stopping,), name=name, daemon=True).start()
        threading.Thread(target=self._follow, name="configuration", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def wait(self) -> None:
        """Return once the documents were read, or it is no use to wait for them."""
        while self.waits:
            self._read.wait(FIRST_LOOK_SECONDS)

    @property
    def documents(self) -> tuple[Document, ...]:
        """Everything that is stored, in force or not, as the watch showed it last."""
        return tuple(record.document for record in self._records())

    def refresh(self) -> None:
        """Read everything now: what was applied a moment ago may not have come by the watch yet."""
        try:
            for mirror in self._mirrors:
                mirror.refresh()
        except (errors.ApiError, msgspec.MsgspecError) as error:
            log.warning("the documents could not be read again: %s", error)

    @property
    def unconfirmed_seconds(self) -> float:
        """Since the API server was last heard about every kind; up to a minute is normal."""
        return max(mirror.age for mirror in self._mirrors)

    @property
    def waits(self) -> bool:
        """Whether the documents may still be read any moment, so that the built-in ones should not answer yet."""
        is_early = monotonic() - self._made < START_SECONDS
        return not self._read.is_set() and is_early and not any(mirror.is_missing for mirror in self._mirrors)

    def _follow(self) -> None:
        waited = True
        while not self._stopping.is_set():
            if not all(mirror.synced for mirror in self._mirrors):
                if waited and not self.waits:
                    log.warning("no documents could be read yet: the built-in ones are in force")
                waited = self.waits
                self._stopping.wait(FIRST_LOOK_SECONDS)
                continue
            if self.judged is not None:
                if not self._wake.wait(LOOK_SECONDS):
                    continue
                self._settle()
            self._wake.clear()
            try:
                self._judge()
            except Exception:  # a defect met in one version must not end the following; the old version stays
                log.exception("the configuration could not be looked at")
                self._stopping.wait(LOOK_SECONDS)

    def _settle(self) -> None:
        """Wait until nothing more comes."""
        longest = monotonic() + SETTLE_LONGEST
        self._wake.clear()
        while self._wake.wait(SETTLE_SECONDS) and monotonic() < longest:
            self._wake.clear()

    def _records(self) -> tuple[Record, ...]:
        found = (record for mirror in self._mirrors for record in mirror.all())
        return tuple(sorted(found, key=lambda record: record.document.key))

    def _judge(self) -> None:
        records = self._records()
        chosen = choose(records, self.judged.chosen.documents if self.judged else None)
        before, version = self.state, chosen.configuration.version
        refused = tuple(str(problem) for problem in chosen.problems)
        if version != before.version:
            self.configuration = chosen.configuration
            log.info("configuration version %s is in force", version)
        if refused and refused != before.refused:
            for problem in refused:
                log.error("new configuration refused, version %s is in force: %s", version, problem)
        self.state = State(version, before.loaded_at if version == before.version else time(), refused)
        self.judged = EvaluatedDocuments(records, chosen)
        if not self._read.is_set() or self.state != before:
            self._read.set()
            self._changed(self.state)
