"""What docstrings name exists: the fields of a class and the parameters of a function, where they say `name: what it is`."""

import ast
import re
from collections.abc import Iterator

from tests.cases import cases
from tests.pages import ROOT

NAMED = re.compile(r"(?:^|(?<=\. )|(?<=\n))`?([a-z_]+(?:, [a-z_]+)*)`?: ")
PRODUCT = ("policies", "webhook", "certs")


def unknown_names(source: str) -> Iterator[str]:
    """Yield `owner: name`. A name of one word may begin a sentence, so only names of several are compared."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            named = NAMED.findall(ast.get_docstring(node) or "")
            names = {name for listed in named for name in listed.split(", ") if "_" in name}
            yield from (f"{node.name}: {name}" for name in sorted(names - known_names(node)))


def known_names(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """Return the parameters, and of a class all attributes and methods."""
    parameters = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    if isinstance(node, ast.FunctionDef):
        return parameters
    fields = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    return (
        parameters
        | fields
        | assigned
        | {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    )


def test_docstrings_name_fields_and_parameters_that_exist() -> None:
    files = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]

    found = {str(path.relative_to(ROOT)): [*unknown_names(path.read_text())] for path in files}

    assert {path: names for path, names in found.items() if names} == {}


@cases(
    ("source", "want"),
    a_field_that_was_renamed=(
        'class A:\n    """A. old_name: what it is."""\n    new_name: str\n',
        ["A: old_name"],
    ),
    a_parameter=(
        'def f(one_name: str) -> None:\n    """Do. one_name, other_name: both."""\n',
        ["f: other_name"],
    ),
    a_word_before_a_colon=('def f() -> None:\n    """Do. Note: this."""\n', []),
)
def test_the_walk_finds_a_name_that_is_gone(source: str, want: list[str]) -> None:
    assert [*unknown_names(source)] == want
