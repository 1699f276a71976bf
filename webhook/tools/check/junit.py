"""Verdicts of `check` as a JUnit report: a suite for each file, a case for each object, as CI systems read it.

There is no standard; the report keeps to junit-10.xsd of Jenkins' xUnit plugin, which GitLab and others read, too.
"""

import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from policies.pods.field_paths import path_parts
from policies.printable import printable_xml
from webhook.configuration.documents import LocatedProblem
from webhook.serving.engine import Outcome, Violation
from webhook.tools.check.manifests import Manifests
from webhook.tools.check.offline import ManifestResult, ManifestVerdict
from webhook.tools.check.rendering import FIRST

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold (production 2, Char)."""

_SKIPPED = {
    ManifestVerdict.SKIPPED: "not known to have pods",
    ManifestVerdict.UNKNOWN: FIRST,
}


def junit_report(results: Sequence[ManifestResult], found: Manifests) -> str:
    """Return the report as XML."""
    suites: dict[str, list[ET.Element]] = {}
    for result in results:
        suites.setdefault(result.manifest.file, []).append(_case(result))
    for problem in found.problems:
        case = _named(problem.file, _place(problem))
        _say(case, "error", str(problem), "problem")
        suites.setdefault(problem.file, []).append(case)
    for warning in found.warnings:
        case = _named(warning.file, _place(warning))
        ET.SubElement(case, "system-out").text = _text(str(warning))
        suites.setdefault(warning.file, []).append(case)
    for each in found.to_render:
        case = _named(each.file, each.renderer.noun)
        ET.SubElement(case, "skipped", message=f"{FIRST}: {each.renderer.remedy}")
        suites.setdefault(each.file, []).append(case)
    root = ET.Element("testsuites", name="gpu-admission")
    root.extend(_suite(file, cases) for file, cases in suites.items())
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return printable_xml(ET.tostring(root, encoding="unicode", xml_declaration=True))


def _suite(file: str, cases: Sequence[ET.Element]) -> ET.Element:
    def number(tag: str) -> str:
        return str(sum(case.find(tag) is not None for case in cases))

    suite = ET.Element("testsuite", name=_text(file), tests=str(len(cases)))
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, number(tag))
    suite.extend(cases)
    return suite


def _case(result: ManifestResult) -> ET.Element:
    case = _named(result.manifest.file, result.manifest.title)
    denied: list[str] = []
    others: list[str] = []
    for found in result.findings():
        (denied if found.outcome is Outcome.DENIED else others).append(_line(result, found))
    if denied:
        _say(case, "failure", "\n".join(denied), "denied")
    elif result.verdict in _SKIPPED:
        ET.SubElement(case, "skipped", message=_SKIPPED[result.verdict])
    others += _placeholders(result)
    if others:
        ET.SubElement(case, "system-out").text = _text("\n".join(others))
    return case


def _line(result: ManifestResult, found: Violation) -> str:
    line, column = result.manifest.position_of(path_parts(found.finding.path))
    remark = "" if found.outcome is Outcome.DENIED else f"{found.outcome.value}: "
    return f"{result.manifest.file}:{line}:{column}: {remark}{found.finding.sentence()}"


def _placeholders(result: ManifestResult) -> Iterator[str]:
    for placeholder in result.placeholders:
        line, column = result.manifest.position_of(path_parts(placeholder.path))
        yield f"{result.manifest.file}:{line}:{column}: {placeholder.sentence()}"


def _named(file: str, name: str) -> ET.Element:
    return ET.Element("testcase", name=_text(name), classname=_text(file))


def _say(case: ET.Element, tag: str, text: str, sort: str) -> None:
    """Add why the case failed: the first line as the message, all of it as the text."""
    ET.SubElement(case, tag, type=sort, message=_text(text.split("\n", 1)[0])).text = _text(text)


def _place(problem: LocatedProblem) -> str:
    return f"line {problem.line}" if problem.line else "file"


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
