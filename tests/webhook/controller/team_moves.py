"""Controllers that move ledgers between teams while replicas reserve: one call to the API server at a time, in random order.

A controller may end at any call, before or after it is done; then another one continues.
"""

import random
import threading
from collections.abc import Callable
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from policies.quota.amounts import ZERO
from policies.quota.ledger.decide import decide
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reconcile import Reconciled
from policies.quota.quota_request import LedgerError
from policies.quota.team_spec import TeamMatch, TeamNamespaces
from tests.policies.quota.ledger.creations import creation
from tests.webhook.quota.ledger_api import INSTALLATION, LEDGERS, LedgerApi
from tests.webhook.quota.quota_and_ledger_object import NO_LINE
from webhook.cluster.api import ApiClient
from webhook.controller.metrics import ControllerMetrics
from webhook.controller.moves import TeamMoves
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.reconciler import Counting, QuotaReconciler
from webhook.controller.team_reconciler import TeamReconciler
from webhook.controller.teams import DeletedQuotas, TeamSizes
from webhook.quota.cluster_store import ClusterStore
from webhook.quota.documents import decode_quota, quota_path
from webhook.quota.ledger_objects import (
    TeamObjects,
    decode_ledger_object,
    is_team_object,
    team_object_name,
)
from webhook.quota.store import LedgerConflict
from webhook.quota.team_documents import decode_team, team_path

SECONDS = 1.0
TEAMS = ("a", "b")


class CrashError(BaseException):
    """The process ends here."""


class Turns:
    """Lets one thread run at a time, from one call to the next. `crash` is the chance that a call of a controller is its last."""

    def __init__(self, seed: int, crash: float) -> None:
        self.random, self.crash = random.Random(seed), crash  # noqa: S311 - no secret
        self._changed = threading.Condition()
        self._waiting: list[str] = []
        self._chosen = ""
        self._failures: list[BaseException] = []
        self._left = 0

    def run(self, *bodies: Callable[[], object]) -> None:
        threads = [
            threading.Thread(target=self._body, args=(body,), name=f"{number:02}", daemon=True)
            for number, body in enumerate(bodies)
        ]
        self._left = len(threads)
        for thread in threads:
            thread.start()
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: len(self._waiting) == self._left, timeout=20):
                    raise AssertionError("a thread waits for something else than its turn")
                if self._failures:
                    raise self._failures[0]
                if not self._waiting:
                    return
                self._waiting.sort()
                self._chosen = self._waiting.pop(self.random.randrange(len(self._waiting)))
                self._changed.notify_all()

    def take(self) -> None:
        me = threading.current_thread().name
        with self._changed:
            self._waiting.append(me)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._chosen == me, timeout=20):
                raise AssertionError("no turn came")
            self._chosen = ""

    def _body(self, body: Callable[[], object]) -> None:
        self.take()
        try:
            body()
        except BaseException as failure:  # noqa: BLE001 - raised by `run`
            if not isinstance(failure, CrashError):
                self._failures.append(failure)
        finally:
            with self._changed:
                self._left -= 1
                self._changed.notify_all()


class Process:
    """The API as one process calls it: each call waits for its turn."""

    def __init__(self, world: "World", *, crashes: bool) -> None:
        self._world, self._crashes = world, crashes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            turns = self._world.turns
            turns.take()
            if self._world.before_calls:
                self._world.before_calls.pop(0)()
            ends = self._crashes and turns.random.random() < turns.crash
            if ends and turns.random.random() < 0.5:
                raise CrashError
            done = getattr(self._world.api, name)(*args, **options)
            if name != "get":
                self._world.check()
            if ends:
                raise CrashError
            return done

        return call


class World:
    """Namespaces with and without a GPUQuota that belong to no team, a or b, and what was admitted in each.

    `broken` says which rule does not hold.
    """

    def __init__(self, seed: int, *, crash: float, quotas: dict[str, bool]) -> None:
        self.turns, self.api = Turns(seed, crash), LedgerApi()
        self.belongs = dict.fromkeys(quotas, "")
        self.teams = set(TEAMS)
        self.admitted: dict[str, set[str]] = {namespace: set() for namespace in quotas}
        self.broken: list[str] = []
        self.before_calls: list[Callable[[], object]] = []
        """What happens before the next calls, one after the other."""
        self._moved_to: dict[str, str] = {}
        for namespace, has_quota in quotas.items():
            self.api.put_namespace(namespace, {})
            if has_quota:
                metadata = {
                    "name": "default",
                    "namespace": namespace,
                    "uid": f"q-{namespace}",
                    "generation": 1,
                }
                document = {"metadata": metadata | {"resourceVersion": "1"}, "spec": {"hard": {"gpus": 1000}}}
                self.api._objects[quota_path(namespace)] = document
        for team in TEAMS:
            self.api._objects[team_path(team)] = _cluster_gpu_quota(team)

    def store(self, *, crashes: bool) -> ClusterStore:
        def team_of(namespace: str, _seconds: float) -> TeamMatch | None:
            found = self.belongs[namespace]
            return TeamMatch(found, TeamNamespaces(names=(namespace,))) if found else None

        return ClusterStore(cast(ApiClient, Process(self, crashes=crashes)), INSTALLATION, team_of)

    def delete_what_nobody_belongs_to(self) -> None:
        """Have exactly the ClusterGPUQuotas to which a namespace belongs, so that objects of teams come and go."""
        for team in TEAMS:
            if team in self.belongs.values():
                self.api._objects.setdefault(team_path(team), _cluster_gpu_quota(team))
            else:
                self.api._objects.pop(team_path(team), None)

    def objects(self) -> tuple[dict[str, QuotaLedger], dict[str, Any]]:
        """Return the ledgers in own objects by namespace, and the ledgers of teams by object."""
        own: dict[str, QuotaLedger] = {}
        teams: dict[str, Any] = {}
        for path, document in self.api._objects.items():
            if path.startswith(f"{LEDGERS}/"):
                name, raw = path.removeprefix(f"{LEDGERS}/"), msgspec.json.encode(document)
                if is_team_object(name):
                    teams[name] = TeamObjects().decode(raw).team_ledgers
                else:
                    own[name] = decode_ledger_object(raw).ledger
        return own, teams

    def check(self) -> None:
        """Check that a team's object decides only about a namespace whose own object says so, and that nothing is lost."""
        own, teams = self.objects()
        for namespace, admitted in self.admitted.items():
            ledger = own.get(namespace)
            if ledger is None:
                if self._moved_to.get(namespace):
                    self.broken.append(
                        f"the own object of {namespace} was deleted, and its ledger is elsewhere"
                    )
                admitted.clear()  # neither a GPUQuota nor a team limits the namespace any more
            self._moved_to[namespace] = ledger.moved_to if ledger else ""
            for place, found in teams.items():
                if found.has(namespace) and (ledger is None or ledger.moved_to != place):
                    self.broken.append(f"both {place} and the own object decide about {namespace}")
            there = (
                teams[ledger.moved_to].ledgers.get(namespace) if ledger and ledger.moved_to in teams else None
            )
            held = there or ledger
            kept = {each.id for each in held.reservations} if held else set()
            if lost := admitted - kept:
                self.broken.append(f"{namespace} has lost {sorted(lost)}")

    def decides(self, namespace: str) -> str:
        """Return which object decides about a namespace, "" if none."""
        own, teams = self.objects()
        ledger = own.get(namespace)
        if ledger is None:
            return ""
        if not ledger.moved_to:
            return namespace
        return ledger.moved_to if ledger.moved_to in teams and teams[ledger.moved_to].has(namespace) else ""


def _cluster_gpu_quota(team: str) -> dict[str, Any]:
    metadata = {"name": team, "uid": f"uid-{team}", "generation": 1, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"namespaces": {"names": ["*"]}, "hard": {"gpus": 1000}}}


class Controller:
    """A process that counts and moves; what it counts removes no reservation, and uses nothing."""

    def __init__(self, world: World, *, crashes: bool = True) -> None:
        self._world, self.observed = world, ObservedLedgers(no_quota=0.0)
        self.observed.raised.append((inf, -inf))  # the epoch is raised for all that appears
        store, nothing = world.store(crashes=crashes), cast(Any, None)
        metrics = ControllerMetrics(CollectorRegistry())
        membership: Any = SimpleNamespace(
            team_of=world.belongs.__getitem__,
            team_object_of=self._team_object_of,
            exceeds_max_namespaces=lambda _namespace: False,
            is_unreadable=lambda _team: False,
            desired=self._desired_team,
        )
        events: Any = SimpleNamespace(put=lambda _record: None)
        self.sizes = TeamSizes()
        self.moves = TeamMoves(store, self.observed, metrics, membership, self.sizes, events)
        notes: Any = SimpleNamespace(put=lambda *_: None)
        quotas: Any = QuotaReconciler(
            store,
            cast(
                Any,
                SimpleNamespace(
                    usage=nothing, observed=self.observed, membership=membership, watched_quota=self._granted
                ),
            ),
            metrics,
            events,
            NO_LINE,
            nothing,
            notes,
            nothing,
            self.moves,
            deleted=DeletedQuotas(0.0),
        )
        quotas.count, quotas.report_written, quotas.seconds_until_next = (
            self._count,
            lambda *_: None,
            lambda *_: None,
        )
        self.quotas = quotas
        self.teams = TeamReconciler(self.quotas, self.sizes)

    def reconcile(self, name: str) -> None:
        """Reconcile a namespace, or a team's object, until it asks for no more."""
        for _ in range(8):
            place, team = self.observed.object_name(name), self._world.belongs.get(name)
            if place == name and team:  # as `Manager._group_of`
                place = team_object_name(team)
            try:
                in_team = is_team_object(place)
                outcome = (
                    self.teams.reconcile(place, (name,))[name] if in_team else self.quotas.reconcile(name)
                )
            except (LedgerError, LedgerConflict) as error:
                outcome = error
            if outcome is None:
                return

    def _count(self, _namespace: str, ledger: QuotaLedger, _begun: float) -> Counting:
        used = dict.fromkeys(ledger.dimensions, ZERO)
        counted = replace(ledger, used=used, class_catalogue="c", generation=ledger.generation)
        return Counting(cast(Any, None), Reconciled(counted, (), ()))

    def _granted(self, namespace: str) -> QuotaLedger | None:
        found = self._world.api._objects.get(quota_path(namespace))
        record = decode_quota(msgspec.json.encode(found)) if found else None
        return record.desired if record else None

    def _team_object_of(self, namespace: str) -> str:
        team = self._world.belongs[namespace]
        return team_object_name(team) if team else ""

    def _desired_team(self, team: str) -> Any:
        found = self._world.api._objects.get(team_path(team))
        return decode_team(msgspec.json.encode(found)).team if found else None


def serve(world: World, name: str, namespace: str, creations: int) -> None:
    """Admit creations in a namespace, as a replica that remembers where its ledger was."""
    store = world.store(crashes=False)
    for number in range(creations):
        uid = f"{name}-{number}"
        try:
            found = store.read(namespace, SECONDS)
            if found is None:
                continue
            decided = decide(found.ledger, [creation(uid, gpus=1)])
            if decided.ledger is found.ledger:
                continue
            store.compare_and_swap(namespace, found, decided.ledger, SECONDS)
        except (LedgerError, LedgerConflict):
            continue
        world.admitted[namespace].add(uid)


def people(world: World, moves: int) -> None:
    """Give namespaces to other teams, or to none."""
    for _ in range(moves):
        world.turns.take()
        namespace = world.turns.random.choice(sorted(world.belongs))
        world.belongs[namespace] = world.turns.random.choice(("", *TEAMS))
        world.delete_what_nobody_belongs_to()


def controllers(world: World, rounds: int) -> None:
    """Reconcile whatever comes, as one process after the other: each ends at some call."""
    names = [*world.belongs, *map(team_object_name, TEAMS)]
    for _ in range(rounds):
        try:
            running = Controller(world)
            for _ in range(3):
                running.reconcile(world.turns.random.choice(names))
        except CrashError:
            continue
