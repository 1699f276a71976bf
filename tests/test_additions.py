"""A new rule, or dimension of the quota, is in every place that lists all of them; what fails names the forgotten file.

docs/develop/development.md says what to write by hand, and what writes the rest.
"""

import re
from pathlib import Path

import pytest
import yaml

from policies.quota.amounts import DIMENSIONS, Hard
from policies.registry import RULES
from policies.rule import Rule
from tests.deploy.rule_files import AUDIT, CRD, FIRST_INSTALL
from webhook.tools.scan.report import NamespaceUse

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
FILES = [path for path in (ROOT / "policies" / "rules").glob("*.py") if path.stem != "__init__"]
MODULES = sorted(path for path in FILES if not any(path.stem.startswith(f"{each.stem}_") for each in FILES))
"""The others belong to the rule with the shorter name."""

MANIFESTS = "run `make manifests`"
DOCS = "run `UPDATE_DOCS=1 .venv/bin/python -m pytest tests/test_docs.py`"

_LISTS = {
    REFERENCE / "rules" / "README.md": ("| [{id}]({id}.md) |", DOCS),
    CRD: (f"{' ' * 18}{{id}}:", MANIFESTS),
    FIRST_INSTALL: (f"{' ' * 6}{{id}}:", MANIFESTS),
    AUDIT: (f"{' ' * 4}{{id}}:", MANIFESTS),
    ROOT / "deploy" / "static" / "crds" / "crds.yaml": (f"{' ' * 18}{{id}}:", MANIFESTS),
    ROOT / "deploy" / "static" / "first-install" / "policy.yaml": (f"{' ' * 4}{{id}}:", MANIFESTS),
    REFERENCE / "api" / "gpupolicy.md": ("`spec.rules.{id}`", DOCS),
    ROOT / "policies" / "README.md": ("\n{id} ", DOCS),
    ROOT / "docs" / "operate" / "configuration.md": ("\n  {id} ", DOCS),
}
"""By the files that list all rules: by what one is found there, and what to do where it is not."""


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in MODULES])
def test_a_file_of_a_rule_is_registered_and_tested(path: Path) -> None:
    registered = (ROOT / "policies" / "registry.py").read_text()
    assert f"    {path.stem}.RULE,\n" in registered, f"policies/registry.py lacks {path.stem}"
    tests = list((ROOT / "tests" / "policies" / "rules").glob(f"test_{path.stem}*.py"))
    assert tests, f"tests/policies/rules/test_{path.stem}.py must be written"


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.id) for rule in RULES])
def test_a_rule_is_in_every_list_of_rules(rule: Rule) -> None:
    lacking = [
        f"{path.relative_to(ROOT)}: {remedy}"
        for path, (mark, remedy) in _LISTS.items()
        if mark.format(id=rule.id) not in path.read_text()
    ]

    assert not lacking, "\n".join((f"{rule.id} is forgotten in", *lacking))


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.id) for rule in RULES if not rule.not_exported])
def test_a_rule_that_is_exported_has_a_template(rule: Rule) -> None:
    template = ROOT / "webhook" / "tools" / "export" / "templates" / f"{rule.id}.yaml"
    assert template.exists(), f"write {template.relative_to(ROOT)}, or not_exported in the rule"


CRDS, CHART = CRD.parent, ROOT / "deploy" / "chart" / "files"
_DIMENSIONS = {
    CRDS / "gpuquotas.yaml": ("\n                  {dimension}:", "describe `spec.hard.{dimension}`"),
    CHART / "dashboard-tenants.json": ('dimension=\\"{dimension}\\"', "chart it"),
    ROOT / "docs" / "operate" / "quota.md": ("`{key}`", "say what counts"),
    ROOT / "docs" / "operate" / "audit-log.md": ("`{KEY}`", "name the key of `demand`"),
    REFERENCE / "api" / "gpuquota.md": ("`spec.hard.{dimension}`", DOCS),
}
"""By the files that name all dimensions of a quota: by what one is found there, and what to do where it is not."""


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_a_dimension_of_the_quota_is_everywhere(dimension: str) -> None:
    is_named = getattr(Hard(), dimension) is not None
    words = {
        "dimension": dimension,
        "key": f"{dimension}/<name>" if is_named else dimension,
        "KEY": f"{dimension}/NAME" if is_named else dimension,
    }
    lacking = []
    for path, (mark, remedy) in _DIMENSIONS.items():
        text = path.read_text().replace(f'=~\\"{dimension}/.+\\"', f'=\\"{dimension}\\"')
        if mark.format(**words) not in text:
            lacking.append(f"{path.relative_to(ROOT)}: {remedy.format(**words)}")
    schema = yaml.safe_load((CRDS / "gpuquotas.yaml").read_text())["spec"]["versions"][0]
    paths = [column["jsonPath"] for column in schema["additionalPrinterColumns"]]
    if f".spec.hard.{dimension}" not in paths:
        lacking.append(f"deploy/chart/files/crds/gpuquotas.yaml: a column for .spec.hard.{dimension}")
    if dimension not in NamespaceUse.__struct_fields__:
        lacking.append("webhook/tools/scan/report.py: show it in NamespaceUse")

    assert not lacking, "\n".join((f"{dimension} is forgotten in", *lacking))


def test_tests_share_only_modules_that_are_no_tests() -> None:
    """What two tests need stands in a module whose name does not begin with `test_`."""
    shared = re.compile(r"^from tests(\.\S+)?( import|\.).*\btest_\w+( import)?", re.MULTILINE)
    assert [path for path in (ROOT / "tests").rglob("*.py") if shared.search(path.read_text())] == []
