"""The script that model-warming injects, as the text of `python3 -c`.

The script is data here: it is read, never imported. A pod carries only what its source needs: the other sources' functions,
comments, docstrings and blank lines are left out, whole lines at a time, so that what remains is the file's own text.
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
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in SCHEMES and node.name != scheme:
            left_out |= _lines(node)
        elif isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            left_out |= _lines(node.body[0])
    kept = (
        line
        for number, line in enumerate(text.splitlines(), start=1)
        if number not in left_out and line.strip() and not line.lstrip().startswith("#")
    )
    return "\n".join(kept)


def _lines(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
