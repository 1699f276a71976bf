"""The controller as a whole: watches what is counted, and whoever leads keeps the rows true.

Those that do not lead watch as well, so that they have seen entries for some time when their turn comes.
"""

import logging
import random
import threading
from time import monotonic

from policies.quota.ledger.quota_ledger import QuotaLedger
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.informer import Informer, WatchTimings
from webhook.cluster.leader import Leader
from webhook.configuration.loader import Configuration
from webhook.controller.counting import Counting, catalogue_of
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.quotas import QUOTAS, QuotaRecord, quota_record
from webhook.controller.reconciler import QuotaReconciler
from webhook.controller.reservation_ages import ReservationAges
from webhook.controller.work_queue import WorkQueue
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.store import LedgerError

log = logging.getLogger("gpu_admission.controller")

WORKERS = 2
FREED_SECONDS = 0.2
"""From when something ended or was deleted to the count that gives it back: somebody may wait for the room."""
STORED_SECONDS = 1.0
"""From any other change to the count that shows it: what was stored has its room already, as an entry. Each count is a write
that creations contend with, one conflict in three counts where they come one by one; a second's entries add little to theirs."""
LOOK_SECONDS = 0.5
FAILED_SECONDS = (1.0, 10.0)
"""First and longest pause of a namespace that could not be settled. What is left by an API server that was killed is first seen
by the first look or watch after its return, and held for the whole bound from then."""
HANGS_SECONDS = 120.0
"""A worker busy for longer with one namespace is not healthy; its calls alone end within some tens of seconds."""


class Controller:
    """Runs until `stopping`. The threads are daemons: a call that hangs does not keep the process."""

    def __init__(
        self,
        api: ApiClient,
        configuration: Configuration,
        leader: Leader,
        metrics: ControllerMetrics,
        *,
        recount_seconds: float,
        sights: ReservationAges | None = None,
        pace: WatchTimings | None = None,
    ) -> None:
        self._api = api
        self._leader = leader
        self._metrics = metrics
        self._pace = pace
        self._sights = sights or ReservationAges()
        self._queue = WorkQueue()
        self._failures: dict[str, int] = {}
        self._busy_since: dict[str, float] = {}
        self._counting_stop = threading.Event()
        self.quotas: Informer[QuotaRecord] = Informer(
            api, QUOTAS, quota_record, self._quota_changed, pace=pace
        )
        self.counting = Counting(api, configuration, self._count_changed, pace=pace)
        self._settler = QuotaReconciler(
            ClusterStore(api), self.counting, self._sights, metrics, recount_seconds=recount_seconds
        )

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping`; let the leadership go at the end."""
        self.counting.start(self._counting_stop)
        threads = [
            threading.Thread(target=self.quotas.run, args=(stopping,), name="watch quotas", daemon=True),
            *(
                threading.Thread(target=self._work, args=(stopping,), name=f"settle {number}", daemon=True)
                for number in range(WORKERS)
            ),
        ]
        leading = threading.Thread(target=self._leader.run, args=(stopping,), name="leader", daemon=True)
        for thread in (*threads, leading):
            thread.start()
        stopping.wait()
        self._counting_stop.set()
        leading.join(timeout=5.0)

    def configure(self, configuration: Configuration) -> None:
        """Count by another configuration from now on. Raises `errors.ApiError`; then the old one stays."""
        if catalogue_of(configuration) == self.counting.catalogue:
            return  # policies are not counted by
        counting = Counting(self._api, configuration, self._count_changed, pace=self._pace)
        stop = threading.Event()
        counting.start(stop)
        self._counting_stop.set()
        self.counting, self._counting_stop = counting, stop
        self._settler.counting = counting
        for namespace in self.quotas.namespaces():
            self._queue.add(namespace)

    def rows(self) -> list[tuple[str, QuotaLedger]]:
        """Return what the watch showed last of every quota that can be read."""
        return [(record.namespace, record.row) for record in self.quotas.all() if record.row is not None]

    def mirrors(self) -> dict[str, Informer[QuotaRecord]]:
        return {"gpuquotas": self.quotas, **self.counting.mirrors}  # type: ignore[dict-item] # mirrors of anything

    def unready(self) -> str:
        """Return why the controller is not ready, empty if it is. A follower is ready: it watches."""
        waiting = [name for name, mirror in self.mirrors().items() if not mirror.synced]
        return f"not listed yet: {', '.join(waiting)}" if waiting else ""

    def unhealthy(self) -> str:
        """Return why the process should be restarted, empty if it should not: an API server that is away is no reason."""
        now = monotonic()
        hanging = [name for name, since in list(self._busy_since.items()) if now - since > HANGS_SECONDS]
        return f"busy for over {HANGS_SECONDS:.0f} s: {', '.join(sorted(hanging))}" if hanging else ""

    def _quota_changed(self, before: QuotaRecord | None, after: QuotaRecord | None) -> None:
        if after is None:
            if before is not None:
                self._sights.forget(before.namespace)
                self._queue.add(before.namespace)
            return
        if after.row is None:
            log.error("%s: %s", after.namespace, after.problem)
            return
        self._sights.see(after.namespace, after.row)
        known = before is not None and before.row is not None
        if known and before is not None and before.row is not None and _spec(before.row) == _spec(after.row):
            maturity = self._sights.next_maturity(after.namespace)
            if maturity is not None:
                self._queue.add(after.namespace, maturity)
        else:
            self._queue.add(after.namespace)

    def _count_changed(self, namespace: str, gives_back: bool) -> None:
        if self.quotas.view(namespace).items:
            self._queue.add(namespace, FREED_SECONDS if gives_back else STORED_SECONDS)

    def _work(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._metrics.leads.set(float(self._leader.leads))
            if not self._leader.leads or not self.counting.synced or not self.quotas.synced:
                stopping.wait(LOOK_SECONDS)
                continue
            namespace = self._queue.take(LOOK_SECONDS)
            if namespace is not None:
                self._settle(namespace)

    def _settle(self, namespace: str) -> None:
        self._busy_since[namespace] = monotonic()
        try:
            again = self._settler.reconcile(namespace)
            self._failures.pop(namespace, None)
        except (LedgerError, errors.ApiError) as error:
            log.warning("%s: %s", namespace, error)
            again = self._failed(namespace)
        except Exception:  # a defect met in one namespace must not end the work on the others
            log.exception("%s: cannot be settled", namespace)
            again = self._failed(namespace)
        finally:
            self._busy_since.pop(namespace, None)
            self._queue.done(namespace)
        if again is not None:
            self._queue.add(namespace, again)

    def _failed(self, namespace: str) -> float:
        self._metrics.failures.inc()
        self._failures[namespace] = min(self._failures.get(namespace, 0) + 1, 10)
        first, longest = FAILED_SECONDS
        pause = min(longest, first * 2.0 ** (self._failures[namespace] - 1))
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


def _spec(row: QuotaLedger) -> tuple[str, int]:
    return row.quota_uid, row.generation
