"""A replica of serve that reserves ahead: the batcher itself, on the row and by the clock of a world."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from policies.quota.amounts import Vector, total
from policies.quota.charge import Catalogues, Charge
from policies.quota.charge_request import ChargedRequest, LedgerError
from policies.quota.ledger.decide import Reason
from policies.quota.ledger.quota_ledger import QuotaLedger
from tests.webhook.quota.world import NAMESPACE, SECONDS, Flight, World, times
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.metrics import QuotaMetrics


class Replica:
    """Nothing settles by itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.spared = self.spared
        self.batcher = ReservationBatcher(world.store, QuotaMetrics(CollectorRegistry()), lambda: world.now)
        self.batcher._spares.reserves_ahead = True

    def take_spares(self) -> None:
        """Admit pods at one time, one after the other, until there are spares beside them."""
        while not self.spares:
            assert self.admit(self.world.request(gpus=1))

    @property
    def spares(self) -> int:
        """How many it may still assign."""
        return sum(len(each.spares) for each in self.batcher._spares._of(NAMESPACE)._demands)

    def spared(self) -> Vector:
        demands = self.batcher._spares._of(NAMESPACE)._demands
        open_ = [each for each in demands if self.world.now < each.until]
        return total(times(len(each.spares), each.like.demand) for each in open_)

    def admit(self, flight: Flight, seconds: float = SECONDS) -> bool:
        """Decide within so many seconds, of the clock of the machine, too; and note what is admitted."""
        world = self.world
        before = world.read()

        def request_of(ledger: QuotaLedger, _published: Mapping[str, Catalogues]) -> ChargedRequest:
            request = world.reservation_request(flight, ledger)
            return ChargedRequest(Charge(request.reservation.demand), request)

        try:
            verdict = self.batcher.reserve(NAMESPACE, request_of, world.now + seconds).verdict
        except LedgerError:
            return False
        if verdict is None or not verdict.allowed:
            return False
        is_new = verdict.reason is Reason.RESERVED
        if (
            is_new and world.read() == before
        ):  # by a spare, perhaps of a quota that was changed or replaced since
            flight.promised = flight.promised and before.ledger.used is not None
            is_new = False
        world.admitted(flight, new=is_new)
        return True

    def admit_by_spares(self) -> list[Flight]:
        """Admit as many pods as it has spares; return those that were."""
        flights = [self.world.request(gpus=1) for _ in range(self.spares)]
        return [flight for flight in flights if self.admit(flight)]

    def settle(self, *, last: bool = False) -> None:
        """Settle what is due; at the `last` time everything."""
        self.batcher.settle_due(last=last)

    @contextmanager
    def losing(self, *, written: bool) -> Iterator[None]:
        """Have every swap fail, as if it had not happened; or `written` it has."""
        swap = self.world.store.compare_and_swap

        def lost(*arguments: Any) -> None:
            if written:
                swap(*arguments)
            raise LedgerError("lost", transient=False)

        with patch.object(self.world.store, "compare_and_swap", lost):
            yield
