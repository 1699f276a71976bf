"""Which documents of a cluster are in force: all as they are stored, or, if anything is wrong with them, the last good ones.

What was in force last is remembered in memory; a process that has only just started finds it in the objects' status, where
the controller wrote it. So all processes come to the same version. A pause is taken from the newest documents in any case:
break glass must not depend on somebody else's document.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from webhook.configuration.decoding import decode
from webhook.configuration.documents import POLICY, Document, LocatedProblem
from webhook.configuration.loader import ConfigurationError, load_objects
from webhook.configuration.records import Record
from webhook.configuration.snapshot import Configuration

PAUSE = "pausedUntil"


class Chosen(msgspec.Struct, frozen=True):
    """The documents in force and what they come to; `problems` are why the stored ones are not, if they are not."""

    documents: tuple[Document, ...]
    configuration: Configuration
    problems: tuple[LocatedProblem, ...] = ()


def choose(records: Sequence[Record], last_good: tuple[Document, ...] | None) -> Chosen:
    """Return what is in force now that `records` are stored; `last_good` is None in a process that has just started."""
    stored = tuple(record.document for record in records)
    try:
        return Chosen(stored, load_objects(stored))
    except ConfigurationError as error:
        problems = tuple(error.problems)
    if last_good is None:
        last_good = tuple(record.accepted for record in records if record.accepted is not None) or stored
    good = _usable(last_good)
    paused = tuple(_paused_as(document, stored) for document in good)
    try:
        return Chosen(paused, load_objects(paused), problems)
    except ConfigurationError:  # the pause is what is wrong
        return Chosen(good, load_objects(good), problems)


def _usable(documents: Iterable[Document]) -> tuple[Document, ...]:
    """Return the documents without those in which something is wrong, once others that are wrong are away."""
    left = tuple(documents)
    while bad := {problem.document for problem in problems_of(left)}:
        left = tuple(document for document in left if document.title not in bad)
    return left


def problems_of(documents: Iterable[Document]) -> tuple[LocatedProblem, ...]:
    """Return everything that is wrong with the documents."""
    try:
        load_objects(documents)
    except ConfigurationError as error:
        return tuple(error.problems)
    return ()


def _paused_as(document: Document, stored: Iterable[Document]) -> Document:
    newest = next((each for each in stored if each.key == document.key), None)
    if document.kind != POLICY or newest is None or not is_pause(newest.spec.get(PAUSE)):
        return document
    return msgspec.structs.replace(document, spec=with_pause(document.spec, newest.spec.get(PAUSE)))


def is_pause(value: Any) -> bool:
    """Whether it is what `pausedUntil` may be, none included."""
    moment = decode(datetime, value, (), []) if isinstance(value, str) else None
    return value is None or (moment is not None and moment.tzinfo is not None)


def with_pause(spec: dict[str, Any], until: str | None) -> dict[str, Any]:
    """Return the spec paused until then, or without any pause."""
    rest = {key: value for key, value in spec.items() if key != PAUSE}
    return rest if until is None else {**rest, PAUSE: until}
