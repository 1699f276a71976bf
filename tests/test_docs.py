"""The documentation says what the code does: documents load, options exist, quoted messages and outputs are real.

UPDATE_DOCS=1 writes the outputs of commands in the documentation anew.
"""

import ast
import json
import os
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from policies.pods import annotations
from policies.registry import RULES, RULES_BY_ID
from policies.rule import Rule
from tests.builders import JSON, gpu_container, pod, uid
from tests.generated_docs import api_reference, metrics_table, modules_table
from webhook.cluster.access import load_access
from webhook.cluster.api import ApiClient
from webhook.commands import main
from webhook.commands.check import check
from webhook.commands.rules import as_yaml, default_mode, options
from webhook.configuration.cluster_source import ClusterSource
from webhook.configuration.documents import API_VERSION
from webhook.configuration.loader import ConfigurationError, load_directory
from webhook.configuration.source import ConfigurationCollector
from webhook.controller.metrics import ControllerMetrics, WatchCollector
from webhook.quota.batcher import ReservationBatcher
from webhook.quota.enforcer import QuotaEnforcer
from webhook.quota.memory_store import MemoryStore
from webhook.quota.metrics import LedgerCollector, QuotaMetrics
from webhook.server.dispatcher import EdgeMetrics
from webhook.serving.admission import Admission
from webhook.serving.audit import LONGEST_LINE, AuditLog, Recorder
from webhook.serving.deadline import deadline_of
from webhook.serving.engine import Engine
from webhook.serving.handling import ClusterState
from webhook.serving.metrics import Metrics
from webhook.serving.review import AdmissionRequest, decode_request

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").glob("*.md"),
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / room / "README.md" for room in ("deploy", "deploy/chart", "policies", "webhook")),
    ]
)
RULES_PAGE = ROOT / "docs" / "rules.md"
EXAMPLES = sorted((ROOT / "examples").glob("policies*"))

BLOCK = re.compile(
    r"(?P<before>^[^\n]*\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
REFUSED = "<!-- refused -->\n"
LINK = re.compile(r"\[[^\]]+\]\((?P<target>[^)\s]+)\)")
MAKE = re.compile(r"`make ([a-z-]+)|^ +make ([a-z-]+)", re.MULTILINE)
OPTION_ROW = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<default>.*?)` \|", re.MULTILINE)

each_page = pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
each_rule = pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.id) for rule in RULES])


def blocks(page: Path, language: str) -> Iterator[re.Match[str]]:
    return (found for found in BLOCK.finditer(page.read_text()) if found["language"] == language)


def section(rule: Rule) -> str:
    parts = re.split(r"^## (.+)$", RULES_PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[rule.id]


# ---- our documents


def our_documents(page: Path) -> Iterator[tuple[str, bool]]:
    """Yield each YAML block that is one of our documents, and whether the page says that it is refused."""
    for block in blocks(page, "yaml"):
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

    assert {binding.rule.id for binding in effective.bindings} == set(RULES_BY_ID)
    assert {binding.options.mode.value for binding in effective.bindings} == {"audit"}


# ---- docs/rules.md


def test_the_page_of_rules_has_each_rule_and_no_other() -> None:
    headings = re.findall(r"^## (.+)$", RULES_PAGE.read_text(), re.MULTILINE)

    assert headings == ["Updates of pods", "Limits", *(rule.id for rule in RULES)]
    for rule in RULES:
        assert f"| [{rule.id}](#{rule.id}) | {default_mode(rule)} |" in RULES_PAGE.read_text()


@each_rule
def test_the_page_of_rules_has_each_option_with_its_default(rule: Rule) -> None:
    table = section(rule).split("| option | default | meaning |")[1].split("\n\n")[0]
    documented = {row["name"]: row["default"] for row in OPTION_ROW.finditer(table)}

    assert documented == {option["name"]: told_or_below(option["default"]) for option in options(rule)}
    for word in words_in([option["default"] for option in options(rule)]):
        assert f"`{word}`" in section(rule)


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


# ---- quoted messages

QUOTED = re.compile(r'^- "(?P<rule>[^"]+)"|`(?P<code>[^`]+)`', re.MULTILINE)
WORD = re.compile(r"[a-z]+(?=[,;:.)]*$)")
COMMAND = re.compile(r"(kubectl|gpu-admission|make|helm|kubeadm|kustomize) (?!takes|was)|[.{]|PATH ")
FORMS = {
    'field = "value" (what that means): what to write; why; or ask whom for what [rule]',
    "ask the platform team to …",
    "no-op as we are",
    "maximum nvidia.com/gpu usage per Container is …",
    "nil pointer evaluating",
    "unable to get local issuer certificate",
}
"""Forms of messages, names of measurements, and what other programs write."""


def quotes(page: Path) -> Iterator[str]:
    """Yield the sentences in code type, in text blocks, and in the lists of rules.md. Figures are of performance.md."""
    text = page.read_text()
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = [" ".join(match[match.lastgroup or 0].split()) for match in QUOTED.finditer(prose)]
    if page.parent.name == "docs" and page.name != "performance.md":
        found += [" ".join(block["text"].split()) for block in blocks(page, "text")]
    yield from (
        quote
        for quote in found
        if quote not in FORMS
        and not COMMAND.match(quote)
        and sum(WORD.match(word) is not None for word in quote.split()) > 2
    )


@pytest.fixture(scope="module")
def texts() -> str:
    """Every text of the source, a line each; and what API servers say, which stands in the tests that have it from a real one."""
    outages = [ROOT / "tests" / "cluster" / "outage", ROOT / "tests" / "cluster" / "availability"]
    callers = [ROOT / "tests" / "cluster" / "test_callers.py"]
    sources = [path for room in ("policies", "webhook", "certs") for path in (ROOT / room).rglob("*.py")]
    sources += [*callers, *(path for room in outages for path in room.rglob("*.py"))]
    written = "".join(f"\n {' '.join(text.split())} \n" for path in sources for text in texts_in(path))
    return re.sub(r" ?[(),;:.]+(?=\s)|(?<=\s)\(", "", written)


def texts_in(path: Path) -> Iterator[str]:
    """Yield the texts of a module but its docstrings."""
    tree = list(ast.walk(ast.parse(path.read_text())))
    docstrings = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    for node in tree:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def unwritten(quote: str, texts: str) -> list[str]:
    """Return the runs of words in a quote that no text has; words with digits, capitals or signs are values."""
    runs = [list[str]()]
    for word in quote.replace("…", " … ").split():
        if word.startswith("(") or not WORD.match(word):
            runs.append([])
        if WORD.match(word.lstrip("(")):
            runs[-1].append(word.strip("(),;:."))
        if word.endswith((")", ";", ":")):
            runs.append([])
    return [
        words
        for run in runs
        if len(run) > 1 and (words := " ".join(run)) not in FORMS and not is_tiled(run, texts)
    ]


def is_tiled(run: list[str], texts: str) -> bool:
    """Whether the words are texts one after the other: at least three words of a text, its first or last two, or all of it."""
    ends = {0}
    for end in range(1, len(run) + 1):
        for start in sorted(ends):
            tile, n = f" {' '.join(run[start:end])} ", end - start
            is_whole = f"\n{tile}\n" in texts
            if (
                is_whole
                or (n == 2 and (f"\n{tile}" in texts or f"{tile}\n" in texts))
                or (n > 2 and tile in texts)
            ):
                ends.add(end)
                break
    return len(run) in ends


@each_page
def test_a_quoted_message_is_one_that_we_write(page: Path, texts: str) -> None:
    assert {quote: missing for quote in quotes(page) if (missing := unwritten(quote, texts))} == {}


@pytest.mark.parametrize(
    ("quote", "missing"),
    [
        pytest.param(
            "a pod needs 16 GPUs, which can never fit: the GPUQuota of a grants 8 in all", [], id="ours"
        ),
        pytest.param("must be counted again", ["must be counted again"], id="an-old-one"),
        pytest.param("a pod needs 16 GPUs: it can never start", ["it can never start"], id="an-old-end"),
    ],
)
def test_the_search_for_quoted_messages(quote: str, missing: list[str], texts: str) -> None:
    assert unwritten(quote, texts) == missing


# ---- everything else that is named


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(value, id=name)
        for name, value in vars(annotations).items()
        if isinstance(value, str) and value.startswith(annotations.DOMAIN) and value != annotations.DOMAIN
    ],
)
def test_an_annotation_is_documented(key: str) -> None:
    assert f"`{key}`" in (ROOT / "docs" / "annotations.md").read_text()


@each_page
def test_no_unknown_annotation_is_named(page: Path) -> None:
    known = {value for value in vars(annotations).values() if isinstance(value, str)}
    named = re.findall(r"gpu-admission\.dev/[a-z][a-z-]*", page.read_text())

    assert set(named) - known - {API_VERSION.removesuffix("1alpha1")} == set()


@each_page
def test_a_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {one or other for one, other in MAKE.findall(page.read_text())}

    assert named - targets == set()


@each_page
def test_a_link_leads_somewhere(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        path, _, anchor = link["target"].partition("#")
        if path.startswith(("https:", "http:")):
            continue
        target = (page.parent / path) if path else page
        assert target.exists(), link["target"]
        if anchor:
            assert anchor in anchors(target), link["target"]


def anchors(page: Path) -> set[str]:
    """Return the anchors that the headings of a page get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_make_target_is_documented() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    page = (ROOT / "docs" / "development.md").read_text()

    assert [target for target in targets if f"| `make {target}` |" not in page and target != "help"] == []


def test_the_options_of_check_are_documented() -> None:
    page = (ROOT / "docs" / "check.md").read_text()
    options = (parameter for parameter in check.params if isinstance(parameter, click.Option))
    known = {name for option in options for name in option.opts}
    documented = {
        name for row in re.findall(r"^\| (`-.*?) \|", page, re.MULTILINE) for name in row.split(", ")
    }

    assert documented == {f"`{name}`" for name in known}


def test_what_check_prints_as_json_is_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "check.md").read_text()
    files = ["examples/workloads/pod-fractional.yaml", "examples/workloads/training-job.yaml", "nowhere.yaml"]
    sources = [argument for file in files for argument in ("-f", file)]
    printed = CliRunner().invoke(main, ["check", *sources, "-o", "json"]).stdout

    assert {name for name in names_in(json.loads(printed)) if f"`{name}`" not in page} == set()


def names_in(document: Any) -> Iterator[str]:
    """Yield the keys of all objects, but for those of a patch operation, which RFC 6902 and the pod define."""
    if isinstance(document, dict):
        yield from (
            f"{key}[]" if isinstance(value, list) and key != "operations" else key
            for key, value in document.items()
        )
        for key, value in document.items():
            yield from names_in(value) if key != "operations" else ()
    elif isinstance(document, list):
        for item in document:
            yield from names_in(item)


def first_column(page: Path, heading: str) -> set[str]:
    """Return the words in code type of the first columns of the tables below a heading."""
    text = page.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return {
        word
        for cell in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for word in re.findall("`(.+?)`", cell)
    }


def test_every_field_of_the_audit_log_is_documented(tmp_path: Path) -> None:
    log, lost = tmp_path / "audit.jsonl", Counter[str]()
    audit = AuditLog.to(str(log), lambda number: lost.update(lines=number))
    configuration = load_directory(ROOT / "examples" / "policies")
    quotas = QuotaMetrics(CollectorRegistry())
    shutil.copytree(ROOT / "examples" / "quotas", tmp_path / "config")
    granted = load_directory(tmp_path / "config")
    store = MemoryStore(lambda: granted)
    recorder = Recorder(Metrics(CollectorRegistry()), audit, replica="webhook-1")
    cluster = ClusterState(
        claims=lambda _deadline: lambda _claim: frozenset({"gpu.nvidia.com"}),
        quota=QuotaEnforcer(ReservationBatcher(store, quotas), quotas),
    )
    admission = Admission(lambda: Engine(configuration), recorder, cluster)
    claimed = [{"name": "gpu", "resourceClaimName": "gpu"}]
    for namespace, count in (("team", "1"), ("team", "500m"), ("kube-system", "1")):
        admission.mutate(
            request(pod(gpu_container(count), resourceClaims=claimed), namespace), deadline_of(None)
        )
    owned = pod(gpu_container("1"), nodeSelector={"accelerator": "nvidia-l4"})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid("job"), "controller": True}
    owned["metadata"] |= {"uid": uid("pod"), "ownerReferences": [owner]}
    admission.validate(request(owned, "research"), deadline_of(None))
    audit.write({"operations": "x" * LONGEST_LINE})
    audit.stop()
    fields = {field for line in log.read_text().splitlines() for field in json.loads(line)}

    assert not lost
    assert first_column(ROOT / "docs" / "audit-log.md", "The audit log") == fields


def request(document: JSON, namespace: str) -> AdmissionRequest:
    fields = {
        "uid": uid("review"),
        "kind": {"version": "v1", "kind": "Pod"},
        "operation": "CREATE",
        "namespace": namespace,
        "object": document,
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields}
    return decode_request(msgspec.json.encode(review))


def nowhere(folder: Path) -> ApiClient:
    """Return a client of a cluster that is not there, for what asks nothing of it."""
    cluster = {"name": "none", "cluster": {"server": "https://127.0.0.1:9"}}
    context = {"name": "none", "context": {"cluster": "none", "user": "nobody"}}
    document = {"clusters": [cluster], "contexts": [context], "users": [{"name": "nobody", "user": {}}]}
    (folder / "kubeconfig").write_text(json.dumps({**document, "current-context": "none"}))
    return ApiClient(load_access(str(folder / "kubeconfig")))


NOT_EXPORTED = re.compile(r"(?<=<!-- rules -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)


def test_what_is_not_exported_is_what_the_registry_says() -> None:
    rows = [f"| {rule.id} | {rule.not_exported} |" for rule in RULES if rule.not_exported]
    table = "\n".join(["| rule | why not |", "|---|---|", *rows, ""])
    page = (ROOT / "docs" / "export.md").read_text()

    assert NOT_EXPORTED.sub(lambda _: table, page) == page, f"it must be:\n{table}"


METRICS = re.compile(r"(?<=<!-- metrics -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)


def test_every_metric_is_documented() -> None:
    """UPDATE_DOCS=1 writes the table from the definitions."""
    page = ROOT / "docs" / "audit-log.md"
    text = page.read_text()
    written = METRICS.sub(lambda _: metrics_table(), text)
    if os.environ.get("UPDATE_DOCS") and written != text:
        page.write_text(written)
        return

    assert text == written
    assert text.count("| `gpu_admission_") > 40


def test_the_table_of_metrics_has_what_the_processes_serve(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    EdgeMetrics(registry)
    registry.register(ConfigurationCollector(ClusterSource(nowhere(tmp_path), lambda _state: None)))
    QuotaMetrics(registry)
    registry.register(LedgerCollector(dict))
    ControllerMetrics(registry)
    registry.register(WatchCollector(dict))
    names = {f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in registry.collect()}

    assert names <= first_column(ROOT / "docs" / "audit-log.md", "Metrics")


# ---- docs/operations.md, docs/security.md


OPERATIONS = ROOT / "docs" / "operations.md"
SECURITY = ROOT / "docs" / "security.md"


@pytest.mark.parametrize("page", [OPERATIONS, SECURITY], ids=lambda page: page.name)
def test_every_proof_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())

    assert len(named) > 15
    assert [
        f"{path}::{test}" for path, test in named if f"def {test}(" not in (ROOT / path).read_text()
    ] == []


def test_every_message_is_one_that_we_write_or_have_seen() -> None:
    """What the API server says stands in the tests of outages, which have it from a real one."""
    rows = OPERATIONS.read_text().split("## Troubleshooting\n")[1].splitlines()
    cells = [line.split(" | ")[0] for line in rows if line.startswith("| ") and "`" in line]
    pieces = [piece for cell in cells for piece in re.findall("`(.+?)`", cell)]
    sources = [
        *(ROOT / "webhook").rglob("*.py"),
        *(ROOT / "tests" / "cluster" / "outage").glob("*.py"),
        ROOT / "tests" / "cluster" / "availability" / "test_idle_connections.py",
        ROOT / "tests" / "cluster" / "test_callers.py",
    ]
    written = "\n".join(path.read_text() for path in sources)

    assert len(pieces) > 15
    assert [piece for piece in pieces if piece not in written] == []


# ---- tables of modules

MODULES = re.compile(r"(?<=<!-- modules -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
"""The table that UPDATE_DOCS=1 writes from the modules' docstrings."""


@pytest.mark.parametrize("room", ["policies", "webhook"])
def test_the_page_of_a_room_names_each_module(room: str) -> None:
    page = ROOT / room / "README.md"
    text = page.read_text()
    written = MODULES.sub(lambda _: modules_table(ROOT / room), text)
    if os.environ.get("UPDATE_DOCS") and written != text:
        page.write_text(written)
        return

    assert text == written
    assert MODULES.search(text) is not None


def test_the_api_reference_is_that_of_the_crds() -> None:
    """UPDATE_DOCS=1 writes it."""
    page = ROOT / "docs" / "api.md"
    written = api_reference()
    if os.environ.get("UPDATE_DOCS"):
        page.write_text(written)
        return

    assert page.read_text() == written


# ---- outputs


@each_page
def test_the_output_of_a_command_is_what_it_prints(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = page.read_text()
    written = BLOCK.sub(lambda found: found[0] if found["language"] != "console" else rerun(found), text)
    if os.environ.get("UPDATE_DOCS") and written != text:
        page.write_text(written)
        return

    assert text == written


def rerun(block: re.Match[str]) -> str:
    """Return a console block with what its command prints now."""
    command = block["text"].splitlines()[0]
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "gpu-admission", command
    printed = CliRunner(env={"COLUMNS": "80"}).invoke(main, arguments).stdout.rstrip()
    return f"{block['before'] or ''}```console\n{command}\n{printed}\n```"


def test_yaml_blocks_are_yaml() -> None:
    for page in PAGES:
        for block in blocks(page, "yaml"):
            list(yaml.safe_load_all(block["text"]))
