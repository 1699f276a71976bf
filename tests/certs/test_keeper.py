"""Several controllers, crashes at every point, late API servers and late servers: no call ever fails."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from certs.rotation import Step
from certs.secret import CA, CA_KEY, CERTIFICATE, KEY, NEXT_CA_KEY, ROTATE, Content, decode
from tests.certs.world import KINDS, Controller, Interruption, World

OPERATIONS = st.integers(1, 6)


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


def request(world: World, rotation: str) -> None:
    assert world.stored is not None
    content = world.stored.content
    world.store(Content(content.data, {**content.annotations, ROTATE: rotation}))


def step(world: World) -> Step:
    assert world.stored is not None
    return decode(world.stored.content).step


class Rotations(RuleBasedStateMachine):
    """Whatever is asked for, whoever dies, and however late they hear of it."""

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
        self.controllers[controller].keep()

    @rule(controller=st.integers(0, 1), operation=OPERATIONS, dies=st.sampled_from(["before", "after"]))
    def a_controller_dies_at_work(self, controller: int, operation: int, dies: str) -> None:
        self.controllers[controller].keep(Interruption(operation, dies))

    @rule(controller=st.integers(0, 1), operation=OPERATIONS, pauses=st.lists(st.integers(0, 25), max_size=6))
    def a_controller_sleeps_while_the_other_works(
        self, controller: int, operation: int, pauses: list[int]
    ) -> None:
        def meanwhile() -> None:
            for seconds in pauses:
                self.world.pass_time(seconds)
                self.controllers[1 - controller].keep()

        self.controllers[controller].keep(Interruption(operation, meanwhile=meanwhile))

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
        assert step(self.world) is Step.STEADY, "nothing is asked for any more, so it comes to an end"
        assert len({server.held for server in self.world.servers}) == 1


class Losses(Rotations):
    """Besides, the Secret is deleted or damaged, and controllers restart, which then remember nothing."""

    @rule()
    def the_secret_is_deleted(self) -> None:
        self.world.out_of_turn = True
        self.world.store(None)

    @rule(
        key=st.sampled_from([CA, CA_KEY, NEXT_CA_KEY, CERTIFICATE, KEY]), damage=st.sampled_from([b"", b"x"])
    )
    @precondition(lambda self: self.world.stored is not None)
    def the_secret_is_damaged(self, key: str, damage: bytes) -> None:
        assert self.world.stored is not None
        self.world.out_of_turn = True
        content = self.world.stored.content
        self.world.store(Content({**content.data, key: damage}, content.annotations))

    @rule()
    def all_controllers_restart(self) -> None:
        for controller in self.controllers:
            controller.die()


QUIET = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestRotations = Rotations.TestCase
TestRotations.settings = QUIET
TestLosses = Losses.TestCase
TestLosses.settings = QUIET
