"""Keeps what helps a pending pod now: each change is made to the pod, which is compared with what is free on the nodes."""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from policies.finding import Edits, Finding, choices_text
from webhook.tools.why.explanation import Awaited, Cause, NodeFit, Remedy, Source, cause_of

UNSCHEDULABLE = "spec.unschedulable"
MAX_NODES = 8
"""Nodes whose remedies are tried, the one with the fewest obstacles first."""


class RemainingSteps(msgspec.Struct, frozen=True):
    """What is left to do or to wait for, in words and as data; both are empty if the pod runs at once."""

    words: str = ""
    way: Remedy = Remedy()

    @property
    def order(self) -> tuple[int, int]:
        """The sort key: to wait comes before more edits, and before what others must do."""
        return len(self.way.edits) + len(self.way.contact_edits), len(self.way.awaits)


class FitsAfter(msgspec.Struct, frozen=True):
    """What the nodes say of a pod after a change. adds: what can add a node for it, in words; "" for nothing."""

    fits: Sequence[NodeFit]
    adds: str = ""


TryEdits = Callable[[Edits], FitsAfter | None]
"""Returns what the nodes say of the pod with these edits of the object; None if it would be denied."""


def cause_that_helps(finding: Finding, try_edits: TryEdits | None) -> Cause:
    """Return the cause with those choices that let the pod run, and what else is needed for that.

    try_edits: None if no choice can be tried.
    """
    if try_edits is None:
        return cause_of(Source.NODES, finding)
    remaining = {
        edits: rest for edits in finding.choices if (rest := _remaining_steps(edits, try_edits)) is not None
    }
    uncordons = any(edit.path == UNSCHEDULABLE for change in finding.contact_choices for edit in change)
    if uncordons and not _is_enough_to_ask(try_edits):
        finding = replace(finding, ask_contact="", contact_choices=())
    if not remaining and finding.reason.hides_others:
        return cause_of(Source.NODES, finding)
    best = min(remaining.values(), key=lambda rest: rest.order, default=RemainingSteps())
    choices = tuple(edits for edits, rest in remaining.items() if rest == best)
    words = finding.remedy if choices == finding.choices else ""
    words = ", and ".join(filter(None, (words or choices_text(choices), best.words)))
    cause = cause_of(Source.NODES, replace(finding, choices=choices, remedy=words))
    return replace(
        cause, ways=tuple(Remedy.together((way, best.way)) if way.edits else way for way in cause.ways)
    )


def _is_enough_to_ask(try_edits: TryEdits) -> bool:
    """Whether a node takes the unchanged pod once others did what they are asked for."""
    after = try_edits(())
    ways = [fit.way for fit in after.fits if fit.remedy] if after else []
    return after is None or any(way.contact_edits and not way.edits for way in ways)


def _remaining_steps(edits: Edits, try_edits: TryEdits) -> RemainingSteps | None:
    """Return what the pod lacks after the edits; None if nothing known lets it run."""
    after = try_edits(edits)
    if after is None:
        return None
    paths = {edit.path for edit in edits}
    apart = [fit for fit in after.fits if paths.isdisjoint(edit.path for edit in fit.way.edits)]
    remaining = (RemainingSteps(fit.remedy, fit.way) for fit in _helpful_fits(apart, try_edits, edits))
    adds = (
        RemainingSteps(f"wait until {after.adds} adds a node", Remedy(awaits=(Awaited.NODE,)))
        if after.adds
        else None
    )
    return min((*remaining, *([adds] if adds else ())), key=lambda rest: rest.order, default=None)


def with_wait(edits: Edits, try_edits: TryEdits | None) -> RemainingSteps | None:
    """Return the edits with what the pod then awaits; None if it needs more than to wait. `try_edits`: as above."""
    rest = RemainingSteps() if try_edits is None else _remaining_steps(edits, try_edits)
    if rest is None or rest.way.edits or rest.way.contact_edits:
        return None
    return RemainingSteps(rest.words, Remedy.together((Remedy(edits=edits), rest.way)))


def nearest(fits: Sequence[NodeFit], try_edits: TryEdits) -> tuple[NodeFit, ...]:
    """Return the nodes, first the one with the fewest obstacles whose remedy lets the pod run."""
    helping = next(_helpful_fits(fits, try_edits), None)
    if helping is None:
        return tuple(replace(fit, remedy="", way=Remedy()) for fit in fits)
    return (helping, *(fit for fit in fits if (fit.kind, fit.name) != (helping.kind, helping.name)))


def _helpful_fits(fits: Sequence[NodeFit], try_edits: TryEdits, edits: Edits = ()) -> Iterator[NodeFit]:
    """Yield the nodes that take the pod, after the edits, once their remedy is followed; it says what the pod then waits for."""
    for fit in fits[:MAX_NODES]:
        if not fit.against or (fit.remedy and not fit.way.edits):
            yield fit
        elif fit.remedy and (after := try_edits((*edits, *fit.way.edits))) is not None:
            then = next((other for other in after.fits if other.name == fit.name), None)
            if then is None or then.way.edits or (then.against and not then.remedy):
                continue
            combined = Remedy.together((fit.way, then.way))
            if combined == fit.way:
                yield fit
            elif not (fit.way.awaits or fit.way.contact_edits):
                yield replace(fit, remedy=f"{fit.remedy}, and {then.remedy}", way=combined)
