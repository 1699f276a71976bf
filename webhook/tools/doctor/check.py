"""What a check is: an id, what it needs to read, and a function that says what it found.

A check never calls something fine that it could not look at: what is in the way becomes a `NotChecked`.
"""

from collections.abc import Callable, Iterator
from enum import Enum

import msgspec

from webhook.cluster import errors
from webhook.tools.doctor.cluster import Cluster, Unknown
from webhook.tools.doctor.rights import Right


class Severity(Enum):
    ERROR = "error"
    """Something does not work, or will not when it is needed."""
    WARNING = "warning"
    """It works; somebody will be surprised all the same."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with which object, and how to mend it: one sentence or one command."""

    id: str
    severity: Severity = Severity.ERROR
    object: str
    message: str
    remedy: str


class NotChecked(msgspec.Struct, frozen=True):
    """What could not be looked at, and why."""

    why: str


class Note(msgspec.Struct, frozen=True):
    """How something was checked, where that is not as usual."""

    text: str


Told = Finding | NotChecked | Note


class Check(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    title: str
    reads: tuple[Right, ...] = ()
    """What whoever runs this must be allowed to do; where they are not, the check is not run."""
    run: Callable[[Cluster], Iterator[Told]]


class Result(msgspec.Struct, frozen=True):
    check: Check
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    notes: tuple[Note, ...] = ()


def result_of(check: Check, cluster: Cluster) -> Result:
    """Run the check as far as it gets."""
    told: list[Told] = []
    try:
        missing = [right for right in check.reads if not cluster.rights.mine(right)]
        if missing:
            words = ", ".join(right.words for right in missing)
            told.append(NotChecked(f"you may not {words}"))
        else:
            told.extend(check.run(cluster))
    except Unknown as unknown:
        told.append(NotChecked(str(unknown)))
    except errors.ApiError as error:
        told.append(NotChecked(f"the API server says: {error}"))
    except (msgspec.MsgspecError, ValueError) as error:
        told.append(NotChecked(f"what the API server says cannot be read: {error}"))
    return Result(
        check,
        tuple(each for each in told if isinstance(each, Finding)),
        tuple(each for each in told if isinstance(each, NotChecked)),
        tuple(each for each in told if isinstance(each, Note)),
    )
