"""docs/workloads.md lists every kind that is looked at, and where its pods are."""

import re
from pathlib import Path

from webhook.workloads.kinds import WORKLOADS, ContainerResources, Spec, Template, Whole

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"
ROW = re.compile(
    r"^\| (?P<group>[a-z0-9.-]+) \| (?P<kind>[A-Z]\w+) \| [^|]+ \| (?P<paths>[^|]+) \|$", re.MULTILINE
)
PATH = re.compile(r"`(?P<path>[^`]+)`(?: \((?P<form>pod spec|resources|whole object))?")
FORMS = {Template: None, Spec: "pod spec", ContainerResources: "resources", Whole: "whole object"}


def test_the_table_is_what_the_code_knows() -> None:
    reported = {
        ("" if row["group"] == "core" else row["group"], row["kind"]): [
            (path["path"], path["form"]) for path in PATH.finditer(row["paths"])
        ]
        for row in ROW.finditer(PAGE.read_text())
    }

    assert reported == {
        kind: [(form.path, FORMS[type(form)]) for form in forms] for kind, forms in WORKLOADS.items()
    }
