"""Findings of `check` as a SARIF 2.1.0 log, which code scanning shows beside the lines of a pull request.

OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", errata 01.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from policies.pods.field_paths import path_parts
from policies.registry import RULES
from webhook.serving.engine import Outcome
from webhook.tools.check.manifests import Manifest, Manifests
from webhook.tools.check.offline import MANIFEST, ManifestResult
from webhook.tools.check.rendering import FIRST

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
"""The id of the schema; consumers such as GitHub want it in `$schema`."""

LEVELS = {Outcome.DENIED: "error", Outcome.WARNED: "warning", Outcome.AUDITED: "note", None: "note"}
"""By the outcome of a remark."""

_RULES = {
    **{rule.id: rule.summary for rule in RULES},
    MANIFEST: "manifests can be read as the API server reads them",
}


def sarif_log(results: Sequence[ManifestResult], found: Manifests, version: str) -> dict[str, Any]:
    """Return the log: one run, and one result for each finding, problem and placeholder."""
    driver = {
        "name": "gpu-admission",
        "version": version,
        "rules": [{"id": rule_id, "shortDescription": {"text": text}} for rule_id, text in _RULES.items()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": not found.problems}],
        "results": [*_of_objects(results), *_of_input(found)],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _of_objects(results: Sequence[ManifestResult]) -> Iterator[dict[str, Any]]:
    for result in results:
        for rule_id, outcome, path, sentence in result.remarks():
            yield _result(rule_id, LEVELS[outcome], sentence, _at(result.manifest, path))


def _of_input(found: Manifests) -> Iterator[dict[str, Any]]:
    for level, problems in (("error", found.problems), ("warning", found.warnings)):
        for problem in problems:
            message = ": ".join(filter(None, (problem.path, problem.message)))
            yield _result(MANIFEST, level, message, _location(problem.file, problem.line, problem.column))
    for each in found.to_render:
        message = f"a {each.renderer.noun} {FIRST}: {each.renderer.remedy}"
        yield _result(MANIFEST, "note", message, _location(each.file, each.line))


def _result(rule_id: str, level: str, text: str, location: dict[str, Any]) -> dict[str, Any]:
    return {
        "ruleId": rule_id,
        "level": level,
        "message": {"text": text},
        "locations": [location],
    }


def _at(manifest: Manifest, path: str) -> dict[str, Any]:
    line, column = manifest.position_of(path_parts(path))
    name = " ".join(filter(None, (manifest.title, path)))
    return {**_location(manifest.file, line, column), "logicalLocations": [{"fullyQualifiedName": name}]}


def _location(file: str, line: int, column: int = 0) -> dict[str, Any]:
    """Return a location; without a line it is the whole file."""
    path = Path(file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    region = {"startLine": line, **({"startColumn": column} if column else {})}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, **({"region": region} if line else {})}}
