"""docs/workloads.md lists the built-in kinds, where their pods are and how many; UPDATE_DOCS=1 writes the table."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import PodForm, PodPath, WorkloadKind

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"
TABLE = re.compile(r"(?<=<!-- workload-kinds -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
HEADER = "| API group | kind | resource | its pods are at | pods at one time |\n|---|---|---|---|---|\n"


def workload_kinds() -> Iterator[str]:
    for kind in load_directory(None).workload_kinds.values():
        if kind.pods:
            resource = "(cluster-scoped: only `check`)" if kind.cluster_scoped else kind.plural
            paths = ", ".join(map(shown, kind.pods))
            group = kind.group or "core"
            yield f"| {group} | {kind.kind} | {resource} | {paths} | {numbers(kind)} |\n"


def shown(form: PodPath) -> str:
    described = ", ".join(form.containers)
    if form.form is PodForm.TEMPLATE:
        return f"`{form.path}`"
    return f"`{form.path}` ({form.form.value}{': ' * bool(described)}{described})"


def numbers(kind: WorkloadKind) -> str:
    if kind.templates_only:
        return "none"
    return "; ".join(dict.fromkeys(factors(form.replicas) for form in kind.pods))


def factors(texts: tuple[str, ...]) -> str:
    return " × ".join(text if text in {"1", "unknown"} else f"`{text}`" for text in texts) or "1"


def test_the_table_is_what_the_code_knows() -> None:
    text = PAGE.read_text()
    written = TABLE.sub(lambda _: HEADER + "".join(workload_kinds()), text)

    if os.environ.get("UPDATE_DOCS") and written != text:
        PAGE.write_text(written)
    assert PAGE.read_text() == written, "UPDATE_DOCS=1 writes the table"
