"""Owns the election, the queue of ledgers that are due and its workers, the Events, and the threads of all parts."""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from time import monotonic, time

from policies.quota.ledger.quota_ledger import COUNTED_SECONDS
from policies.quota.quota_request import LedgerError
from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.events import EventQueue, EventWriter
from webhook.cluster.leader import LeaderElector
from webhook.cluster.objects import CONTROLLER
from webhook.configuration.loader import Configuration
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.shared_informers import SharedInformers
from webhook.controller.team_reconciler import Outcome
from webhook.controller.work_queue import WorkItem, WorkQueue
from webhook.quota.ledger_objects import team_object_name
from webhook.threads import POLL_SECONDS, Body, thread

log = logging.getLogger("gpu_admission.controller")

WORKERS = 16
"""Most workers wait for a list or a write. A list of tens of thousands of objects takes seconds."""
RETRY_SECONDS = (0.1, 10.0)
"""First and longest pause after a failed reconciliation of a namespace. The longest also bounds how late reservations
that a killed API server left are seen."""
HANG_SECONDS = 120.0
"""A worker that is busy with one group for longer hangs: each call to the API server ends within some tens of seconds."""
LOOK_SECONDS = 1.0
ROUND_SHARE, FRESH_SHARE = 0.8, 0.1
"""Parts of the period of `recount`. All namespaces are recounted within ROUND_SHARE. A list younger than FRESH_SHARE is not
repeated. So no list gets older than the period."""

Reconcile = Callable[[WorkItem], Mapping[str, Outcome]]
"""Reconciles the names of one group that are due, and returns the outcome of each (`team_reconciler.Outcome`)."""


class Manager:
    """Runs each part of a controller in a thread.

    Make a part with what it reads, and with `is_ready_leader`, `queue` or `events` of the manager. Then `add` the body of its
    thread: `run` of the part, or one of `threads.every` and `threads.while_leading`.
    """

    def __init__(
        self, api: ApiClient, elector: LeaderElector, informers: SharedInformers, metrics: ControllerMetrics
    ) -> None:
        self._elector, self.informers, self._metrics = elector, informers, metrics
        # A group rests after a write, so that one count shows many pods.
        self.queue = WorkQueue(self._group_of, rest=COUNTED_SECONDS)
        self.events = EventQueue(EventWriter(api, CONTROLLER), metrics.events_lost.inc)
        self._parts: dict[str, Body] = {}
        self._failures: dict[str, int] = {}
        self._busy_since: dict[str, float] = {}

    def add(self, name: str, body: Body) -> None:
        """Run a part in a thread of that name. Raises ValueError if another part has the name."""
        if name in self._parts:
            raise ValueError(f'there is a part "{name}" already: each part must have a name of its own')
        self._parts[name] = body

    def add_workers(self, reconcile: Reconcile) -> None:
        """Run WORKERS threads that take names from the queue and reconcile them while this process leads."""
        for number in range(WORKERS):
            self.add(f"reconcile {number}", partial(self._work, reconcile))

    def run(self, stopping: threading.Event) -> None:
        """Work until `stopping`, then release the Lease."""
        self.informers.start(stopping)
        self.events.start()
        for name, body in self._parts.items():
            thread(name, body, stopping).start()
        election = thread("election", self._elector.run, stopping)
        election.start()
        stopping.wait()
        self.informers.stop()
        election.join(timeout=5.0)
        self.events.stop()

    def is_ready_leader(self) -> bool:
        """Whether this process is the leader, and its informers are synced. Work that reads no informer asks only the elector."""
        return self._elector.is_leader() and not self.informers.why_unready()

    def recount(self, period: float, stopping: threading.Event) -> None:
        """List and count the namespaces with a ledger again, evenly spread over the period, while this process leads.

        So an object that the watch missed is counted after a period at most.
        """
        queue: deque[str] = deque()
        last = monotonic()
        while not stopping.is_set():
            current, waiting = self.namespaces_to_recount(), frozenset(queue)
            queue.extend(name for name in current if name not in waiting)
            delay = last + ROUND_SHARE * period / max(1, len(queue)) - monotonic()
            if not queue or delay > 0:
                stopping.wait(min(delay, LOOK_SECONDS) if queue else LOOK_SECONDS)
                continue
            last = monotonic()
            namespace = queue.popleft()
            if namespace not in current:
                continue
            queue.append(namespace)
            try:
                self.informers.usage.recount(
                    namespace, since=last - FRESH_SHARE * period, nodes_since=last - ROUND_SHARE * period
                )
            except errors.ApiError as error:
                log.warning("%s: not recounted: %s", namespace, error)
                continue
            if namespace in self.namespaces_to_recount():
                self._metrics.recount_time.labels(namespace).set(time())
                self.queue.add(namespace)

    def namespaces_to_recount(self) -> Collection[str]:
        """Return the namespaces with a ledger; none unless this process is the ready leader."""
        return self.informers.observed.ledgers() if self.is_ready_leader() else ()

    def configure(self, configuration: Configuration) -> None:
        """Count by another configuration from now on. Raises `errors.ApiError` as `SharedInformers.configure`."""
        for namespace in self.informers.configure(configuration):
            self.queue.add(namespace)

    def why_unhealthy(self) -> str:
        """Return why the process must be restarted, empty if not. An unavailable API server is not a reason."""
        now = monotonic()
        hanging = [name for name, since in list(self._busy_since.items()) if now - since > HANG_SECONDS]
        return f"busy for over {HANG_SECONDS:.0f} s: {', '.join(sorted(hanging))}" if hanging else ""

    def _group_of(self, name: str) -> str:
        """Return the GPUQuotaLedger that is written for the name.

        That is the object that has its ledger, or the object of the team that the namespace is to join.
        """
        object_name = self.informers.observed.object_name(name)
        team = self.informers.membership.last_team_of(name) if object_name == name else ""
        return team_object_name(team) if team else object_name

    def _work(self, reconcile: Reconcile, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._metrics.leader.set(float(self._elector.is_leader()))
            if not self.is_ready_leader():
                stopping.wait(POLL_SECONDS)
                continue
            item = self.queue.take(POLL_SECONDS)
            if item is not None and not stopping.is_set():
                self._reconcile(reconcile, item)

    def _reconcile(self, reconcile: Reconcile, item: WorkItem) -> None:
        outcomes: Mapping[str, Outcome | Exception]
        self._busy_since[item.group] = monotonic()
        try:
            outcomes = reconcile(item)
        except (LedgerError, errors.ApiError) as error:
            outcomes = dict.fromkeys(item.names, error)
        except Exception as bug:  # a bug with one object must not end the work on the others
            log.exception("%s: reconciliation failed", item.group)
            outcomes = dict.fromkeys(item.names, bug)
        finally:
            self._busy_since.pop(item.group, None)
            self.queue.done(item)
        for name, outcome in outcomes.items():
            if isinstance(outcome, LedgerError | errors.ApiError):
                log.warning("%s: %s", name, outcome)
            if not isinstance(outcome, Exception):
                self._failures.pop(name, None)
            seconds = self._retry_pause(name) if isinstance(outcome, Exception) else outcome
            if seconds is not None:
                self.queue.add(name, seconds)

    def _retry_pause(self, name: str) -> float:
        """Count a failure. Return the seconds until the next reconciliation of the name."""
        self._metrics.failures.inc()
        self._failures[name] = min(self._failures.get(name, 0) + 1, 10)
        first, longest = RETRY_SECONDS
        pause = min(longest, first * 2.0 ** (self._failures[name] - 1))
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
