"""The pods of a namespace that wait for quota, and their places in line: single pods, and gangs as a whole."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
from msgspec.structs import replace

from policies.quota.amounts import Amounts, total
from policies.quota.ledger.credits import Matching, match
from policies.quota.ledger.keeps import kept_for
from policies.quota.ledger.quota_ledger import QuotaLedger
from policies.quota.waiting import QueueSpec, Standing, Waiter


class Gang(msgspec.Struct, frozen=True):
    """A gang needs `size` pods to start. `running`: how many of its pods have no gate, or have succeeded.

    With size 0, which could not be read, its pods have the obstacle UNREAD_GANG.
    """

    size: int
    running: int = 0


class InLine(msgspec.Struct, frozen=True):
    """The pods of a namespace that wait, their gangs by key, `spec.queue`, and which credits let them go first."""

    waiters: Sequence[Waiter]
    gangs: Mapping[str, Gang]
    queue: QueueSpec = QueueSpec()
    matching: Matching | None = None


def line_up(
    ledger: QuotaLedger,
    waiters: Iterable[Waiter],
    gangs: Mapping[str, Gang],
    queue: QueueSpec,
    now: int,
    *,
    in_team: bool = False,
) -> InLine:
    """Return the line of these pods. Pods that replace ended ones go first. `now` is in ms since 1970.

    In a team, only pods for which quota is kept go first: others could take the quota of other namespaces.
    """
    usable = ledger.credits if queue.prefer_replacements and not in_team else ()
    pods, lifts = tuple(waiters), ledger.reservations.lifts
    ordered: list[Waiter] = sorted(pods, key=_sort_key) if ledger.reservations.keeps else []
    if keeps := kept_for(ledger.reservations, ordered):
        pods = tuple(replace(pod, keep=keeps.get(pod.uid, "")) for pod in pods)
    matching = match(usable, (pod for pod in pods if pod.uid not in lifts and not pod.keep), now)
    if matching.ends:
        pods = tuple(replace(pod, replaces=True) if pod.uid in matching.ends else pod for pod in pods)
    return InLine(pods, gangs, queue, matching)


class QueueEntry(msgspec.Struct, frozen=True, dict=True):
    """One place in line: a single pod, or the pods that a gang needs to start. `missing` of those do not exist yet.

    `surplus`: further pods of the gang. Each lines up alone once the gang has started. `continues_gang`: quota is held for
    the pod because its gang has started.
    """

    waiters: tuple[Waiter, ...]
    continues_gang: bool
    gang: str = ""
    missing: int = 0
    surplus: tuple[Waiter, ...] = ()

    @property
    def obstacle(self) -> Standing | None:
        return next((waiter.obstacle for waiter in self.waiters if waiter.obstacle is not None), None)

    @cached_property
    def demand(self) -> Amounts:
        """The demand of all its pods; of a single pod, the vector that it shares with equal pods."""
        if len(self.waiters) == 1:
            return self.waiters[0].demand
        return total(waiter.demand for waiter in self.waiters)

    @property
    def is_blocked(self) -> bool:
        """Whether it cannot start. A gang whose size cannot be read may have started."""
        return self.obstacle not in {None, Standing.UNREAD_GANG}

    @property
    def is_kept(self) -> bool:
        """Whether quota is kept for all its pods, so that it takes nothing from others."""
        return not self.missing and all(waiter.keep for waiter in self.waiters)

    @property
    def beyond(self) -> Amounts:
        """By how much its namespace may exceed the GPUQuota for it: by nothing, unless Kueue has admitted all its pods."""
        return self.waiters[0].beyond if all(waiter.beyond for waiter in self.waiters) else {}

    @property
    def may_pass_others(self) -> bool:
        return self.is_kept or bool(self.beyond)

    @property
    def goes_first(self) -> bool:
        return self.continues_gang or self.is_kept or any(waiter.replaces for waiter in self.waiters)

    @property
    def since(self) -> str:
        return min(waiter.since for waiter in self.waiters)

    @property
    def order(self) -> tuple[object, ...]:
        first = min((*self.waiters, *self.surplus), key=_sort_key)
        return not self.continues_gang, not self.is_kept, *_sort_key(first)


def _sort_key(waiter: Waiter) -> tuple[object, ...]:
    return not waiter.replaces, -waiter.priority, waiter.since, waiter.uid


def entries_in_line(
    waiters: Iterable[Waiter], gangs: Mapping[str, Gang], ledger: QuotaLedger
) -> Iterator[QueueEntry]:
    lifts = ledger.reservations.lifts
    by_gang: dict[str, list[Waiter]] = {}
    for waiter in sorted(waiters, key=_sort_key):
        if waiter.gang in gangs:
            by_gang.setdefault(waiter.gang, []).append(waiter)
        else:
            yield QueueEntry((waiter,), continues_gang=False)
    for key, members in by_gang.items():
        gang = gangs[key]
        has_begun = any(waiter.uid in lifts and lifts[waiter.uid].is_begun_lift for waiter in members)
        if not gang.running and not has_begun:
            size = gang.size or len(members)
            needed, surplus = tuple(members[:size]), tuple(members[size:])
            yield QueueEntry(
                needed, continues_gang=False, gang=key, missing=size - len(needed), surplus=surplus
            )
            continue
        # The gang has started. What was held for all of its pods stays; pods that come later are replacements.
        yield from (QueueEntry((waiter,), continues_gang=waiter.uid in lifts) for waiter in members)
