"""A replica of serve that reserves ahead: the batcher itself, on the row and by the clock of a world."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from policies.quota.charge import Catalogues, Charge
from policies.quota.charge_request import ChargedRequest, LedgerError
from policies.quota.ledger.decide import Reason
from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.webhook.quota.world import NAMESPACE, SECONDS, Flight, World
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.metrics import QuotaMetrics


class Replica:
    """Nothing settles by itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.batcher = ReservationBatcher(world.store, QuotaMetrics(CollectorRegistry()), lambda: world.now)
        self.batcher._reserves_ahead = True

    def take_spares(self) -> None:
        """Admit pods at one time, one after the other, until there are spares beside them."""
        while not self.spares:
            assert self.admit(self.world.request(gpus=1))

    @property
    def spares(self) -> int:
        """How many it may still assign."""
        return sum(len(each.spares) for each in self.batcher._spares_of(NAMESPACE)._demands)

    def admit(self, flight: Flight, seconds: float = SECONDS) -> bool:
        """Decide within so many seconds, of the clock of the machine, too; and note what is admitted."""
        world = self.world

        def request_of(ledger: QuotaLedger, _published: Mapping[str, Catalogues]) -> ChargedRequest:
            request = world.reservation_request(flight, ledger)
            return ChargedRequest(Charge(request.reservation.demand), request)

        try:
            verdict = self.batcher.reserve(NAMESPACE, request_of, world.now + seconds).verdict
        except LedgerError:
            return False
        if verdict is not None and verdict.allowed:
            world.admitted(flight, new=verdict.reason is Reason.RESERVED)
        return verdict is not None and verdict.allowed

    def admit_by_spares(self) -> list[Flight]:
        """Admit as many pods as it has spares; return those that were."""
        flights = [self.world.request(gpus=1) for _ in range(self.spares)]
        return [flight for flight in flights if self.admit(flight)]

    def settle(self, *, last: bool = False) -> None:
        """Settle what is due; at the `last` time everything."""
        self.batcher.settle_due(last=last)
