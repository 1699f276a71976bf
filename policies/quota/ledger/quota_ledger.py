"""The ledger of one namespace: the limits, what is used, and what is reserved. Every compare-and-swap replaces one ledger.

serve only adds reservations. The controller writes everything else. It removes a reservation only together with the `used` that
replaces it.
"""

from collections.abc import Mapping
from fractions import Fraction
from operator import ge

import msgspec

from policies.quota.amounts import GPUS, ZERO, Amounts, total
from policies.quota.budget import Budget, Spending, keys_reached
from policies.quota.demand import UnclassifiedPods
from policies.quota.ledger.credits import Credits, Marks
from policies.quota.ledger.keeping_objects import Keeper
from policies.quota.ledger.reservations import Reservations
from policies.quota.ledger.team import TeamState
from policies.quota.waiting import MAX_WAITING

# The time bounds of the protocol. serve and controller must agree on them.

CREATION_SECONDS = 34.0
"""The API server stores an object at most this long after its request began (of 60 s for a request, writes get 34 s)."""

EXPIRY_SECONDS = CREATION_SECONDS + 6.0
"""A controller drops a reservation only if it saw it for this long and a later list lacks its object. 6 s are margin."""

JOINING_SECONDS = 2.0
"""Expiry of a creation under our gate, which demands nothing. Others may pass a pod that is stored later, until it is counted."""

NO_QUOTA_SECONDS = 2.0
"""How long a replica caches the absence of a quota, from the beginning of the read (D in docs/develop/quota-protocol.md). A
controller that sees a new ledger raises the epoch, which ends the caching, and waits this long before it initialises the ledger.
So no pod is admitted without a reservation once the quota counts."""

UNSTORED_MS, AGAIN_MS = 600_000, 20_000
"""A namespace may reserve less of its team for UNSTORED_MS after a reservation expired, if an earlier one expired AGAIN_MS before
it or more. One expiry does not suffice, because a killed replica of serve also loses creations once."""

COUNTED_SECONDS = 1.0
"""A controller counts this long after a reservation, when most of its objects are stored. Earlier counts would conflict with
the writes of creations more often: one in three does where pods come one by one. This is not a bound."""


class Revisions(msgspec.Struct, frozen=True, rename="camel"):
    """The revision of each collection at which `used` was counted. Kubernetes orders revisions as whole numbers.

    `resource_slices` is 0 as long as none were listed. Then the devices of all claims are unknown, and claims count as admitted.
    """

    pods: int = 0
    resource_claims: int = 0
    nodes: int = 0
    resource_slices: int = 0

    @property
    def are_mixed(self) -> bool:
        """Whether a watch has just started again, and its collection was not listed since."""
        return not (self.pods and self.resource_claims and self.nodes)

    def reaches(self, other: "Revisions") -> bool:
        """Whether each revision is at least that of `other`."""
        return all(map(ge, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


class Holder(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object, or the owner of several, with a large part of one dimension: `Job/train`, `8`.

    `idle_since`: when all its pods in the namespace became idle (RFC 3339); "" if one is busy, or if that is not known.
    `guaranteed`: the amount is the guarantee of a namespace, which may use less.
    """

    name: str
    amount: str
    idle_since: str = ""
    guaranteed: bool = False


_SPEC = ("quota_uid", "generation", "hard", "unclassified_pods", "max_waiting", "budget")

DemandKey = tuple[str | None, str | None, UnclassifiedPods]
"""The fields of a ledger by which demand is computed: its catalogue versions, and `unclassified_pods`."""


class QuotaLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The spec in force of one quota, and the state that was counted under it.

    `ledger_uid` is the uid of the ledger object, empty if none is stored. `quota_uid`, `generation`, `hard`,
    `unclassified_pods`, `max_waiting` and `budget` come from a GPUQuota that was read after the ledger that they replaced, so
    they never go back.

    `used` is None before the quota is initialised. Later it has `gpus` and each dimension of `hard` at that time, also with
    zero: a dimension of `hard` that it lacks was never counted. `stored_names` is the part of `used` by names that reservations
    have.

    `class_catalogue` is the catalogue version of the count (`catalogue.CatalogueVersion`). While it is None, reservations of
    another catalogue version are left, and nothing is admitted. `next_catalogue` is the catalogue version to which the
    controller moves the ledger. Then demand is computed under both.

    `waiting` is the number of stored pods that wait under our scheduling gate; with those in flight they are at most
    `max_waiting`.

    `waiting_for_team`: how many pods lack only quota of the team and may not be passed, as of the last turn.

    `unstored`: when the first and the last creation expired that were never stored, in ms since 1970.

    `scarce` has the dimensions that the first pod in line lacks, if nobody may pass it: true if the quota of the team lacks them.
    `marks` are the places in line of objects that never wait under our gate. `credits` let pods go first in line.
    `keepers` keep quota while their pods are replaced, or did so lately.

    `spending` is what was spent of the budget. It stays when the budget is removed, because a budget may be added again.

    `team_state`: the state of the team of this namespace, None without a team. It is not written. `moved_to` is the name of the
    object into which the ledger moved: then this one decides nothing.
    """

    ledger_uid: str = ""
    quota_uid: str
    generation: int
    hard: Amounts
    unclassified_pods: UnclassifiedPods
    max_waiting: int = MAX_WAITING
    waiting: int = 0
    waiting_for_team: int = 0
    unstored: tuple[int, int] = (0, 0)
    scarce: Mapping[str, bool] = {}
    marks: Marks = {}
    credits: Credits = ()
    keepers: tuple[Keeper, ...] = ()
    used: Amounts | None = None
    stored_names: Mapping[str, Amounts] = {}
    reservations: Reservations = Reservations({})
    revisions: Revisions = Revisions()
    class_catalogue: str | None = None
    next_catalogue: str | None = None
    holders: Mapping[str, tuple[Holder, ...]] = {}
    """Largest holders by dimension of `hard`, for people. Their number is small, because they are written often."""
    budget: Budget | None = None
    spending: Spending | None = None
    team_state: TeamState | None = None
    moved_to: str = ""

    @property
    def has_quota(self) -> bool:
        """Whether the namespace has a GPUQuota; else it has a ledger only for its team."""
        return bool(self.quota_uid)

    @property
    def spec(self) -> tuple[object, ...]:
        """The fields that are copied from the GPUQuota."""
        return tuple(getattr(self, field) for field in _SPEC)

    def with_spec_of(self, other: "QuotaLedger") -> "QuotaLedger":
        """Return this ledger with the spec of the other one. It keeps what was counted."""
        return msgspec.structs.replace(self, **{field: getattr(other, field) for field in _SPEC})

    @property
    def limited(self) -> frozenset[str]:
        """The dimensions of `hard`, and of `hard` of the team."""
        return frozenset((*self.hard, *(self.team_state.team.hard if self.team_state else ())))

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The limited dimensions that were never counted: all of them before initialisation."""
        return tuple(key for key in sorted(self.limited) if self.used is None or key not in self.used)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The dimensions that are counted and shown: `gpus`, limited ones, and keys of the budget."""
        return tuple(sorted({*self.limited, *(self.budget.granted if self.budget else ()), GPUS}))

    def spent_keys(self, now: int = 0) -> frozenset[str]:
        """Return the keys whose budget is spent, unless its period has ended. `now` is in ms since 1970."""
        if self.budget is None or self.spending is None or now >= self.spending.end:
            return frozenset()
        return keys_reached(self.budget, self.spending)

    def is_bound(self, now: int) -> bool:
        """Whether the namespace may reserve less of its team, because creations were repeatedly never stored."""
        first, last = self.unstored
        return last - first >= AGAIN_MS and now < last + UNSTORED_MS

    @property
    def reserved(self) -> Amounts:
        """The demand of creations and updates in flight, in all dimensions."""
        return self.reservations.held(self.stored_names)

    @property
    def held(self) -> Amounts:
        """What is used and reserved, in all dimensions."""
        return total((self.used or {}, self.reserved))

    @property
    def reserved_of_dimensions(self) -> Amounts:
        """The demand of creations and updates in flight, in `dimensions`."""
        return {key: amount for key, amount in self.reserved.items() if key in self.dimensions}

    @property
    def is_full(self) -> bool:
        """Whether at least one dimension is fully used or reserved."""
        held = self.held
        return any(
            self.free(key, held.get(key, ZERO)) <= 0 for key in self.limited if self.hard.get(key) != 0
        )

    def free(self, key: str, held: Fraction) -> Fraction:
        """Return how much of a limited dimension is free, if `held` of it is held; negative if it is exceeded."""
        free = []
        if key in self.hard:
            free.append(self.hard[key] - held)
        if self.team_state is not None and key in self.team_state.team.hard:
            free.append(self.team_state.free(key, held))
        return min(free)

    @property
    def left(self) -> Amounts:
        """What is free of each limited dimension."""
        held = self.held
        return {key: max(self.free(key, held.get(key, ZERO)), ZERO) for key in self.limited}

    def exceeded(self, held: Amounts) -> list[str]:
        """Return the limited dimensions that are exceeded, if this is held."""
        return [key for key in sorted(self.limited) if self.free(key, held.get(key, ZERO)) < 0]

    @property
    def maximum_hard(self) -> Amounts:
        """The maximum that the namespace can have: `hard`, and `hard` of the team less what is guaranteed to others."""
        team = self.team_state.reachable if self.team_state else {}
        return {**self.hard, **{key: min(amount, self.hard.get(key, amount)) for key, amount in team.items()}}

    def using(self, used: Amounts) -> "QuotaLedger":
        """Return this ledger with `used` (other dimensions are zero), and nothing reserved."""
        none = dict.fromkeys(self.limited, ZERO)
        return msgspec.structs.replace(self, used={**none, **used}, reservations=Reservations({}))

    def has_room(self, demand: Amounts, *, times: int) -> bool:
        """Whether the demand fits this many times."""
        limited, held = self.limited.intersection(demand), self.held
        return all(times * demand[key] <= self.free(key, held.get(key, ZERO)) for key in limited)

    @property
    def all_waiting(self) -> int:
        """How many pods wait or are being created to wait, with marks. If there are any, nobody else gets quota."""
        return self.waiting + len(self.joining) + len(self.marks)

    @property
    def joining(self) -> set[str]:
        """The names of pods that are being created to wait. A name that is stored cannot be created again."""
        return {*self.reservations.joining.values()}.difference(self.stored_names)

    @property
    def size(self) -> int:
        """Characters of its reservations, marks, credits and keepers."""
        marks = sum(mark.size for mark in self.marks.values())
        keepers = sum(keeper.size for keeper in self.keepers)
        return self.reservations.size + marks + keepers + sum(credit.size for credit in self.credits)

    def without_late_marks(self, now: int) -> "QuotaLedger":
        marks = {key: mark for key, mark in self.marks.items() if not mark.is_late(now)}
        return msgspec.structs.replace(self, marks=marks) if len(marks) < len(self.marks) else self

    @property
    def pods_ahead(self) -> int:
        """How many pods go before a new one, also in other namespaces that wait for the team."""
        return self.all_waiting + (self.team_state.waiting if self.team_state else 0)

    @property
    def demand_key(self) -> DemandKey:
        return self.class_catalogue, self.next_catalogue, self.unclassified_pods

    @property
    def catalogue_versions(self) -> frozenset[str]:
        """The catalogue versions under which the demand of a request must be computed."""
        return frozenset(filter(None, (self.class_catalogue, self.next_catalogue)))
