"""Namespaces of a team, without an API server: what the reconciler of its object sees."""

from collections.abc import Callable
from typing import Any, cast

from msgspec.structs import replace

from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.ledger.reconcile import Refused
from policies.quota.ledger.team_ledgers import TeamLedgers
from tests.webhook.controller.team_moves import SECONDS, Controller, World
from tests.webhook.quota.ledger_api import LEDGERS
from webhook.controller.reconciler import Counting
from webhook.quota.ledger_objects import team_object_name

PLACE = team_object_name("a")
OBJECT = f"{LEDGERS}/{PLACE}"
NAMESPACES = ("cv", "nlp", "prod")


class Scene:
    """A team of three namespaces, two of them with a GPUQuota, and a controller whose counts are noted."""

    def __init__(self) -> None:
        self.world = World(0, crash=0.0, quotas={"cv": True, "nlp": False, "prod": True})
        self.world.belongs |= dict.fromkeys(NAMESPACES, "a")
        self.controller = Controller(self.world, crashes=False)
        self.counted: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.refused: list[str] = []
        """Namespaces whose next count is from lists that are too old."""
        self.during: list[Callable[[], object]] = []
        """What happens during the next counts, one after the other."""
        self._count = self.controller.quotas.count
        self.store = self.world.store(crashes=False)

    def start(self) -> None:
        for name in (PLACE, *NAMESPACES):
            self.controller.reconcile(name)
        self.controller.quotas.count = self.count
        self.world.api.writes.clear()

    def count(self, namespace: str, ledger: QuotaLedger, begun: float) -> Counting | float:
        self.counted.append(namespace)
        if self.during:
            self.during.pop(0)()
        if namespace in self.fails:
            raise self.fails[namespace]
        if namespace in self.refused:
            self.refused.remove(namespace)
            return Counting(cast(Any, None), Refused.OLDER)
        counted = self._count(namespace, ledger, begun)
        waiting = replace(counted.result.ledger, waiting=7)
        return Counting(counted.plan, replace(counted.result, ledger=waiting))

    def reconcile(self, *names: str) -> dict[str, Any]:
        return dict(self.controller.teams.reconcile(PLACE, names))

    def team(self) -> TeamLedgers:
        found = self.store.read_team("a", SECONDS)
        assert found is not None
        return found.team_ledgers

    def waiting(self) -> dict[str, int]:
        return {name: ledger.waiting for name, ledger in self.team().ledgers.items()}

    @property
    def writes(self) -> int:
        return self.world.api.writes.get(OBJECT, 0)


def run(test: Callable[[Scene], None]) -> Scene:
    """Run a test in a thread that has every turn."""
    scene = Scene()

    def body() -> None:
        scene.start()
        test(scene)

    scene.world.turns.run(body)
    assert scene.world.broken == []
    return scene
