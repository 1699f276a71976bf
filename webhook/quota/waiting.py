"""A request that waits for the ledger of its quota, in the thread that has its review."""

import threading
from collections.abc import Callable, Mapping

from policies.quota.demand import Catalogues
from policies.quota.ledger.decide import ReservationRequest
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.quota_request import ReservationOutcome

RequestOf = Callable[[QuotaLedger, Mapping[str, Catalogues]], ReservationRequest]
"""What a review asks of a ledger, which says by which catalogues, some of them published by others, it is charged."""

CataloguesOf = Callable[[QuotaLedger, float], Mapping[str, Catalogues]]
"""Those of the catalogues that a ledger names, by digest, that can be had within so many seconds. Raises LedgerError."""


class Waiting:
    """A request and its outcome. `turn` is set when there is an outcome, or when it is to lead."""

    def __init__(self, request_of: RequestOf, deadline: float) -> None:
        self.deadline = deadline
        self.turn = threading.Event()
        self.leads = False
        self.given_up = False
        self.outcome: ReservationOutcome | Exception | None = None
        self._request_of = request_of

    def request(self, ledger: QuotaLedger, published: Mapping[str, Catalogues]) -> ReservationRequest | None:
        """Return what the review asks; a defect met on the way is its own outcome, and nobody else's."""
        try:
            return self._request_of(ledger, published)
        except Exception as error:  # noqa: BLE001 - raised again in the thread of the request
            self.finish(error)
            return None

    def finish(self, outcome: ReservationOutcome | Exception) -> None:
        """End the wait."""
        self.outcome = outcome
        self.turn.set()

    def lead(self) -> None:
        """Make it decide for all that wait."""
        self.leads = True
        self.turn.set()
