"""The documentation says what the code does: documents load, options exist, quoted messages and outputs are real.

UPDATE_DOCS=1 writes the outputs of commands in the documentation again.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from policies.pods import annotations
from policies.quota.waiting import GATE
from policies.registry import RULES, RULES_BY_ID
from policies.rule import Rule
from tests.docs_site import anchor
from tests.generated_docs import (
    api_reference,
    check_or_write,
    generated,
    metrics_table,
    modules_table,
    not_fixable_list,
    reasons_table,
    rules_table,
)
from tests.pages import BLOCK, PAGES, ROOT, blocks, each_page
from webhook.cluster.objects import EXPORTED_RULE_LABEL
from webhook.commands import main
from webhook.commands.output import as_yaml
from webhook.commands.rules import options
from webhook.configuration.documents import API_VERSION
from webhook.configuration.loader import ConfigurationError, load_directory

RULES_FOLDER = ROOT / "docs" / "reference" / "rules"
REASONS_PAGE = RULES_FOLDER / "reasons.md"
EXAMPLES = sorted((ROOT / "examples").glob("policies*"))

REFUSED = "<!-- refused -->\n"
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
OPTION_ROW = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<default>.*?)` \|", re.MULTILINE)

each_rule = pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.id) for rule in RULES])


# ---- our documents


def our_documents(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield each YAML block that is one of our documents, and whether the page says that it is refused."""
    for block in blocks(page, "yaml"):
        list(yaml.safe_load_all(block["text"]))
        if API_VERSION in block["text"]:
            yield block["text"], block["before"] == REFUSED


@each_page
def test_a_document_in_the_documentation_loads(page: Path, tmp_path: Path) -> None:
    for number, (text, refused) in enumerate(our_documents(page)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "policy.yaml").write_text(text)
        if refused:
            with pytest.raises(ConfigurationError) as error:
                load_directory(folder)
            assert str(error.value) in page.read_text()
        else:
            load_directory(folder)


@pytest.mark.parametrize("directory", [pytest.param(path, id=path.name) for path in EXAMPLES])
def test_an_example_configuration_loads(directory: Path) -> None:
    names = {policy.name for policy in load_directory(directory).policies.policies}

    assert "default" in names


def test_the_audit_preset_changes_and_refuses_nothing() -> None:
    configuration = load_directory(ROOT / "examples" / "policies-audit")
    effective = configuration.policies.for_namespace("team")

    assert {bound.rule.id for bound in effective.bound_rules} == RULES_BY_ID.keys() - {"spot"}
    assert {bound.options.mode.value for bound in effective.bound_rules} == {"audit"}


# ---- docs/reference/rules


def test_each_rule_has_a_page_and_a_row_of_the_index() -> None:
    pages = {page.stem: page.read_text().splitlines()[0] for page in RULES_FOLDER.glob("*.md")}
    index = RULES_FOLDER / "README.md"

    assert pages.keys() == {"README", "reasons", *RULES_BY_ID}
    assert {name: pages[name] for name in RULES_BY_ID} == {name: f"# {name}" for name in RULES_BY_ID}
    check_or_write(index, generated(index.read_text(), "rules", rules_table()))


@each_rule
def test_the_page_of_a_rule_has_each_option_with_its_default(rule: Rule) -> None:
    page = (RULES_FOLDER / f"{rule.id}.md").read_text()
    table = page.split("| option | default | meaning |")[1].split("\n\n")[0]
    documented = {row["name"]: row["default"] for row in OPTION_ROW.finditer(table)}

    assert documented == {option["name"]: told_or_below(option["default"]) for option in options(rule)}
    for word in words_in([option["default"] for option in options(rule)]):
        assert f"`{word}`" in page


def told_or_below(default: Any) -> str:
    """Return a default as its row has it: of a structure the words stand further below."""
    return "{…}" if isinstance(default, dict) and default else str(as_yaml(default))


def words_in(default: Any) -> Iterator[str]:
    """Yield the keys and the values of the structures in a default."""
    for value in default if isinstance(default, list) else ():
        if isinstance(value, dict):
            yield from value
            yield from (str(as_yaml(each)) for each in value.values() if not isinstance(each, dict))
            yield from words_in(list(value.values()))


# ---- everything else that is named


def test_every_annotation_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "annotations.md").read_text()
    keys = [value for value in vars(annotations).values() if str(value).startswith(annotations.DOMAIN)]

    assert len(keys) > 10
    assert [key for key in keys if key != annotations.DOMAIN and f"`{key}`" not in page] == []


def named(pattern: str) -> set[tuple[str, str]]:
    """Return what the pages name in this form, each with its page."""
    return {
        (next(filter(None, found.groups())), page.name)
        for page in PAGES
        for found in re.finditer(pattern, page.read_text(), re.MULTILINE)
    }


def test_no_unknown_annotation_or_label_is_named() -> None:
    known = {
        *map(str, vars(annotations).values()),
        API_VERSION.removesuffix("1alpha1"),
        EXPORTED_RULE_LABEL,
        GATE,
    }

    assert [each for each in named(r"(gpu-admission\.dev/[a-z][a-z-]*)") if each[0] not in known] == []


def test_a_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert [each for each in named(r"`make ([a-z-]+)|^ +make ([a-z-]+)") if each[0] not in targets] == []


def test_no_table_has_a_row_twice() -> None:
    twice = [
        f"{page}: {row}"
        for page in PAGES
        for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)
        for row, number in Counter(table.splitlines()).items()
        if number > 1
    ]
    assert twice == []


def test_a_link_leads_somewhere() -> None:
    for page in PAGES:
        for link in LINK.finditer(page.read_text()):
            path, _, fragment = link["target"].partition("#")
            if path.startswith(("https:", "http:")):
                continue
            target = (page.parent / path) if path else page
            assert target.exists(), f"{page.relative_to(ROOT)}: {link['target']}"
            assert not fragment or fragment in anchors(target), f"{page.relative_to(ROOT)}: {link['target']}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {anchor(heading) for heading in headings}


def test_every_make_target_is_documented() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    page = (ROOT / "docs" / "develop" / "development.md").read_text()

    assert [target for target in targets if f"| `make {target}` |" not in page and target != "help"] == []


def test_what_is_not_exported_is_what_the_registry_says() -> None:
    rows = [f"| {rule.id} | {rule.not_exported} |" for rule in RULES if rule.not_exported]
    page = ROOT / "docs" / "operate" / "export.md"
    table = "\n".join(["| rule | why not |", "|---|---|", *rows, ""])
    check_or_write(page, generated(page.read_text(), "rules", table))


# ---- docs/operate/operations.md, docs/operate/security.md


@pytest.mark.parametrize("name", ["operations.md", "security.md"])
def test_every_proof_that_is_named_exists(name: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "operate" / name).read_text())

    assert len(named) > 15
    assert [
        f"{path}::{test}" for path, test in named if f"def {test}(" not in (ROOT / path).read_text()
    ] == []


def test_the_page_of_the_installation_names_every_webhook() -> None:
    manifest = (ROOT / "deploy" / "static" / "first-install" / "install.yaml").read_text()
    webhooks = set(re.findall(r"^- name: ([a-z.-]+)\.gpu-admission\.dev$", manifest, re.MULTILINE))
    page = (ROOT / "deploy" / "README.md").read_text()

    assert len(webhooks) > 10
    assert {name for name in webhooks if f"`{name}`" not in page} == set()


# ---- generated tables


def test_every_metric_is_documented() -> None:
    page = ROOT / "docs" / "operate" / "audit-log.md"
    check_or_write(page, generated(page.read_text(), "metrics", metrics_table()))
    assert page.read_text().count("| `gpu_admission_") > 40


def test_the_reasons_of_findings_are_documented() -> None:
    check_or_write(REASONS_PAGE, generated(REASONS_PAGE.read_text(), "reasons", reasons_table()))


def test_rules_without_fixes_are_documented_with_the_cause() -> None:
    check_or_write(REASONS_PAGE, generated(REASONS_PAGE.read_text(), "not-fixable", not_fixable_list()))


@pytest.mark.parametrize("folder", ["policies", "webhook"])
def test_the_page_of_a_folder_names_each_module(folder: str) -> None:
    page = ROOT / folder / "README.md"
    check_or_write(page, generated(page.read_text(), "modules", modules_table(ROOT / folder)))


def test_the_table_of_folders_names_each_folder() -> None:
    webhook = ROOT / "webhook"
    table = (webhook / "README.md").read_text().partition("## Folders\n")[2].partition("\n## ")[0]
    named = dict(re.findall(r"^\| `(\w+)/` \| (.+) \|$", table, re.MULTILINE))

    assert named.keys() == folders(webhook)
    assert {tool for tool in folders(webhook / "tools") if f"`{tool}` (" not in named["tools"]} == set()


def folders(of: Path) -> set[str]:
    return {path.parent.name for path in of.glob("*/__init__.py")}


def test_the_api_reference_is_that_of_the_crds() -> None:
    folder, pages = ROOT / "docs" / "reference" / "api", api_reference()

    assert {page.name for page in folder.iterdir()} == pages.keys()
    for name, text in pages.items():
        check_or_write(folder / name, text)


# ---- outputs


@each_page
def test_the_output_of_a_command_is_what_it_prints(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = page.read_text()
    check_or_write(
        page, BLOCK.sub(lambda found: found[0] if found["language"] != "console" else rerun(found), text)
    )


def rerun(block: re.Match[str]) -> str:
    """Return a console block with what its command prints now."""
    command = block["text"].splitlines()[0]
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "gpu-admission", command
    printed = CliRunner(env={"COLUMNS": "80"}).invoke(main, arguments).stdout.rstrip()
    return f"{block['before'] or ''}```console\n{command}\n{printed}\n```"
