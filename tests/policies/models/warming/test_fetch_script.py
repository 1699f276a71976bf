"""What a pod carries of the fetch script: whole, for old Pythons, and safe inside a pod spec."""

import ast

import pytest

from policies.models.warming import SCHEMES, fetch_script

EVERY = pytest.mark.parametrize("scheme", SCHEMES)


@EVERY
def test_it_is_python_3_9_and_defines_what_it_uses(scheme: str) -> None:
    tree = ast.parse(fetch_script(scheme), feature_version=(3, 9))

    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    whole = {
        node.name
        for other in SCHEMES
        for node in ast.parse(fetch_script(other)).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert used & whole <= defined
    assert defined & set(SCHEMES) == {scheme}


@EVERY
def test_kubernetes_expands_nothing_in_it(scheme: str) -> None:
    assert "$" not in fetch_script(scheme)


@EVERY
def test_it_says_what_it_is_and_stays_small(scheme: str) -> None:
    script = fetch_script(scheme)

    assert script.startswith('"""Fetch a model into a directory;')
    assert "noqa" not in script
    assert len(script.encode()) < 15_000


def test_the_same_text_every_time() -> None:
    first = fetch_script("s3")
    fetch_script.cache_clear()

    assert fetch_script("s3") == first
