"""What pods that ended leave to those that replace them: quota that their object keeps, or a credit.

`policies.quota.ledger.keeps` and `policies.quota.ledger.credits` decide. This module hears of the ends, and reads the objects.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from time import monotonic, time

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import GPUS, ZERO, Amounts, maximum
from policies.quota.catalogue import CatalogueVersion
from policies.quota.ledger.credits import REPLACED_MS, Credit, credited, holder_key, owner_key
from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.keeps import DemandOfObject, Ended, with_keeps
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.waiting import QueueSpec
from webhook.cluster import errors
from webhook.controller.gangs import READING_SECONDS
from webhook.controller.keepers import Keepers
from webhook.controller.usage_cache import UsageCache
from webhook.controller.usage_counter import Holding
from webhook.quota.counted_records import CountedPod, CountedRecord
from webhook.workloads.gang_sources import GangSource

log = logging.getLogger("gpu_admission.controller")

KEEPER_REREAD_SECONDS = 0.5
"""Seconds after which an object that keeps quota is read again: it may have ended, or ask for less."""
LEARNING_SECONDS = 0.2
"""Seconds for the reads of new owners in one turn. An owner may be deleted before its pods, and is not found then."""
MAX_ENDED = 1000
"""Pods of one namespace that are remembered after their end, until a count has their credits."""


class _EndedPod(msgspec.Struct, frozen=True, eq=False):
    """A pod that ended. at: when, in ms since 1970. after: a revision at which it had not ended."""

    pod: CountedPod
    at: int
    after: int
    has_succeeded: bool


class Replacements:
    """Thread-safe.

    `line_spec_of` returns `spec.queue` of the quota of a namespace, and `lets_wait` says whether its pods may wait.
    `reconcile_later` is called with a namespace whose line needs another turn, and after how many seconds.

    Hears: usage_cache.events.began, usage_cache.events.ended.
    """

    def __init__(
        self,
        usage_cache: UsageCache,
        keepers: Keepers,
        line_spec_of: Callable[[str], QueueSpec],
        lets_wait: Callable[[str], bool],
        reconcile_later: Callable[[str, float], object],
    ) -> None:
        self.usage_cache, self._keepers = usage_cache, keepers
        self.line_spec_of, self._lets_wait = line_spec_of, lets_wait
        self.reconcile_later = reconcile_later
        self._lock = threading.Lock()
        self._ended: dict[str, deque[_EndedPod]] = {}
        self._unlearned: dict[str, set[GangSource]] = {}
        """By namespace: owners that are new since its first turn in this process."""
        usage_cache.events.began.subscribe(self._holder_began)
        usage_cache.events.ended.subscribe(self._holder_ended)

    def _holder_began(self, _digest: str, holding: Holding) -> None:
        record = holding.record
        if isinstance(record, CountedPod) and record.owner and record.namespace in self._unlearned:
            with self._lock:
                self._unlearned[record.namespace].add(record.owner)

    def _holder_ended(self, digest: str, holding: Holding) -> None:
        own = self.usage_cache.own_counter
        if digest == own.digest and not holding.was_handed_over:
            self.ended(holding.record, own.pods.changed_after, has_succeeded=holding.has_succeeded)

    def ended(self, record: CountedRecord, after: int, *, has_succeeded: bool = False) -> None:
        """Note that an object ended after this revision: its replacement goes first in line."""
        if isinstance(record, CountedPod):
            now = now_ms()
            with self._lock:
                # The namespace moves to the end: the dict is in the order of the last ends.
                ended = self._ended.pop(record.namespace, deque(maxlen=MAX_ENDED))
                self._ended[record.namespace] = ended
                ended.append(_EndedPod(record, now, after, has_succeeded))
                while self._ended[oldest := next(iter(self._ended))][-1].at < now - REPLACED_MS:
                    del self._ended[oldest]

    def credited(self, namespace: str, former: QuotaLedger, counted: QuotaLedger) -> QuotaLedger:
        """Return a count with what each pod that ended since `former`, the stored ledger, was counted leaves to its replacement.

        That is what its object keeps, or a credit. `former` has those of earlier ends, perhaps from another process.
        """
        ended, in_team = self._ended_between(namespace, former, counted), counted.team_state is not None
        queues = bool(self.usage_cache.waiting(namespace)) or self._lets_wait(namespace)
        if not (queues and self.line_spec_of(namespace).prefer_replacements):
            with self._lock:
                self._unlearned.pop(namespace, None)
            return with_keeps(counted, (), {keeper.uid: None for keeper in counted.keepers}, now_ms())
        # Without the lock: reading pods needs that of the informers, which hold theirs while they call `ended`.
        self._learn_owners(namespace)
        demand_of = demand_reader(self.usage_cache, counted)
        if demand_of is None:
            return with_keeps(counted, (), {}, now_ms())
        deadline, left, added = monotonic() + READING_SECONDS, list[Ended](), list[Credit]()
        for ended_pod in ended:
            owner = self._keepers.of(namespace, ended_pod.pod.owner, deadline)
            keeps = owner is not None and owner.through and not ended_pod.pod.never_waits
            if owner is not None and keeps and not ended_pod.has_succeeded:
                left.append(Ended(ended_pod.pod.uid, demand_of(ended_pod.pod), owner))
            elif owner is not None and not in_team:
                added.append(
                    Credit(
                        owner_key(ended_pod.pod.holder, owner.uid), demand_of(ended_pod.pod), (ended_pod.at,)
                    )
                )
        if added:
            counted = replace(counted, credits=credited(counted.credits, added, 1))
        keeping = {keep.keeper_uid for keep in counted.reservations.keeps}
        keepers = {keeper.uid: keeper for keeper in counted.keepers if keeper.uid in keeping}
        keepers |= {ended_pod.keeper.uid: ended_pod.keeper for ended_pod in left}
        rooms = self._rooms(namespace, counted, keepers, demand_of) if keepers else {}
        counted = with_keeps(counted, left, rooms, now_ms())
        if counted.reservations.keeps:
            self.reconcile_later(namespace, KEEPER_REREAD_SECONDS)
        return counted

    def _learn_owners(self, namespace: str) -> None:
        """Read which objects keep quota for the pods that run, while their owners exist."""
        deadline = monotonic() + LEARNING_SECONDS
        with self._lock:
            is_first = namespace not in self._unlearned
            unlearned = self._unlearned.pop(namespace, set())
            self._unlearned[namespace] = set()
        if is_first:
            pods = self.usage_cache.own_counter.sums.pods(namespace)
            unlearned = {pod.owner for pod in pods if pod.owner and pod.holds_quota}
        while unlearned and monotonic() < deadline:
            self._keepers.of(namespace, unlearned.pop(), deadline)
        if unlearned:
            with self._lock:
                self._unlearned[namespace] |= unlearned
            self.reconcile_later(namespace, LEARNING_SECONDS)

    def _rooms(
        self,
        namespace: str,
        ledger: QuotaLedger,
        keepers: Mapping[str, Keeper],
        demand_of: Callable[[CountedPod], Amounts],
    ) -> dict[str, DemandOfObject | None]:
        """Return what each of these objects asks for beyond its pods that hold quota. What cannot be read is absent."""
        keeper_of, live = self.keeper_of(namespace, keepers.values()), dict[str, list[Fraction]]()
        for pod in self.usage_cache.own_counter.sums.pods(namespace):
            if pod.holds_quota or pod.uid in ledger.reservations.lifts:
                live.setdefault(keeper_of(pod), []).append(demand_of(pod).get(GPUS, ZERO))
        rooms: dict[str, DemandOfObject | None] = {}
        deadline = monotonic() + READING_SECONDS
        for uid, keeper in keepers.items():
            if monotonic() >= deadline:
                break
            try:
                rooms[uid] = self._keepers.room(namespace, keeper, live.get(uid, ()))
            except errors.ApiError as error:
                log.warning("%s: %s %s, which keeps quota: %s", namespace, keeper.kind, keeper.name, error)
        return rooms

    def keeper_of(self, namespace: str, keepers: Iterable[Keeper]) -> Callable[[CountedPod], str]:
        """Return a function: pod → uid of the one of these objects that keeps quota for it, "" if none does."""
        deadline, by_uid = monotonic() + READING_SECONDS, {keeper.uid: keeper for keeper in keepers}
        kinds = {keeper.through for keeper in by_uid.values()}

        def keeper_of(pod: CountedPod) -> str:
            may_have = pod.owner is not None and pod.owner.kind in kinds
            keeper = self._keepers.of(namespace, pod.owner, deadline) if may_have else None
            return keeper.uid if keeper is not None and keeper.uid in by_uid else ""

        return keeper_of

    def _ended_between(self, namespace: str, former: QuotaLedger, counted: QuotaLedger) -> list[_EndedPod]:
        """Return the pods that ended since `former` was counted. What ended before is forgotten."""
        counted_before, oldest = former.revisions.pods, now_ms() - REPLACED_MS
        with self._lock:
            ended = [
                ended_pod
                for ended_pod in self._ended.pop(namespace, ())
                if ended_pod.after >= counted_before and ended_pod.at > oldest
            ]
            if ended:
                self._ended[namespace] = deque(ended, MAX_ENDED)
        return [pod for pod in ended if counted_before and pod.after < counted.revisions.pods]

    def credited_owner(self, namespace: str, ledger: QuotaLedger) -> Callable[[CountedPod], str]:
        """Return a function: pod → owner of its credits, "" without one. Other owners are not read."""
        holders = {credit.holder for credit in ledger.credits}
        deadline = monotonic() + READING_SECONDS

        def credited_owner(pod: CountedPod) -> str:
            may_have = bool(holders) and holder_key(pod.holder) in holders
            owner = self._keepers.of(namespace, pod.owner, deadline) if may_have else None
            return owner_key(pod.holder, owner.uid) if owner else ""

        return credited_owner


def now_ms() -> int:
    """Return ms since 1970. Controllers exchange them, which a monotonic clock does not allow."""
    return int(time() * 1000)


def demand_reader(usage_cache: UsageCache, ledger: QuotaLedger) -> Callable[[CountedPod], Amounts] | None:
    """Return a function: pod → its demand under every catalogue version of the ledger. None if one cannot be read."""
    counters = []
    for version in map(CatalogueVersion.parse, ledger.catalogue_versions):
        counter = usage_cache.of(version.digest) if version else None
        if version is None or counter is None or not counter.synced:
            return None
        counters.append((counter, version.unclassified_pods))
    known: dict[tuple[int, ...], Amounts] = {}

    def demand_of(pod: CountedPod) -> Amounts:
        """Return the same object for equal pods, as each counter does."""
        vectors = [counter.sums.demand_if_started(pod, by) for counter, by in counters]
        identities = tuple(map(id, vectors))
        if identities not in known:
            known[identities] = maximum(vectors)
        return known[identities]

    return demand_of
