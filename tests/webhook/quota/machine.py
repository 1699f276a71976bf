"""Histories of one ledger that nobody thought of: every step of serve, controllers, users and administrators in any order.

Decisions and counts are held up between read and swap for as long as it pleases; the oracle is that of the world.
"""

from collections.abc import Callable
from contextlib import suppress

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from policies.quota.amounts import Vector
from policies.quota.ledger.quota_ledger import (
    CREATION_SECONDS,
    EXPIRY_SECONDS,
    NO_QUOTA_SECONDS,
)
from tests.webhook.quota.world import Controller, Flight, Held, Ledger, World, vector
from webhook.quota.store import LedgerConflict, QuotaGone, VersionedLedger

CLASSES = ("a", "b")

demands = st.fixed_dictionaries(
    {"gpus": st.sampled_from([1, 2])},
    optional={name: st.sampled_from([1, 2, "2/7"]) for name in CLASSES},
)


granted = st.fixed_dictionaries(
    {"gpus": st.integers(1, 4)}, optional={name: st.integers(1, 2) for name in CLASSES}
).map(lambda amounts: vector(**amounts))


def machine(  # noqa: C901 - one class, whose ledger is the argument
    make_ledger: Callable[[Vector], Ledger], *, clustered: bool = True
) -> type[RuleBasedStateMachine]:
    """Return a state machine over the ledgers that `make_ledger` makes; not `clustered`: nothing counts or replaces them."""

    class Histories(RuleBasedStateMachine):
        requests = Bundle("requests")
        decisions = Bundle("decisions")
        lists = Bundle("lists")
        counts = Bundle("counts")

        @initialize(hard=granted)
        def begin(self, hard: Vector) -> None:
            self.world = World(make_ledger(hard), hard).initialised()
            self.controllers = [Controller(), Controller()]

        # Users.

        @rule(target=requests, demand=demands)
        def a_pod_is_created(self, demand: dict[str, int | str]) -> Flight:
            return self.world.request(**demand)

        @rule(target=requests, demand=demands, name=st.sampled_from("xy"))
        def a_pod_of_a_name_is_created(self, demand: dict[str, int | str], name: str) -> Flight:
            return self.world.named(name, **demand)

        @rule(target=requests, demand=demands, which=st.integers(0, 9))
        def a_pod_is_changed(self, demand: dict[str, int | str], which: int) -> object:
            live = sorted(uid for uid, pod in self.world.pods.items() if not pod.terminal)
            return self.world.change(live[which % len(live)], **demand) if live else multiple()

        @rule(target=requests, demand=demands, which=st.integers(0, 9))
        def a_change_is_let_in(self, demand: dict[str, int | str], which: int) -> object:
            live = sorted(uid for uid, pod in self.world.pods.items() if not pod.terminal)
            if not live:
                return multiple()
            change = self.world.change(live[which % len(live)], **demand)
            return change if self.world.admit(change) else multiple()

        @rule(which=st.integers(0, 9), finishes=st.booleans(), reported=st.booleans())
        def a_pod_goes(self, which: int, finishes: bool, reported: bool) -> None:
            live = sorted(self.world.pods)
            if live and finishes:
                self.world.finish(live[which % len(live)])
            elif live:
                self.world.delete(live[which % len(live)], reported=reported)

        @rule(demand=demands)
        def a_pod_comes_in(self, demand: dict[str, int | str]) -> None:
            request = self.world.request(**demand)
            if self.world.admit(request):
                self.world.be_stored(request)

        @rule(request=requests)
        def what_was_let_in_is_stored(self, request: Flight) -> None:
            if request.id in self.world.flights:
                self.world.be_stored(request)

        @rule(request=requests)
        def what_was_let_in_fails(self, request: Flight) -> None:
            self.world.fail(request)

        # Serve: any number of replicas, one of them slow.

        @rule(request=requests)
        def it_is_decided(self, request: Flight) -> None:
            if self._may_be_asked(request):
                self.world.admit(request)

        @rule(target=decisions, request=requests)
        def a_replica_reads(self, request: Flight) -> object:
            return (request, self.world.read()) if self._may_be_asked(request) else multiple()

        @rule(decision=consumes(decisions))
        def and_decides_on_that(self, decision: tuple[Flight, VersionedLedger]) -> None:
            request, before = decision
            if self._may_be_asked(request):
                self.world.admit(request, before)

        @rule(decision=consumes(decisions))
        def and_is_killed_before_it_answers(self, decision: tuple[Flight, VersionedLedger]) -> None:
            request, before = decision
            requested = request.id in self.world.flights
            if self._may_be_asked(request):
                with suppress(LedgerConflict, QuotaGone):
                    self.world.try_admit(request, before)
                if not requested:
                    self.world.fail(request)

        # Controllers: two at once, and their lists may be old.

        @rule(which=st.integers(0, 1))
        def a_controller_counts(self, which: int) -> None:
            if clustered:
                self.world.reconcile(self.world.list(self.controllers[which]))

        @rule(which=st.integers(0, 1))
        def a_controller_looks(self, which: int) -> None:
            self.world.observe(self.controllers[which])

        @rule(target=lists, which=st.integers(0, 1))
        def a_controller_lists(self, which: int) -> object:
            return self.world.list(self.controllers[which]) if clustered else multiple()

        @rule(listed=lists)
        def and_settles(self, listed: Held) -> None:
            self.world.reconcile(listed)

        @rule(target=counts, listed=lists)
        def a_controller_reads_the_row(self, listed: Held) -> tuple[Held, VersionedLedger]:
            return listed, self.world.read()

        @rule(count=consumes(counts))
        def and_settles_on_that(self, count: tuple[Held, VersionedLedger]) -> None:
            self.world.reconcile(*count)

        @rule(which=st.integers(0, 1))
        def a_controller_crashes(self, which: int) -> None:
            self.controllers[which] = Controller()

        # Administrators, and time.

        @rule(hard=granted)
        def the_grant_changes(self, hard: Vector) -> None:
            self.world.grant(hard)

        @rule(hard=granted)
        def the_quota_is_replaced(self, hard: Vector) -> None:
            if clustered:
                self.world.replace(hard)

        @rule(seconds=st.sampled_from([0.5, 1.0, NO_QUOTA_SECONDS, CREATION_SECONDS - 1, EXPIRY_SECONDS + 1]))
        def time_passes(self, seconds: float) -> None:
            self.world.now += seconds

        @invariant()
        def nothing_is_broken(self) -> None:
            if hasattr(self, "world"):
                self.world.check()
                assert self.world.broken == []

        def teardown(self) -> None:
            if hasattr(self, "world") and not self.world.broken:
                self.world.come_to_rest()
                assert self.world.broken == []

        def _may_be_asked(self, request: Flight) -> bool:
            """Whether the API server would still call: within its bound, for a pod that is as it was."""
            world = self.world
            if world.now - request.begun > CREATION_SECONDS or request.id in world.pods:
                return False
            if request.id in world.gone:  # it was stored, and no object is stored twice
                return False
            if request.before is None:
                return request.promised
            return world.is_current(request) and not world.pods[request.uid].terminal

    return Histories


def run_settings(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
    )
