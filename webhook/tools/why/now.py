"""Keeps what helps a pending pod now: each change is made to the pod, which is compared with what is free on the nodes."""

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from policies.finding import Edits, Finding, in_words
from webhook.tools.why.explanation import Awaited, Cause, NodeFit, Source, Way, cause_of

MAX_NODES = 8
"""Nodes whose remedies are tried, the one with the fewest obstacles first."""


class After(msgspec.Struct, frozen=True):
    """What the nodes say of a pod after a change. adds: what can add a node for it, in words; "" for nothing."""

    fits: Sequence[NodeFit]
    adds: str = ""

    @property
    def wait(self) -> tuple[str, tuple[Awaited, ...]] | None:
        """What the pod has to wait for, in words and as data, both empty if it runs at once; None if waiting does not help."""
        best = next((each for each in self.fits if not each.against or each.is_awaited), None)
        if best is not None:
            return best.remedy, best.way.awaits
        return (f"wait until {self.adds} adds a node", (Awaited.NODE,)) if self.adds else None


Try = Callable[[Edits], After | None]
"""Returns what the nodes say of the pod with these edits; None if it would be denied."""


def now(finding: Finding, tried: Try | None) -> Cause:
    """Return the cause with those choices after which the pod runs, or else has only to wait; the sentence says for what.

    tried: None if no choice can be tried.
    """
    if tried is None:
        return cause_of(Source.NODES, finding)
    waits = {edits: after.wait for edits in finding.choices if (after := tried(edits)) is not None}
    helpful = {edits: wait for edits, wait in waits.items() if wait is not None}
    best = min(helpful.values(), key=lambda wait: len(wait[1]), default=("", ()))
    choices = tuple(edits for edits, wait in helpful.items() if wait == best)
    words = finding.remedy if choices == finding.choices else ""
    words = ", and ".join(filter(None, (words or in_words(choices), best[0])))
    said = cause_of(Source.NODES, replace(finding, choices=choices, remedy=words))
    ways = (replace(way, awaits=best[1]) if way.edits else way for way in said.ways)
    return replace(said, ways=tuple(ways))


def nearest(fits: Sequence[NodeFit], tried: Try) -> tuple[NodeFit, ...]:
    """Return the nodes, first the one with the fewest obstacles whose remedy lets the pod run."""
    helping = next((each for each in fits[:MAX_NODES] if each.remedy and _helps(each, tried)), None)
    if helping is None:
        return tuple(replace(each, remedy="", way=Way()) for each in fits)
    return (helping, *(each for each in fits if each is not helping))


def _helps(fit: NodeFit, tried: Try) -> bool:
    """Whether the edits leave only those obstacles that the remedy awaits or asks to remove."""
    if not fit.way.edits:
        return True
    after = tried(fit.way.edits)
    same = (each for each in after.fits if each.name == fit.name) if after is not None else ()
    return any(not each.way.edits and (each.remedy or not each.against) for each in same)
