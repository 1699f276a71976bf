"""What `gpu-admission scan` prints of a report, and what ends it; what it finds: tests/webhook/tools/scan/."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.rightsizing import report as right_size
from tests.webhook.tools.rightsize.peaks import peaks
from tests.webhook.tools.scan.evaluated import EMPTY_REPORT, NOTHING_PROPOSED
from webhook.cluster.capacity import ClassCapacity
from webhook.commands import main, scan
from webhook.commands.output import Screen
from webhook.commands.scan_text import print_text
from webhook.commands.sizes_document import sizes_document
from webhook.tools.rightsize.workloads import SizeReport
from webhook.tools.scan.report import (
    Effect,
    FoundProblem,
    NamespaceUse,
    PlannedChange,
    Proposal,
    Remark,
)

EFFECTS = "                             denied  changed   warned   logged\n"
NO_POD = (
    "0 pods (0 with GPUs) and 0 workloads, evaluated by the built-in defaults\n"
    "\n"
    f"{EFFECTS}"
    "  pods                            ·        ·        ·        ·\n"
    "  workloads                       ·        ·        ·        ·\n"
)


def printed(capsys: pytest.CaptureFixture[str], found: dict[str, Any], directory: Path | None = None) -> str:
    print_text(Screen(), msgspec.structs.replace(EMPTY_REPORT, **found), directory)
    return capsys.readouterr().out


def test_an_overview_has_the_effects_of_each_rule(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        "is_enforced": True,
        "pods": 3,
        "gpu_pods": 2,
        "workloads": 1,
        "pod_effects": {Effect.DENIED: 1, Effect.LOGGED: 2},
        "workload_effects": {Effect.CHANGED: 1},
        "rules": {"gpu-class": {Effect.DENIED: 1}},
    }

    assert printed(capsys, found) == (
        "3 pods (2 with GPUs) and 1 workload, evaluated by the built-in defaults, every rule enforced\n"
        "\n"
        f"{EFFECTS}"
        "  pods                            1        ·        ·        2\n"
        "  workloads                       ·        1        ·        ·\n"
        "\n"
        "Pods by rule\n"
        "  gpu-class                       1        ·        ·        ·\n"
    )


def problem(effect: Effect, owner: str = "Job/a", sentence: str = "must name a class") -> FoundProblem:
    return FoundProblem(
        namespace="team", owner=owner, rule="gpu-class", effect=effect, sentence=sentence, pods=2
    )


def change(number: int = 0, owner: str = "Job/a") -> PlannedChange:
    return PlannedChange(
        namespace="team", owner=owner, rule="gpu-class", change=f"adds label {number:02}", pods=2
    )


def use(number: int = 0, **held: Any) -> NamespaceUse:
    return NamespaceUse(
        **{
            "namespace": f"team-{number:02}",
            "policy": "default",
            "pods": 3,
            "gpu_pods": 2,
            "effects": {Effect.DENIED: 1},
            "gpus": Fraction(2),
            "classes": {},
            "resources": {},
            **held,
        }
    )


COLUMNS = "                               GPUs GPU pods     pods   denied  changed   warned\n"


@cases(
    ("found", "want"),
    refused=(
        {
            "problems": (
                *(problem(Effect.DENIED, f"Job/{name}") for name in "abc"),
                problem(Effect.DENIED, "Pod/d"),
                problem(Effect.DENIED, "Job/e"),
            )
        },
        "Would be denied\n"
        "  must name a class\n"
        "    in team Job/a (2 pods), team Job/b (2 pods), team Job/c (2 pods), team Pod/d, 1 more\n",
    ),
    warned_and_logged=(
        {"problems": (problem(Effect.LOGGED), problem(Effect.WARNED))},
        "Would be warned about\n"
        "  must name a class\n"
        "    in team Job/a (2 pods)\n"
        "\n"
        "Would only be logged\n"
        "  must name a class\n"
        "    in team Job/a (2 pods)\n",
    ),
    many_findings=(
        {"problems": tuple(problem(Effect.WARNED, "Pod/a", f"finding {each:02}") for each in range(22))},
        "Would be warned about\n"
        + "".join(f"  finding {each:02}\n    in team Pod/a\n" for each in range(20))
        + "  and 2 other findings: see -o html or -o json\n",
    ),
    changed=(
        {"changes": (change(0), change(1), change(1, "Job/b"))},
        "Would be changed\n"
        "  adds label 01 [gpu-class]: 4 pods of 2 owners\n"
        "  adds label 00 [gpu-class]: 2 pods of 1 owner\n",
    ),
    many_changes=(
        {"changes": tuple(change(each) for each in range(23))},
        "Would be changed\n"
        + "".join(f"  adds label {each:02} [gpu-class]: 2 pods of 1 owner\n" for each in range(20))
        + "  and 3 other changes: see -o html or -o json\n",
    ),
    namespaces=(
        {"namespaces": (use(classes={"nvidia-l4": Fraction(2)}, resources={"nvidia.com/gpu": Fraction(1)}),)},
        "Namespaces\n"
        f"{COLUMNS}"
        "  team-00                         2        2        3        1        ·        ·\n"
        "    nvidia-l4 2, nvidia.com/gpu 1\n",
    ),
    many_namespaces=(
        {"namespaces": tuple(use(each) for each in range(24))},
        "Namespaces\n"
        f"{COLUMNS}"
        + "".join(
            f"  team-{each:02}                         2        2        3        1        ·        ·\n"
            for each in range(20)
        )
        + "  and 4 more: see -o html or -o json\n",
    ),
    classes=(
        {
            "classes": {
                "nvidia-l4": ClassCapacity(nodes=2, gpus=Fraction(8)),
                "": ClassCapacity(nodes=1, gpus=Fraction(1, 2)),
            }
        },
        "GPU nodes by class\n"
        "                              nodes     GPUs\n"
        "  nvidia-l4                       2        8\n"
        "  of no known class               1      0.5\n",
    ),
    unknown=(
        {"unread": (Remark(subject="Resource x/y", message="is of no class", remedy="name one"),)},
        "Unknown to rules or quotas\n  Resource x/y is of no class\n    fix: name one\n",
    ),
    limit_ranges=(
        {
            "limit_ranges": (
                Remark(subject="LimitRange/gpus in lab", message="gives GPUs", remedy="set it to 0"),
            )
        },
        "LimitRanges that give GPUs\n  LimitRange/gpus in lab gives GPUs\n    fix: set it to 0\n",
    ),
    nodes=(
        {"nodes": (Remark(subject="Node a", message="has no taint", remedy=""),)},
        "GPU nodes\n  Node a has no taint\n",
    ),
)
def test_what_is_printed_below_the_overview(
    found: dict[str, Any], want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, found) == f"{NO_POD}\n{want}"


def sizes(workloads: int) -> SizeReport:
    found = right_size(peaks("9.2", "0.1"))
    return msgspec.structs.replace(found, workloads=found.workloads * workloads)


def test_workloads_that_could_be_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    advice = (
        "  ml-training Deployment/chat: 3 pods with nvidia.com/gpu: 1: set nvidia.com/mig-1g.20gb: 1 instead of "
        "nvidia.com/gpu: 1: saves 1642.5 of 2190 GPU-hours a month\n"
    )

    assert printed(capsys, {"right_size": sizes(6)}) == (
        f"{NO_POD}\nRight size\n{advice * 5}"
        "  and 1 more: see gpu-admission rightsize\n"
        "  6 workloads could be smaller: 9855 GPU-hours a month\n"
        "  4 workloads of the right size\n"
        "  not judged: 2 pods measured for less than 24 h\n"
    )


PROPOSED = msgspec.structs.replace(
    NOTHING_PROPOSED,
    classes=("own-a", "own-b"),
    quotas={f"team-{each}": Fraction(4) for each in range(9)},
    teams={"vision": Fraction(6)},
    exemptions={"gpu-operator": ("gpu-class", "gpu-requests")},
    relaxed=("gpu-class",),
    files={"gpuclasses.yaml": "", "gpuquotas.yaml": ""},
)
WHAT = (
    "  rule gpu-class in mode warn: it would deny pods of the cluster\n"
    "  exemption of gpu-operator from gpu-class, gpu-requests: device plugins or exporters run there\n"
    "  2 GPUClasses: own-a, own-b\n"
    "  9 GPUQuotas: team-0 4, team-1 4, team-2 4, team-3 4, team-4 4, team-5 4, team-6 4, team-7 4 and 1 more\n"
    "  1 ClusterGPUQuota: vision 6\n"
)


@cases(
    ("proposal", "directory", "want"),
    not_written=(
        PROPOSED,
        None,
        f"{WHAT}  --propose DIRECTORY writes these documents, once they were tried on the pods\n",
    ),
    written=(
        msgspec.structs.replace(PROPOSED, denied=0),
        Path("proposed"),
        f"{WHAT}  written to proposed: gpuclasses.yaml, gpuquotas.yaml; none of the pods would be denied\n",
    ),
    written_and_not_good_enough=(
        msgspec.structs.replace(PROPOSED, denied=3),
        Path("proposed"),
        f"{WHAT}  written to proposed: gpuclasses.yaml, gpuquotas.yaml; 3 of the pods would be denied\n",
    ),
    nothing_to_write=(
        NOTHING_PROPOSED,
        Path("proposed"),
        "  proposed is not written: nothing is missing in policy, classes and quotas\n",
    ),
)
def test_what_is_proposed(
    proposal: Proposal, directory: Path | None, want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, {"proposal": proposal}, directory) == f"{NO_POD}\nTo begin with\n{want}"


@cases(
    ("left_out", "want"),
    one=(1, "not shown: 1 more finding or change\n"),
    several=(4, "not shown: 4 more findings and changes\n"),
)
def test_what_is_not_in_it(left_out: int, want: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = {"omitted": ("list nodes",), "left_out": left_out}

    assert (
        printed(capsys, found) == f"{NO_POD}\nyou may not list nodes: what depends on it is not shown\n{want}"
    )


def run(folder: Path, *arguments: str) -> Result:
    objects: dict[str, Any] = {"/api": [], "/apis": [], "/api/v1/namespaces/ml/pods": [], "/api/v1/nodes": []}
    with ApiServer(folder, answering(objects)) as server:
        named = ("-n", "ml", "--kubeconfig", str(server.kubeconfig()))
        return CliRunner().invoke(main, ["scan", *named, *arguments])


def test_what_is_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextmanager
    def progress(doing: str) -> Iterator[Callable[[str], object]]:
        yield lambda subject: said.append(f"{doing}{subject}")

    monkeypatch.setattr(scan, "progress", progress)
    result = run(tmp_path)

    tried = "  --propose DIRECTORY writes these documents, once they were tried on the pods\n"
    want = f"{NO_POD}\nTo begin with\n{tried}"
    assert (result.exit_code, result.stdout, said) == (0, want, ["reading pods", "reading nodes"])


def test_sizes_are_written_as_rightsize_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "read_sizes", lambda *_, **__: sizes(1))
    result = run(tmp_path, "--prometheus-url", "https://127.0.0.1:1", "-o", "json")

    assert json.loads(result.stdout)["rightSize"] == json.loads(json.dumps(sizes_document(sizes(1))))


def test_documents_that_are_not_valid_end_it(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "p.yaml").write_text(
        "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUPolicy\nmetadata: {name: default}\nspec: {rule: {}}\n"
    )

    result = run(tmp_path, "--config", str(tmp_path / "config"))

    assert (result.exit_code, result.stderr) == (
        2,
        "error: p.yaml:4: GPUPolicy/default spec.rule: unknown field; did you mean rules?\n"
        "1 problem; nothing was done\n",
    )
