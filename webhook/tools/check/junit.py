"""Verdicts of `check` as a JUnit report: a suite for each file, a case for each object, as CI systems read it.

There is no standard; the report keeps to junit-10.xsd of Jenkins' xUnit plugin, which GitLab and others read, too.
"""

import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from policies.pods.field_paths import path_parts
from policies.printable import printable_xml
from webhook.configuration.documents import LocatedProblem
from webhook.serving.engine import Outcome
from webhook.tools.check.manifests import Manifests
from webhook.tools.check.offline import ManifestResult, ManifestVerdict
from webhook.tools.check.rendering import FIRST

_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold (production 2, Char)."""

_SKIPPED = {ManifestVerdict.SKIPPED: "not known to have pods", ManifestVerdict.UNKNOWN: FIRST}


def junit_report(results: Sequence[ManifestResult], found: Manifests) -> str:
    suites: dict[str, list[ET.Element]] = {}

    def case(file: str, name: str) -> ET.Element:
        added = ET.Element("testcase", name=_text(name), classname=_text(file))
        suites.setdefault(file, []).append(added)
        return added

    for result in results:
        _describe(case(result.manifest.file, result.manifest.title), result)
    for problem in found.problems:
        _say(case(problem.file, _place(problem)), "error", str(problem), "problem")
    for warning in found.warnings:
        ET.SubElement(case(warning.file, _place(warning)), "system-out").text = _text(str(warning))
    for each in found.to_render:
        unread = case(each.file, each.renderer.noun)
        ET.SubElement(unread, "skipped", message=f"{FIRST}: {each.renderer.remedy}")
    root = ET.Element("testsuites", name="gpu-admission")
    root.extend(_suite(file, cases) for file, cases in suites.items())
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return printable_xml(ET.tostring(root, encoding="unicode", xml_declaration=True))


def _suite(file: str, cases: Sequence[ET.Element]) -> ET.Element:
    suite = ET.Element("testsuite", name=_text(file), tests=str(len(cases)))
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(tag) is not None for case in cases)))
    suite.extend(cases)
    return suite


def _describe(case: ET.Element, result: ManifestResult) -> None:
    denied: list[str] = []
    others: list[str] = []
    for _, outcome, path, sentence in result.remarks():
        line, column = result.manifest.position_of(path_parts(path))
        place = f"{result.manifest.file}:{line}:{column}: "
        if outcome is Outcome.DENIED:
            denied.append(f"{place}{sentence}")
        else:
            others.append(f"{place}{outcome.value}: {sentence}" if outcome else f"{place}{sentence}")
    if denied:
        _say(case, "failure", "\n".join(denied), "denied")
    elif result.verdict in _SKIPPED:
        ET.SubElement(case, "skipped", message=_SKIPPED[result.verdict])
    if others:
        ET.SubElement(case, "system-out").text = _text("\n".join(others))


def _say(case: ET.Element, tag: str, text: str, sort: str) -> None:
    """Add why the case failed: the first line as the message, all of it as the text."""
    ET.SubElement(case, tag, type=sort, message=_text(text.split("\n", 1)[0])).text = _text(text)


def _place(problem: LocatedProblem) -> str:
    return f"line {problem.line}" if problem.line else "file"


def _text(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
