"""A cluster in miniature around one ledger, and an oracle that knows what was promised without asking the ledger.

Time is a number, pods are vectors, every step of serve and controller is one call, so that any of them can be held up
between its read and its swap. `broken` collects what no state may show:

S1: what is stored and live exceeds what is granted (or was taken in under an earlier grant).
S2: something stored or still able to be stored is in neither `used` nor the reservations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

import msgspec

from policies.quota.amounts import ZERO, Amounts, maximum, positive_difference, total
from policies.quota.ledger.decide import ReservationRequest, VerdictReason, decide
from policies.quota.ledger.quota_ledger import (
    CREATION_SECONDS,
    EXPIRY_SECONDS,
    NO_QUOTA_SECONDS,
    QuotaLedger,
    Revisions,
)
from policies.quota.ledger.reconcile import (
    Listing,
    Reconciled,
    Refused,
    StoredObject,
    catalogue_version_to_count_by,
    initialise,
    reconcile,
)
from policies.quota.ledger.reservations import LIMIT
from tests.builders import listing, quota_ledger
from tests.reservation_requests import change_request, creation_request
from webhook.controller.usage_counter import DELETED_OBJECT
from webhook.quota.store import LedgerConflict, Store, VersionedLedger

NAMESPACE = "ledgers"
CATALOGUE = "catalogue"
SECONDS = 5.0


def vector(**amounts: int | str) -> Amounts:
    """Return `gpus` and classes by name: `vector(gpus=1, a="1/2")`."""
    return {key if key == "gpus" else f"classes/{key}": Fraction(amount) for key, amount in amounts.items()}


def times(cost: int, amounts: Amounts) -> Amounts:
    return {key: cost * amount for key, amount in amounts.items()}


class Ledger(Protocol):
    """A store, and its administrator."""

    @property
    def store(self) -> Store: ...

    @property
    def catalogue(self) -> str: ...

    def grant(self, hard: Amounts) -> None:
        """Change `spec.hard`."""
        ...

    def replace(self, hard: Amounts) -> None:
        """Delete the quota and create another one."""
        ...


class PlainStore:
    """The smallest store there can be; `blind` takes the check of versions out."""

    reservations_limit = LIMIT

    def __init__(self, hard: Amounts) -> None:
        self.blind = False
        self.versioned = VersionedLedger(fresh_ledger("quota-1", hard), "1")

    def object_name(self, namespace: str) -> str:
        return namespace

    def read(self, namespace: str, seconds: float) -> VersionedLedger | None:
        assert namespace == NAMESPACE
        assert 0 < seconds <= SECONDS
        return self.versioned

    def compare_and_swap(
        self, namespace: str, before: VersionedLedger, ledger: QuotaLedger, seconds: float
    ) -> VersionedLedger:
        assert namespace == NAMESPACE
        assert 0 < seconds <= SECONDS
        if before.ledger.quota_uid != self.versioned.ledger.quota_uid:
            raise LedgerConflict
        if before.version != self.versioned.version and not self.blind:
            raise LedgerConflict
        spec = self.versioned.ledger
        kept = {"hard": spec.hard, "generation": spec.generation, "quota_uid": spec.quota_uid}
        return self.put(msgspec.structs.replace(ledger, **kept))

    def put(self, ledger: QuotaLedger) -> VersionedLedger:
        self.versioned = VersionedLedger(ledger, str(int(self.versioned.version) + 1))
        return self.versioned


class PlainLedger:
    """The protocol alone."""

    catalogue = CATALOGUE

    def __init__(self, hard: Amounts) -> None:
        self.store = PlainStore(hard)

    def grant(self, hard: Amounts) -> None:
        ledger = self.store.versioned.ledger
        self.store.put(msgspec.structs.replace(ledger, hard=hard, generation=ledger.generation + 1))

    def replace(self, hard: Amounts) -> None:
        self.store.put(fresh_ledger(f"quota-{self.store.versioned.version}", hard))


def fresh_ledger(uid: str, hard: Amounts) -> QuotaLedger:
    return quota_ledger(quota_uid=uid, hard=hard)


def spec_of(ledger: QuotaLedger) -> tuple[str, int]:
    return ledger.quota_uid, ledger.generation


@dataclass
class Flight:
    """A request on its way: once admitted, its object may be stored until the bound has passed."""

    id: str
    after: Amounts
    growth: Amounts
    begun: float
    before: Amounts | None = None
    version: int = 0
    """Of a change: of the pod that was reviewed; it is stored on no other one."""
    name: str = ""
    """Of a creation: one that others may have as well, or none."""
    promised: bool = True
    """Whether the promise covers it: not if the quota was replaced under way."""

    @property
    def uid(self) -> str:
        return self.id.partition("/")[0]


@dataclass
class Held:
    """What a controller has listed, and what it knew when it began to. `spec`: that of the ledger."""

    listing: Listing
    expired: frozenset[str]
    waited: bool
    spec: tuple[str, int]


@dataclass
class Controller:
    """One process with a clock of its own sight: a crash is a new one."""

    sights: dict[str, float] = field(default_factory=dict)
    quotas: dict[str, float] = field(default_factory=dict)

    def observe(self, ledger: QuotaLedger, now: float) -> None:
        self.quotas.setdefault(ledger.quota_uid, now)
        self.sights = {each: self.sights.get(each, now) for each in ledger.reservations.ids}

    def expired(self, now: float) -> frozenset[str]:
        return frozenset(
            reservation for reservation, since in self.sights.items() if now - since > EXPIRY_SECONDS
        )


class World:
    """One namespace of a cluster."""

    def __init__(self, ledger: Ledger, hard: Amounts) -> None:
        self.ledger = ledger
        self.store = ledger.store
        self.now = 0.0
        self.pods: dict[str, StoredObject] = {}
        self.claims: dict[str, StoredObject] = {}
        self.gone: set[str] = set()
        """Objects that a watch reported as deleted; what a list merely lacks is not among them."""
        self.revisions = Revisions(pods=1, resource_claims=1, nodes=1)
        self.flights: dict[str, Flight] = {}
        self.lost: dict[str, Flight] = {}
        """Let in, but nobody heard it: a retry of the same call hears it again."""
        self.unpromised: set[str] = set()
        self.ceiling = dict(hard)
        self.broken: list[str] = []
        self.costs = {ledger.catalogue: 1}
        """By catalogue version, what everything counts as under it; known to every serve that is not said to lack one."""
        self._names = 0

    # What users and the API server do.

    def request(self, **amounts: int | str) -> Flight:
        """Begin to create a pod of that demand."""
        self._names += 1
        demand = vector(**amounts)
        return Flight(f"pod{self._names}", demand, demand, self.now)

    def named(self, name: str, **amounts: int | str) -> Flight:
        """Begin to create a pod of that name, which others may have as well."""
        flight = self.request(**amounts)
        flight.name = f"pods/{name}"
        return flight

    def change(self, uid: str, **amounts: int | str) -> Flight:
        """Begin to change a stored pod to that demand."""
        self._names += 1
        stored, after = self.pods[uid], vector(**amounts)
        growth = positive_difference(after, stored.demand)
        return Flight(f"{uid}/r{self._names}", after, growth, self.now, stored.demand, stored.version)

    def be_stored(self, flight: Flight) -> None:
        """Store what was admitted, if it still can be."""
        self.flights.pop(flight.id, None)
        if self.now - flight.begun > CREATION_SECONDS or not self.is_current(flight):
            return
        stored = StoredObject({}, name=flight.name) if flight.before is None else self.pods[flight.uid]
        self._write(flight.uid, msgspec.structs.replace(stored, demand=flight.after))
        if not flight.promised:
            self.unpromised.add(flight.uid)
        self.check()

    def is_current(self, flight: Flight) -> bool:
        """Whether no other write came between the review and now: of a creation, none of its name."""
        if flight.before is None:
            return not flight.name or all(pod.name != flight.name for pod in self.pods.values())
        pod = self.pods.get(flight.uid)
        return pod is not None and pod.version == flight.version

    def fail(self, flight: Flight) -> None:
        """Not store what was admitted: another webhook refused it, etcd timed out, the process that asked was killed."""
        if self.flights.pop(flight.id, None) is not None:
            self.lost[flight.id] = flight

    def finish(self, uid: str) -> None:
        self._write(uid, StoredObject(self.pods[uid].demand, terminal=True))

    def delete(self, uid: str, *, reported: bool = False) -> None:
        self._write(uid, None)
        if reported:
            self.gone.add(uid)

    def grant(self, hard: Amounts) -> None:
        """Change what the quota grants; what came in before stays."""
        self.ledger.grant(hard)
        self._raise_ceiling(hard)

    def replace(self, hard: Amounts) -> None:
        """Replace the quota: its promise begins again, once it is initialised."""
        self.ledger.replace(hard)
        for flight in (*self.flights.values(), *self.lost.values()):
            flight.promised = False
        self._raise_ceiling(hard)

    # What serve does.

    def read(self) -> VersionedLedger:
        before = self.store.read(NAMESPACE, SECONDS)
        assert before is not None
        return before

    def admit(self, flight: Flight, before: VersionedLedger | None = None) -> bool:
        """Decide, at first on the ledger `before`; on a conflict read again, as serve does."""
        while True:
            before = before or self.read()
            try:
                return self.try_admit(flight, before)
            except LedgerConflict:
                before = None

    def reservation_request(
        self, flight: Flight, ledger: QuotaLedger, *, cost: int | None = None
    ) -> ReservationRequest:
        """Return its request, counted by the catalogue versions of the ledger that are known, or else at that cost."""
        catalogue_versions = ledger.catalogue_versions & self.costs.keys() or {self.ledger.catalogue}
        cost = cost or max(self.costs[catalogue_version] for catalogue_version in catalogue_versions)
        after = times(cost, flight.after)
        if flight.before is None:
            return creation_request(flight.id, after, *catalogue_versions, name=flight.name)
        uid, _, request = flight.id.partition("/")
        before = times(cost, flight.before)
        return change_request(uid, request, before, after, *catalogue_versions, version=flight.version)

    def try_admit(self, flight: Flight, before: VersionedLedger, *, cost: int | None = None) -> bool:
        request = self.reservation_request(flight, before.ledger, cost=cost)
        decided = decide(before.ledger, [request], limit=self.store.reservations_limit)
        if decided.ledger is not before.ledger:
            self.store.compare_and_swap(NAMESPACE, before, decided.ledger, SECONDS)
        (verdict,) = decided.verdicts
        if verdict.allowed:
            self.admitted(flight, new=verdict.reason is VerdictReason.RESERVED)
        return verdict.allowed

    def admitted(self, flight: Flight, *, new: bool = True) -> None:
        """Take note that a request was let in, and see whether there was room for it."""
        self.lost.pop(flight.id, None)
        self.flights[flight.id] = flight
        hard, committed = self.read().ledger.hard, self.committed()
        for key in flight.growth if new else ():
            if key in hard and committed.get(key, ZERO) > hard[key]:
                self.broken.append(f"S1: {flight.id} makes {key} {committed[key]} of {hard[key]}")
        self.check()

    # What controllers do.

    def observe(self, controller: Controller) -> None:
        controller.observe(self.read().ledger, self.now)

    def list(self, controller: Controller) -> Held:
        """Read the quota, then list everything."""
        ledger = self.read().ledger
        catalogue_version = catalogue_version_to_count_by(ledger) or self.ledger.catalogue
        controller.observe(ledger, self.now)
        waited = self.now - controller.quotas[ledger.quota_uid] >= NO_QUOTA_SECONDS
        shown = listing(
            {**dict.fromkeys(self.gone, DELETED_OBJECT), **self.counted(catalogue_version)},
            self.revisions,
            catalogue=catalogue_version,
        )
        return Held(shown, controller.expired(self.now), waited, spec_of(ledger))

    def reconcile(self, held: Held, before: VersionedLedger | None = None) -> Reconciled | Refused:
        """Count from the list, at first on the ledger `before`; on a conflict on the ledger as it is, from the same list."""
        while True:
            before = before or self.read()
            outcome = reconcile(before.ledger, held.listing, held.expired)
            is_retried = outcome is Refused.UNCOUNTED or outcome is Refused.OTHER_CATALOGUE
            if is_retried and held.spec == spec_of(before.ledger):  # else a controller lists again first
                outcome = initialise(before.ledger, held.listing, held.expired, waited=held.waited)
            if isinstance(outcome, Refused):
                return outcome
            try:
                self.store.compare_and_swap(NAMESPACE, before, outcome.ledger, SECONDS)
            except LedgerConflict:
                before = None
                continue
            self.check()
            return outcome

    def initialised(self) -> "World":
        """Wait, list and initialise."""
        controller = Controller()
        self.observe(controller)
        self.now += NO_QUOTA_SECONDS
        assert isinstance(self.reconcile(self.list(controller)), Reconciled)
        return self

    def come_to_rest(self) -> None:
        """L1: once nothing arrives any more, reservations are empty and `used` is what lives."""
        for flight in list(self.flights.values()):
            self.fail(flight)
        controller = Controller()
        self.observe(controller)
        self.now += EXPIRY_SECONDS + 1
        outcome = self.reconcile(self.list(controller))
        ledger = self.read().ledger
        live = total(pod.demand for pod in self._all().values() if not pod.terminal)
        live = {key: amount for key, amount in live.items() if key in ledger.dimensions}
        used = {key: amount for key, amount in (ledger.used or {}).items() if amount}
        if isinstance(outcome, Refused) or len(ledger.reservations) or used != live:
            self.broken.append(
                f"L1: {outcome}: used {used}, live {live}, reservations {ledger.reservations.text!r}"
            )

    # The oracle.

    def committed(self) -> Amounts:
        """Return what is stored and live, and what may still be, as far as the promise covers it."""
        cost = self.costs[self.read().ledger.class_catalogue or self.ledger.catalogue]
        by_name: dict[str, Amounts] = {}  # objects of one name exist one after the other
        for uid, pod in self._all().items():
            if not pod.terminal and uid not in self.unpromised:
                by_name[pod.name or uid] = pod.demand
        changes = []
        for flight in filter(self._may_come, self.flights.values()):
            if flight.before is None:
                name = flight.name or flight.uid
                by_name[name] = maximum((by_name.get(name, {}), flight.growth))
            else:
                changes.append(flight.growth)
        return times(cost, total([*by_name.values(), *changes]))

    def check(self) -> None:
        ledger = self.read().ledger
        live = total(
            pod.demand for uid, pod in self._all().items() if not pod.terminal and uid not in self.unpromised
        )
        for key, amount in live.items():
            if key in self.ceiling and amount > self.ceiling[key]:
                self.broken.append(f"S1: {key} is {amount} of {self.ceiling[key]}")
        if ledger.used is None or ledger.uncounted or ledger.reservations.unreadable:
            return
        known = total((ledger.used, ledger.reserved))
        for key, amount in self.committed().items():
            if key in ledger.dimensions and amount > known.get(key, ZERO):
                self.broken.append(f"S2: {key} is {amount}, of which the ledger knows {known.get(key)}")

    def _may_come(self, flight: Flight) -> bool:
        return flight.promised and self.now - flight.begun <= CREATION_SECONDS and self._counts(flight)

    def _counts(self, flight: Flight) -> bool:
        """Whether it can still be stored and count: a change not of a pod that has finished, gone or changed meanwhile."""
        if flight.before is None:
            return True  # even if its name is taken: what has it may be deleted
        return self.is_current(flight) and not self.pods[flight.uid].terminal

    def counted(self, catalogue_version: str) -> dict[str, StoredObject]:
        """Return everything stored, with what it costs under that catalogue version."""
        cost = self.costs[catalogue_version]
        return {
            uid: msgspec.structs.replace(each, demand=times(cost, each.demand))
            for uid, each in self._all().items()
        }

    def _all(self) -> Mapping[str, StoredObject]:
        return {**self.pods, **self.claims}

    def _raise_ceiling(self, hard: Amounts) -> None:
        """Take note of what may live on under a quota that is changed now: what was let in before it was."""
        lost = (flight.growth for flight in self.lost.values() if self._may_come(flight))
        committed = total((self.committed(), *lost))
        self.ceiling = {key: max(amount, committed.get(key, ZERO)) for key, amount in hard.items()}

    def _write(self, uid: str, stored: StoredObject | None) -> None:
        is_claim = uid.startswith("claim")
        objects, collection = (self.claims, "resource_claims") if is_claim else (self.pods, "pods")
        version = getattr(self.revisions, collection) + 1
        self.revisions = msgspec.structs.replace(self.revisions, **{collection: version})
        if stored is None:
            objects.pop(uid, None)
        else:
            objects[uid] = msgspec.structs.replace(stored, version=version)
