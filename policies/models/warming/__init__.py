"""The script that model-warming injects, as the text of `python3 -c`.

The script is data here: it is read, never imported. A pod carries what its source needs and no more: other
functions, comments, docstrings and blank lines are left out by whole lines; the rest is the file's own text.
"""

import ast
import functools
import importlib.resources

SCHEMES = ("gs", "hf", "https", "pvc", "s3")


@functools.cache
def fetch_script(scheme: str) -> str:
    """Return the script for one of SCHEMES."""
    text = importlib.resources.files(__name__).joinpath("fetch_model.py").read_text("utf-8")
    tree = ast.parse(text)
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    needed = _reachable(definitions, "main", scheme)
    left_out: set[int] = set()
    for name, node in definitions.items():
        if name not in needed:
            left_out |= _lines(node)
        elif ast.get_docstring(node):
            left_out |= _lines(node.body[0])
    kept = (
        line
        for number, line in enumerate(text.splitlines(), start=1)
        if number not in left_out and line.strip() and not line.lstrip().startswith("#")
    )
    return "\n".join(kept)


def _reachable(definitions: dict[str, ast.FunctionDef | ast.ClassDef], *roots: str) -> set[str]:
    """Return the names of all definitions that the roots use, directly or through others."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in definitions and name not in found:
            found.add(name)
            waiting += [node.id for node in ast.walk(definitions[name]) if isinstance(node, ast.Name)]
    return found


def _lines(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
