"""Several controllers, crashes at every point, late API servers and late servers: no call ever fails."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from certs.reconciler import StoredSecret
from certs.rotation import RotationPhase
from certs.secret import CA, CA_KEY, CERTIFICATE, KEY, NEXT_CA_KEY, ROTATE, SecretContent, decode
from tests.cases import cases
from tests.certs.world import KINDS, SERVED, STATE, Controller, Interruption, World

SECRETS = st.sampled_from([STATE, SERVED])

OPERATIONS = st.integers(1, 7)
"""Configurations and two Secrets are read, and then written."""


def running() -> tuple[World, Controller, Controller]:
    """Two controllers, and everything as it is an hour after the installation."""
    world = World()
    first, second = Controller(world), Controller(world)
    first.settle()
    second.settle()
    world.pass_time(20)
    world.checking = True
    world.check()
    return world, first, second


def keys_that_servers_can_read(world: World) -> set[str]:
    return {CA_KEY, NEXT_CA_KEY} & set(world.served.content.data if world.served else ())


def request(world: World, rotation: str) -> None:
    content = world.content()
    world.store(SecretContent(content.data, {**content.annotations, ROTATE: rotation}), STATE)


def phase(world: World) -> RotationPhase:
    return decode(world.content()).phase


class Rotations(RuleBasedStateMachine):
    """Any requests, any crashes, and any delay in hearing of changes."""

    @initialize()
    def installed(self) -> None:
        self.world, *self.controllers = running()

    @rule(rotation=st.sampled_from(["leaf", "ca"]))
    @precondition(lambda self: self.world.stored is not None)
    def somebody_asks(self, rotation: str) -> None:
        request(self.world, rotation)

    @rule(seconds=st.integers(1, 25))
    def time_passes(self, seconds: int) -> None:
        self.world.pass_time(seconds)

    @rule(controller=st.integers(0, 1))
    def a_controller_looks(self, controller: int) -> None:
        self.controllers[controller].reconcile()

    @rule(controller=st.integers(0, 1), operation=OPERATIONS, dies=st.sampled_from(["before", "after"]))
    def a_controller_dies_at_work(self, controller: int, operation: int, dies: str) -> None:
        self.controllers[controller].reconcile(Interruption(operation, dies))

    @rule(controller=st.integers(0, 1), operation=OPERATIONS, pauses=st.lists(st.integers(0, 25), max_size=6))
    def a_controller_sleeps_while_the_other_works(
        self, controller: int, operation: int, pauses: list[int]
    ) -> None:
        def meanwhile() -> None:
            for seconds in pauses:
                self.world.pass_time(seconds)
                self.controllers[1 - controller].reconcile()

        self.controllers[controller].reconcile(Interruption(operation, meanwhile=meanwhile))

    @rule(api_server=st.integers(0, 1), kind=st.sampled_from(KINDS))
    def an_api_server_hears(self, api_server: int, kind: str) -> None:
        self.world.api_servers[api_server].hear(kind)

    @rule(server=st.integers(0, 2))
    def a_server_looks(self, server: int) -> None:
        self.world.servers[server].hear()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for _ in range(12):
            self.world.pass_time(11)
            for controller in self.controllers:
                controller.settle()
        assert phase(self.world) is RotationPhase.STEADY, "without further requests, a rotation ends"
        assert len({server.held for server in self.world.servers}) == 1
        assert not keys_that_servers_can_read(self.world)


class Losses(Rotations):
    """Besides, Secrets are deleted or damaged, and controllers restart, which then remember nothing."""

    @rule(secret=SECRETS)
    def a_secret_is_deleted(self, secret: str) -> None:
        self.world.out_of_turn = True
        self.world.store(None, secret)

    @rule(
        secret=SECRETS,
        key=st.sampled_from([CA, CA_KEY, NEXT_CA_KEY, CERTIFICATE, KEY]),
        damage=st.sampled_from([b"", b"x"]),
    )
    def a_secret_is_damaged(self, secret: str, key: str, damage: bytes) -> None:
        stored: StoredSecret | None = getattr(self.world, secret)
        if stored is not None:
            self.world.out_of_turn = True
            content = SecretContent({**stored.content.data, key: damage}, stored.content.annotations)
            self.world.store(content, secret)

    @rule()
    def all_controllers_restart(self) -> None:
        for controller in self.controllers:
            controller.die()


QUIET = settings(max_examples=settings().max_examples * 4 // 10, stateful_step_count=30)
TestRotations = Rotations.TestCase
TestRotations.settings = QUIET
TestLosses = Losses.TestCase
TestLosses.settings = QUIET


def rotate(world: World, controller: Controller) -> None:
    """See a rotation of the authority through, from wherever it stands."""
    for _ in range(5):
        controller.settle()
        world.pass_time(11)
    controller.settle()
    assert phase(world) is RotationPhase.STEADY


@pytest.mark.parametrize("dies", ["before", "after"])
@pytest.mark.parametrize("operation", range(1, 8))
@pytest.mark.parametrize("refresh", range(6))
def test_another_goes_on_wherever_one_died(refresh: int, operation: int, dies: str) -> None:
    world, first, second = running()
    request(world, "ca")
    before = authority(world)
    for _ in range(refresh):
        first.reconcile()
        world.pass_time(6)
    first.reconcile(Interruption(operation, dies))
    rotate(world, second)
    assert authority(world) != before


def test_time_that_a_controller_slept_is_no_part_of_a_wait() -> None:
    world, first, second = running()
    request(world, "ca")

    def meanwhile() -> None:
        for seconds in (0, 17, 10):
            world.pass_time(seconds)
            second.reconcile()

    first.reconcile(Interruption(1, meanwhile=meanwhile))
    assert phase(world) is RotationPhase.RETIRING
    first.reconcile()
    assert phase(world) is RotationPhase.RETIRING
    world.pass_time(5)


def test_an_authority_is_not_dropped_for_a_leaf_that_nobody_could_load() -> None:
    world, first, second = running()
    first.die()
    second.die()
    world.out_of_turn = True
    world.store(None)
    first.settle()
    damage_authority(world)
    world.pass_time(25)
    first.settle()
    assert phase(world) is RotationPhase.RETIRING
    world.pass_time(5)


def authority(world: World) -> bytes:
    return decode(world.content()).authority.certificate_pem()


def delete(world: World) -> None:
    world.store(None)


def damage_authority(world: World) -> None:
    world.store(SecretContent({**world.content().data, CA: b"", CA_KEY: b""}, {}))


def replace_by_another(world: World) -> None:
    other = World()
    Controller(other).settle()
    world.store(other.content())


DAMAGED = "the Secret is damaged: ca.crt must hold a certificate authority in PEM"


@cases(
    ("loss", "remembers", "adopted", "logged"),
    deleted_and_remembered=(delete, True, 0, ["the Secret is missing; restoring it"]),
    damaged_and_remembered=(damage_authority, True, 0, [f"{DAMAGED}; restoring it"]),
    deleted_with_all_memory=(delete, False, 1, ["the Secret is missing; making a certificate authority"]),
    damaged_with_all_memory=(damage_authority, False, 1, [f"{DAMAGED}; making a certificate authority"]),
    replaced_by_a_whole_one=(replace_by_another, True, 1, []),
    replaced_with_all_memory_gone=(replace_by_another, False, 1, []),
)
def test_what_is_lost_comes_back(
    loss: Callable[[World], None],
    remembers: bool,
    adopted: int,
    logged: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    same = not adopted
    world, first, second = running()
    before = authority(world)
    world.out_of_turn = not same
    loss(world)
    if not remembers:
        first.die()
        second.die()
    caplog.clear()
    with caplog.at_level("INFO"):
        first.settle()
    assert [each for each in caplog.messages if each.startswith("the Secret")] == logged
    assert (authority(world) == before) is same
    assert len(decode(world.content()).retired) == adopted
    second.settle()
    rotate(world, second)
    held = {server.held.certificate for server in world.servers if server.held}
    assert held == {world.content().data[CERTIFICATE]}


def test_controllers_that_begin_at_once_make_one_authority() -> None:
    world = World()
    first, second = Controller(world), Controller(world)
    first.reconcile(Interruption(4, meanwhile=second.settle))  # between reading and creating
    made = authority(world)
    first.settle()
    second.settle()
    assert authority(world) == made
    assert {bundle for kind in KINDS for bundle in world.published(kind)} == {made}


def test_what_is_right_is_not_written() -> None:
    world, first, second = running()
    versions = world.versions
    assert not first.reconcile()
    assert not second.reconcile()
    assert world.versions == versions


@pytest.mark.parametrize("damage", [b"", b"nonsense"], ids=["removed", "unreadable"])
def test_a_bundle_is_put_right(damage: bytes) -> None:
    world, first, _ = running()
    world.checking = False
    right = world.published("Mutating")
    world.set_bundles("Mutating", (right[0], damage))
    first.settle()
    assert world.published("Mutating") == right
