"""The texts of a source file: its literals without docstrings, with {} for what is filled in."""

import ast
from collections.abc import Iterator


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the literals below a node of a syntax tree; an f-string is one."""
    docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
    parts = {id(part) for of in ast.walk(tree) if isinstance(of, ast.JoinedStr) for part in of.values}
    yield from filter(None, (_words(each) for each in ast.walk(tree) if id(each) not in docstrings | parts))


def _words(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part) or "{}" for part in node.values)
    return ""
