"""For which object each spare of a row was, with hindsight: a row does not say to whom a replica has assigned it.

A write that takes spares out and puts objects in, of the same amounts, says it. What was stored and never came into the row got
its spare from a replica that was killed: one of that amount, and of those the one that stayed longest.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

SPARE = "+"
"""Before the ids of spares."""

Entries = Mapping[str, str]
"""The amounts of each reservation as they are written, by id."""

_LINES = re.compile(r"^(.*) \| (.*)$", re.MULTILINE)
_MARKS = re.compile(r" [>@]")


def entries(row: Mapping[str, Any]) -> Entries:
    found = _LINES.findall(row.get("reservations", ""))
    return {item.partition(":")[0]: _MARKS.split(head)[0] for head, items in found for item in items.split()}


def objects_of_spares(
    rows: Sequence[tuple[int, Entries]],
    stored: Mapping[str, int],
    costs: Mapping[str, Mapping[str, Fraction]],
) -> dict[str, str]:
    """Return the uid of the object by the id of its spare, for those that were for any.

    `rows` are all versions of the row with their revisions, `stored` the revision at which each object came to be, by its uid.
    """
    taken: dict[str, int] = {}
    ended: dict[str, int] = {}
    found: dict[str, str] = {}
    before: Entries = {}
    for revision, now in rows:
        taken.update((each, revision) for each in now if each not in before and each.startswith(SPARE))
        gone = sorted((each for each in before if each not in now and each in taken), key=taken.__getitem__)
        ended.update((each, revision) for each in gone)
        come = [each for each in now if each not in before and each not in taken and "/" not in each]
        come.sort(key=lambda uid: stored.get(uid, math.inf))
        for amounts in {before[each] for each in gone}:
            of_them = (each for each in gone if before[each] == amounts)
            found.update(zip(of_them, (uid for uid in come if now[uid] == amounts), strict=False))
        before = now
    settled = set(found.values())
    for uid, revision in sorted(stored.items(), key=lambda item: item[1]):
        written = bisect_left(rows, revision, key=lambda each: each[0])
        row = rows[written - 1][1] if written else {}
        if uid in row or uid in settled:
            continue
        fitting = [
            each for each in row if each in taken and each not in found and _covers(row[each], costs[uid])
        ]
        if fitting:
            found[max(fitting, key=lambda each: ended.get(each, math.inf))] = uid
    return found


def _covers(amounts: str, cost: Mapping[str, Fraction]) -> bool:
    held = dict(item.split("=") for item in amounts.split())
    return all(Fraction(held.get(key, 0)) >= amount for key, amount in cost.items())
