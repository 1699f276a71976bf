"""Every sentence of `why` that tells its reader to write, add, set, remove, request, name, wait or ask is made beside its data.

All literals of webhook/tools/why are walked. Each such sentence stands in the table below with the data that it has: edits, what
is awaited, or what is asked for. The test fails for another sentence, and for a function that does not make that data. What rules
say has its data in the finding: tests/remedies/test_law.py and test_why.py say whether both are true.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.literals import texts

ROOT = Path(__file__).parents[1]
WHY = ROOT / "webhook/tools/why"
TELLS = re.compile(
    r"(?:^|[;:,] (?:or |and )?|\bor |\band )(?:write|add|set|remove|request|name|wait|ask)\b(?=.* | \{)"
)
EDITS, AWAITS, ASKS = "edits", "awaits", "asks"
SAID: dict[str, frozenset[str]] = {
    "ask {} {}": frozenset({ASKS}),
    "wait, or {}": frozenset({AWAITS}),
    "if it stays so, ask {} whether a controller runs": frozenset({AWAITS}),
    "request less, or {}": frozenset({ASKS}),  # only the author knows how much less
    "it starts in the next period of the budget, or ask {} to raise spec.budget": frozenset({ASKS}),
    "ask {}, who set it in GPUQuota {}": frozenset({ASKS}),
    "wait until {} is Ready": frozenset({AWAITS}),
    "ask to uncordon one of them": frozenset({ASKS}),
    "if its pods belong there, add to spec.tolerations: {}": frozenset({EDITS}),
    "wait until there is another node": frozenset({AWAITS}),
    "wait until {} has lost this taint": frozenset({AWAITS}),
    "if the pod may run there, remove nodeSelector {}": frozenset({EDITS}),
    "if the pod may run there, remove its required node affinity": frozenset({EDITS}),
    "request {}": frozenset({EDITS}),
    "wait until {} {} free on one node": frozenset({AWAITS}),
    "wait until {} adds a node": frozenset({AWAITS}),
    "wait until {} adds a node, or see in its log why it does not": frozenset({AWAITS}),
    "ask {} for the rights that are named below": frozenset({ASKS}),
    "wait until then, and set a {} if later updates must be faster": frozenset({AWAITS}),
    "name a class that has nodes ({}), or ": frozenset({EDITS}),
    "ask {} for nodes{}": frozenset({ASKS}),
    "request less {}, or wait until it is free": frozenset({AWAITS}),  # only the author knows how much less
}


class Sentence(NamedTuple):
    text: str
    data: frozenset[str]
    """What of a Way the function, or the statement of the module, makes."""


def sentences(source: str) -> Iterator[Sentence]:
    """Yield the literals that tell somebody to do something, without docstrings."""
    tree = ast.parse(source)
    for scope in tree.body:
        functions: list[ast.AST] = [each for each in ast.walk(scope) if isinstance(each, ast.FunctionDef)]
        parts = functions or [scope]
        for part in parts:
            made = {
                keyword.arg or ""
                for call in ast.walk(part)
                if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Way"
                for keyword in call.keywords
            }
            made |= {
                ASKS for call in ast.walk(part) if getattr(getattr(call, "func", None), "id", "") == "Asked"
            }
            for text in texts(part):
                if TELLS.search(text):
                    yield Sentence(text, frozenset(made))


def test_each_sentence_of_why_is_made_beside_its_data() -> None:
    found = [each for path in sorted(WHY.glob("*.py")) for each in sentences(path.read_text())]

    assert {each.text for each in found} == set(SAID)
    assert [each.text for each in found if not SAID[each.text] <= each.data] == []


def test_a_sentence_without_data_is_found() -> None:
    source = (
        'def f(x):\n    """Set x: no sentence."""\n    return Cause(remedy=f"it is full: ask {x} for more")\n'
    )

    assert list(sentences(source)) == [Sentence("it is full: ask {} for more", frozenset())]
