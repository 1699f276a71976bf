"""`check -o sarif` and `check -o junit`: what they say, and that it is valid."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from policies.registry import RULES_BY_REASON
from tests.corpus import CORPUS
from tests.webhook.commands.checking import GPU_POD
from tests.webhook.commands.sarif import report, sarif
from webhook.commands import main


def pod(name: str, count: str) -> str:
    return GPU_POD.replace("name: train", f"name: {name}").replace("COUNT", count)


WARNED = pod("warned", "1") + "    env: [{name: CUDA_VISIBLE_DEVICES, value: all}]\n"
AUDITED = """\
apiVersion: v1
kind: Pod
metadata: {name: audited}
spec:
  containers:
  - name: main
    env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]
"""
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: front}\n"
MANIFESTS = {
    "a dir/pods.yaml": "---\n".join(
        [pod("half", "500m"), WARNED, pod("open", "$GPUS"), pod("twice", "1, nvidia.com/gpu: 2"), SERVICE, AUDITED, "kind: [\n"]
    ),
    "chart/Chart.yaml": "apiVersion: v2\nname: chart\nversion: 0.1.0\n",
    "chart/templates/pod.yaml": "kind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n",
    "latin.yaml": "kind: \ufffd\n",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, with a manifest of each kind of result."""
    for name, text in MANIFESTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode("utf-8").replace("\ufffd".encode(), b"\xff"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- SARIF


def lines(run: dict[str, Any]) -> Iterator[str]:
    """Yield `file:line:column level rule: the first words of the message` for each result."""
    for result in run["results"]:
        (location,) = result["locations"]
        place = location["physicalLocation"]
        region = place.get("region", {})
        at = [
            place["artifactLocation"]["uri"],
            *(str(region[k]) for k in ("startLine", "startColumn") if k in region),
        ]
        yield f"{':'.join(at)} {result['level']} {result['ruleId']}: {result['message']['text']}"  # fmt: skip


def test_sarif_has_a_result_for_each_finding_and_problem(folder: Path) -> None:  # noqa: ARG001 - the current directory
    run = sarif("-R", "-f", ".")

    limit = "spec.containers[0].resources.limits[nvidia.com/gpu]"
    want = (
        f'a%20dir/pods.yaml:9:16 error FractionalGPU: {limit} (container "main") = "500m" (0.5): set nvidia.com/gpu: 1',
        'a%20dir/pods.yaml:20:11 warning DeviceVariable: spec.containers[0].env[0] (container "main") = "all": remove CUD',
        f'a%20dir/pods.yaml:30:16 note manifest: {limit} = "$GPUS": a placeholder; render',
        'a%20dir/pods.yaml:52:11 note ExposedGPUs: spec.containers[0].env[0] (container "main") = "all": request nvid',
        "a%20dir/pods.yaml:54 error manifest: while parsing a flow node, did not find expected node content",
        "latin.yaml error manifest: must be UTF-8 text",
        'a%20dir/pods.yaml:40:35 warning manifest: Duplicate value: key "nvidia.com/gpu"; the last one counts',
        "chart note manifest: a Helm chart must be rendered first: helm template CHART | gpu-admission check -f -",
    )
    for line, start in zip(lines(run), want, strict=True):
        assert line.startswith(start)
    assert run["invocations"] == [{"executionSuccessful": False}]
    assert run["results"][0]["locations"][0]["logicalLocations"] == [
        {"fullyQualifiedName": f"Pod default/half {limit}"}
    ]


def test_sarif_names_every_reason_with_its_meaning() -> None:
    run = sarif("-f", "-", stdin=pod("one", "1"))

    described = {rule["id"]: rule["shortDescription"]["text"] for rule in run["tool"]["driver"]["rules"]}
    assert described.pop("manifest") == "manifests cannot be read as the API server reads them"
    assert described == {reason.name: reason.meaning for reason in RULES_BY_REASON}
    assert run["results"] == []
    assert run["invocations"] == [{"executionSuccessful": True}]


def test_sarif_of_an_absolute_path_is_a_file_uri(folder: Path) -> None:
    run = sarif("-f", str(folder / "a dir" / "pods.yaml"))

    assert next(lines(run)).startswith(f"file://{folder}/a%20dir/pods.yaml:9:16 error FractionalGPU: ")


# ---- JUnit

ELEMENTS: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": (set(), {"name", "time", "tests", "failures", "errors"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors"},
        {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"},
    ),
    "testcase": (
        {"name"},
        {"time", "classname", "group"},
        {"skipped", "error", "failure", "system-out", "system-err"},
    ),
    "failure": (set(), {"type", "message"}, set()),
    "error": (set(), {"type", "message"}, set()),
    "skipped": (set(), {"type", "message"}, set()),
    "system-out": (set(), set(), set()),
}
"""Required attributes, others, and children of the elements that junit-10.xsd of Jenkins' xUnit plugin knows, as far as used."""


def junit(*arguments: str, stdin: str | None = None) -> ET.Element:
    root = ET.fromstring(report("junit", *arguments, stdin=stdin))  # noqa: S314 - our own
    assert root.tag == "testsuites"
    for element in root.iter():
        required, others, children = ELEMENTS[element.tag]
        assert required <= element.attrib.keys() <= required | others, element.tag
        assert {child.tag for child in element} <= children, element.tag
        assert children == set() or not (element.text or "").strip()
    for suite in root:
        cases = suite.findall("testcase")
        assert suite.get("tests") == str(len(cases))
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert suite.get(count) == str(sum(case.find(tag) is not None for case in cases))
    for count in ("tests", "failures", "errors"):
        assert int(root.get(count, "")) == sum(int(suite.get(count, "")) for suite in root)
    return root


def test_junit_has_a_suite_for_each_file_and_a_case_for_each_object(folder: Path) -> None:  # noqa: ARG001 - the current directory
    root = junit("-R", "-f", ".")

    cases = {
        (suite.get("name"), case.get("name")): [(each.tag, each.get("message"), each.get("type")) for each in case]
        for suite in root
        for case in suite
    }  # fmt: skip
    half = (
        'a dir/pods.yaml:9:16: spec.containers[0].resources.limits[nvidia.com/gpu] (container "main") = "500m" '
        "(0.5): set nvidia.com/gpu: 1, or nvidia.com/mig-3g.40gb: 1 (a slice), or nvidia.com/gpu.shared: 1 (a "
        "time-sliced share); must be a whole number of GPUs, not half of one [gpu-requests]"
    )
    syntax = "a dir/pods.yaml:54: while parsing a flow node, did not find expected node content"
    assert cases == {
        ("a dir/pods.yaml", "Pod default/half"): [("failure", half, "denied")],
        ("a dir/pods.yaml", "Pod default/warned"): [("system-out", None, None)],
        ("a dir/pods.yaml", "Pod default/open"): [
            ("skipped", "must be rendered first", None),
            ("system-out", None, None),
        ],
        ("a dir/pods.yaml", "Pod default/twice"): [],
        ("a dir/pods.yaml", "Service front"): [("skipped", "not known to have pods", None)],
        ("a dir/pods.yaml", "Pod default/audited"): [("system-out", None, None)],
        ("a dir/pods.yaml", "line 54"): [("error", syntax, "problem")],
        ("a dir/pods.yaml", "line 40"): [("system-out", None, None)],
        ("latin.yaml", "file"): [("error", "latin.yaml: must be UTF-8 text", "problem")],
        ("chart", "Helm chart"): [
            ("skipped", "must be rendered first: helm template CHART | gpu-admission check -f -", None)
        ],
    }
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("10", "1", "2")


def test_junit_says_all_that_is_wrong_in_one_failure() -> None:
    second = "  - name: second\n    resources: {limits: {nvidia.com/gpu: -1}}\n"

    (failure,) = junit("-f", "-", stdin=pod("two", "500m") + second).iter("failure")

    assert [line.split(" ", 1)[0] for line in (failure.text or "").split("\n")] == ["stdin:9:16:", "stdin:11:26:"]  # fmt: skip


def test_junit_holds_no_character_that_xml_cannot_hold() -> None:
    root = junit("-f", "-", stdin=pod('"a\\e[31m<b>\\0"', "500m"))

    assert [case.get("name") for case in root.iter("testcase")] == ["Pod default/a\ufffd[31m<b>\ufffd"]


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"the corpus is not at {CORPUS}")
def test_reports_of_manifests_written_by_others_are_valid() -> None:
    shown = json.loads(CliRunner().invoke(main, ["check", "-R", "-f", str(CORPUS), "-o", "json"]).stdout)

    levels = [result["level"] for result in sarif("-R", "-f", str(CORPUS))["results"]]
    root = junit("-R", "-f", str(CORPUS))

    assert "error" in levels
    assert root.get("failures") == str(shown["summary"]["denied"])
    assert root.get("errors") == str(shown["summary"]["problems"])
