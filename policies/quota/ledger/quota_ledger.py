"""The ledger of one namespace: what its quota grants, what is used, and what is reserved. The unit of every compare-and-swap.

serve adds reservations, and removes none. The controller writes everything else, and removes reservations only together with the
`used` that replaces them.
"""

from collections.abc import Mapping
from operator import ge

import msgspec

from policies.quota.amounts import GPUS, NOTHING, Vector
from policies.quota.charge import UnclassifiedPods
from policies.quota.ledger.reservations import Reservations

# The bounds in time on which the protocol rests; serve and controller must agree on them.

CREATION_SECONDS = 34.0
"""The API server stores nothing later than this after the request began (its cap on a request of 60 s is 34 s for writes)."""

EXPIRY_SECONDS = CREATION_SECONDS + 6.0
"""How long a controller must have seen a reservation before a list that shows no trace of it may drop it. 6 s are margin; what a
replica of an earlier version has reserved ahead uses one of them at most."""

NO_QUOTA_SECONDS = 5.0
"""D: how old "this namespace has no quota" may be where it is believed, and how long a controller waits, from when it first
saw a quota, before it initialises it. So nobody is admitted uncharged by an answer from before a quota that already counts."""

COUNTED_SECONDS = 1.0
"""How long after a reservation a controller counts: most of its objects are stored by then. Each count is a write with which
creations conflict: one in three counts where pods come one by one; a second's reservations add little. Not a bound."""

HOLDERS_SHOWN = 5
"""Largest holders named per dimension."""
HOLDERS_LIMIT = 16 * 1024
"""Bytes of all of them as JSON, commonly some 55 each; at most twice as many in a row, a text in JSON that is written often."""


class Revisions(msgspec.Struct, frozen=True, rename="camel"):
    """From which revision of each collection `used` was counted. Kubernetes orders them as whole numbers."""

    pods: int = 0
    resource_claims: int = 0
    nodes: int = 0

    def reaches(self, other: "Revisions") -> bool:
        """Whether none of these is older."""
        return all(map(ge, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class Holder(msgspec.Struct, frozen=True):
    """An object, or the owner of several, that holds much of one dimension: `Job/train`, `8`."""

    name: str
    amount: str


class DenialNote(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Requests of one owner that the quota denied since the controller last took the notes, for an Event on the GPUQuota.

    owner: `ReplicaSet/train-5d9`; empty for a pod without a controller.
    reason, message: of the Event.
    first, last: when they were denied, in RFC 3339.
    """

    owner: str
    reason: str
    message: str
    first: str
    last: str
    count: int = 1


class QuotaLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The spec in force and the state counted under it, of one quota object.

    `ledger_uid` is the uid of the object that holds the ledger, empty where nothing is stored. `quota_uid`, `generation`, `hard`,
    `unclassifiedPods` are those of the GPUQuota that was read after the ledger that they replaced; so they never go back.

    `used` is None until the quota was initialised. Otherwise it holds `gpus` and each dimension of `hard` as it was then, if
    with zero: a key of `hard` that it lacks was never counted. `stored_names` is what it holds of objects that are stored under
    the name of a reservation.

    `class_catalogue` is the `CatalogueVersion` by which it was counted; None while reservations are left that were
    charged by another one, and nothing is admitted. `next_catalogue` is the catalogue version to which the controller is moving
    it: every request is then charged under both.

    `denials` are left by replicas for the controller, which takes them out.
    """

    ledger_uid: str = ""
    quota_uid: str
    generation: int
    hard: Vector
    unclassified_pods: UnclassifiedPods
    used: Vector | None = None
    stored_names: Mapping[str, Vector] = {}
    reservations: Reservations = Reservations({})
    revisions: Revisions = Revisions()
    class_catalogue: str | None = None
    next_catalogue: str | None = None
    holders: Mapping[str, tuple[Holder, ...]] = {}
    """Largest holders by dimension of `hard`, at most HOLDERS_SHOWN each and HOLDERS_LIMIT in all; for people."""
    denials: tuple[DenialNote, ...] = ()

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The dimensions of `hard` that were never counted; all of them before initialisation."""
        return tuple(key for key in self.hard if self.used is None or key not in self.used)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The dimensions that are counted and shown: those of `hard`, which an administrator chose, and `gpus`."""
        return tuple(sorted({*self.hard, GPUS}))

    @property
    def reserved(self) -> Vector:
        """What creations and changes in flight hold, in every dimension that they have."""
        return self.reservations.held(self.stored_names)

    @property
    def reserved_shown(self) -> Vector:
        """What they hold in `dimensions`."""
        return {key: amount for key, amount in self.reserved.items() if key in self.dimensions}

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits, in one dimension at least."""
        used, reserved = self.used or {}, self.reserved
        return any(
            used.get(key, NOTHING) + reserved.get(key, NOTHING) >= amount
            for key, amount in self.hard.items()
            if amount
        )

    @property
    def catalogue_versions(self) -> frozenset[str]:
        """The catalogue versions under which a request must be charged."""
        return frozenset(filter(None, (self.class_catalogue, self.next_catalogue)))
