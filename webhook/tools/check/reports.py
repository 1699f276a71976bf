"""Findings of `check` for programs: a SARIF log, JSON, and a JUnit report.

Code scanning shows SARIF (2.1.0, errata 01, OASIS) beside the lines of a pull request. JUnit has no standard: the report keeps to
junit-10.xsd of Jenkins' xUnit plugin, which GitLab and others read, too.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from policies.finding import Edits, as_plain_data, choices_text
from policies.pods.field_paths import field_path, path_parts
from policies.printable import printable_xml
from policies.registry import RULES_BY_REASON
from webhook.configuration.documents import LocatedProblem
from webhook.evaluation.decision import Outcome, Violation
from webhook.tools.check.fixing import fixed_document, object_edits
from webhook.tools.check.manifests import Manifest, Manifests
from webhook.tools.check.run import ManifestResult, ManifestVerdict
from webhook.tools.check.sources import RENDER_FIRST

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
"""The id of the schema; consumers such as GitHub want it in `$schema`."""

LEVELS = {Outcome.DENIED: "error", Outcome.WARNED: "warning", Outcome.AUDITED: "note", None: "note"}
"""By the outcome of a remark."""

MANIFEST = "manifest"
"""The id of results that are not findings of a rule."""

_RULES = {
    **{reason.name: reason.meaning for reason in RULES_BY_REASON},
    MANIFEST: "manifests cannot be read as the API server reads them",
}


def sarif_log(results: Sequence[ManifestResult], manifests: Manifests, version: str) -> dict[str, Any]:
    """Return the log: one run, and one result for each finding, problem and placeholder."""
    driver = {
        "name": "gpu-admission",
        "version": version,
        "rules": [{"id": rule_id, "shortDescription": {"text": text}} for rule_id, text in _RULES.items()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_sarif_invocation(manifests)],
        "results": [*_sarif_of_objects(results), *_sarif_of_input(manifests)],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_of_objects(results: Sequence[ManifestResult]) -> Iterator[dict[str, Any]]:
    for result in results:
        manifest = result.manifest
        for violation in result.findings():
            finding = violation.finding
            location = _sarif_location_in(manifest, finding.path)
            sarif_result = _sarif_result(
                finding.reason.name, LEVELS[violation.outcome], finding.sentence(), location
            )
            fixes = list(_sarif_fixes(manifest, violation))
            yield {
                **sarif_result,
                "properties": {"rule": finding.rule},
                **({"fixes": fixes} if fixes else {}),
            }
        for outcome, path, sentence in result.remarks():
            if outcome is None:
                yield _sarif_result(MANIFEST, LEVELS[None], sentence, _sarif_location_in(manifest, path))


def _sarif_fixes(manifest: Manifest, violation: Violation) -> Iterator[dict[str, Any]]:
    """Yield each choice as a fix (section 3.55): one replacement from the first character that differs to the last."""
    first, last = manifest.document.span
    before = manifest.text[first:last]
    location = _sarif_location(manifest.file, 0)["physicalLocation"]["artifactLocation"]
    can_fix = not (manifest.is_stdin or violation.finding.is_example)
    for edits in violation.finding.choices if can_fix else ():
        after = fixed_document(manifest, edits)
        if after is None or after == before:
            continue
        start = _common_start(before, after)
        end = _common_start(before[start:][::-1], after[start:][::-1])  # equal characters at the end
        replacement = {
            "deletedRegion": _sarif_region(manifest.text, first + start, last - end),
            "insertedContent": {"text": after[start : len(after) - end]},
        }
        change = {"artifactLocation": location, "replacements": [replacement]}
        yield {"description": {"text": choices_text([edits])}, "artifactChanges": [change]}


def _common_start(first: str, second: str) -> int:
    """Return the number of equal characters at the start of both."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


def _sarif_region(text: str, start: int, end: int) -> dict[str, int]:
    (line, column), (end_line, end_column) = (
        (text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)) for at in (start, end)
    )
    return {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}


def _sarif_invocation(manifests: Manifests) -> dict[str, Any]:
    notes = [{"level": "note", "message": {"text": note}} for note in manifests.notes]
    return {"executionSuccessful": not manifests.problems} | (
        {"toolExecutionNotifications": notes} if notes else {}
    )


def _sarif_of_input(manifests: Manifests) -> Iterator[dict[str, Any]]:
    for level, problems in (("error", manifests.problems), ("warning", manifests.warnings)):
        for problem in problems:
            message = ": ".join(filter(None, (problem.path, problem.message)))
            yield _sarif_result(
                MANIFEST, level, message, _sarif_location(problem.file, problem.line, problem.column)
            )
    for template in manifests.to_render:
        message = f"a {template.renderer.noun} {RENDER_FIRST}: {template.renderer.remedy}"
        yield _sarif_result(MANIFEST, "note", message, _sarif_location(template.file, template.line))


def _sarif_result(rule_id: str, level: str, text: str, location: dict[str, Any]) -> dict[str, Any]:
    return {"ruleId": rule_id, "level": level, "message": {"text": text}, "locations": [location]}


def _sarif_location_in(manifest: Manifest, path: str) -> dict[str, Any]:
    line, column = manifest.position_of(path_parts(path))
    name = " ".join(filter(None, (manifest.title, path)))
    return {
        **_sarif_location(manifest.file, line, column),
        "logicalLocations": [{"fullyQualifiedName": name}],
    }


def _sarif_location(file: str, line: int, column: int = 0) -> dict[str, Any]:
    """Return a location; without a line it is the whole file."""
    path = Path(file)
    uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
    region = {"startLine": line, **({"startColumn": column} if column else {})}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, **({"region": region} if line else {})}}


def json_document(results: Sequence[ManifestResult], manifests: Manifests) -> dict[str, Any]:
    """Return the content of `-o json`, which docs/tenants/check.md describes."""
    counts = Counter(result.verdict for result in results)
    located = ("file", "line", "column", "path", "message")
    return {
        "objects": [_object_document(result) for result in results],
        "problems": [_fields(problem, *located) for problem in manifests.problems],
        "warnings": [_fields(warning, *located) for warning in manifests.warnings],
        "toRender": [
            {"file": each.file, "line": each.line, "what": each.renderer.noun, "remedy": each.renderer.remedy}
            for each in manifests.to_render
        ],
        "notes": manifests.notes,
        "summary": {
            "objects": len(results),
            **{verdict.value: counts[verdict] for verdict in ManifestVerdict},
            "warnings": sum(result.number_of_warnings for result in results),
            "problems": len(manifests.problems),
            "otherDocuments": manifests.other_documents,
            "skippedKinds": skipped_kinds(results),
        },
    }


def _fields(source: object, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _object_document(result: ManifestResult) -> dict[str, Any]:
    manifest = result.manifest
    return {
        "file": manifest.file,
        "line": manifest.line_of(),
        "apiVersion": manifest.api_version,
        **_fields(manifest, "kind", "namespace", "name"),
        "verdict": result.verdict,
        "unknown": result.unknown,
        "findings": [_finding_document(manifest, warning) for warning in result.warnings],
        "placeholders": [
            {"path": placeholder.path, **_position(manifest, placeholder.path), "value": placeholder.value}
            for placeholder in result.placeholders
        ],
        "pods": [
            {
                "path": pod.place.path,
                "count": pod.place.count.running,
                "policy": _fields(pod.policy, "name", "version", "why", "templates"),
                "exemption": pod.exemption and _fields(pod.exemption, "reason", "until"),
                "findings": [_finding_document(manifest, violation) for violation in pod.violations],
                "changes": [_fields(change, "rule", "what", "operations") for change in pod.changes],
            }
            for pod in result.pods
        ],
    }


def _finding_document(manifest: Manifest, violation: Violation) -> dict[str, Any]:
    finding = violation.finding
    return {
        "outcome": violation.outcome,
        **_fields(finding, "rule", "path"),
        **_position(manifest, finding.path),
        **_fields(finding, "container", "value", "message"),
        "reason": finding.reason.name,
        "fix": _edits_document(manifest, finding.fix),
        "choices": []
        if finding.is_example
        else [_edits_document(manifest, edits) for edits in finding.choices],
        "remedy": finding.advice,
        "ask": finding.escalation,
    }


def _edits_document(manifest: Manifest, edits: Edits) -> list[dict[str, Any]]:
    in_object = object_edits(manifest, edits)
    return [{"path": field_path(path), "value": as_plain_data(value)} for path, value in in_object]


def _position(manifest: Manifest, path: str) -> dict[str, int]:
    return dict(zip(("line", "column"), manifest.position_of(path_parts(path)), strict=True))


def skipped_kinds(results: Sequence[ManifestResult]) -> dict[str, int]:
    """Return the number of objects by kind, as kubectl names kinds (`Job.batch.volcano.sh`)."""
    skipped = (result.manifest for result in results if result.verdict is ManifestVerdict.SKIPPED)
    kinds = Counter(".".join(filter(None, (manifest.kind, manifest.group))) for manifest in skipped)
    return dict(sorted(kinds.items()))


_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold (production 2, Char)."""

_JUNIT_SKIPPED = {ManifestVerdict.SKIPPED: "not known to have pods", ManifestVerdict.UNKNOWN: RENDER_FIRST}


def junit_report(results: Sequence[ManifestResult], manifests: Manifests) -> str:
    suites: dict[str, list[ET.Element]] = {}

    def case(file: str, name: str) -> ET.Element:
        added = ET.Element("testcase", name=_xml_text(name), classname=_xml_text(file))
        suites.setdefault(file, []).append(added)
        return added

    for result in results:
        _describe_object(case(result.manifest.file, result.manifest.title), result)
    for problem in manifests.problems:
        _add_outcome(case(problem.file, _junit_case_name(problem)), "error", str(problem), "problem")
    for warning in manifests.warnings:
        ET.SubElement(case(warning.file, _junit_case_name(warning)), "system-out").text = _xml_text(
            str(warning)
        )
    for template in manifests.to_render:
        unread = case(template.file, template.renderer.noun)
        ET.SubElement(unread, "skipped", message=f"{RENDER_FIRST}: {template.renderer.remedy}")
    root = ET.Element("testsuites", name="gpu-admission")
    root.extend(_junit_suite(file, cases) for file, cases in suites.items())
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return printable_xml(ET.tostring(root, encoding="unicode", xml_declaration=True))


def _junit_suite(file: str, cases: Sequence[ET.Element]) -> ET.Element:
    suite = ET.Element("testsuite", name=_xml_text(file), tests=str(len(cases)))
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(tag) is not None for case in cases)))
    suite.extend(cases)
    return suite


def _describe_object(case: ET.Element, result: ManifestResult) -> None:
    denied: list[str] = []
    messages: list[str] = []
    for outcome, path, sentence in result.remarks():
        line, column = result.manifest.position_of(path_parts(path))
        position = f"{result.manifest.file}:{line}:{column}: "
        if outcome is Outcome.DENIED:
            denied.append(f"{position}{sentence}")
        else:
            messages.append(f"{position}{outcome.value}: {sentence}" if outcome else f"{position}{sentence}")
    if denied:
        _add_outcome(case, "failure", "\n".join(denied), "denied")
    elif result.verdict in _JUNIT_SKIPPED:
        ET.SubElement(case, "skipped", message=result.unknown or _JUNIT_SKIPPED[result.verdict])
    if messages:
        ET.SubElement(case, "system-out").text = _xml_text("\n".join(messages))


def _add_outcome(case: ET.Element, tag: str, text: str, type_name: str) -> None:
    """Add a `failure` or `error`: the first line as the message, all of it as the text."""
    ET.SubElement(case, tag, type=type_name, message=_xml_text(text.split("\n", 1)[0])).text = _xml_text(text)


def _junit_case_name(problem: LocatedProblem) -> str:
    return f"line {problem.line}" if problem.line else "file"


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
