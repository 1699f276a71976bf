"""`check` on what is not a manifest, or not one yet: exit codes, what it says, and how far it is."""

import json
from pathlib import Path
from typing import Any

from tests.cases import cases
from tests.webhook.commands.checking import GOOD, check, words
from tests.webhook.commands.checking import GPU_POD as POD

KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [pod.yaml]\n"


def document(path: Path) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(check("-f", str(path), "-o", "json").stdout)
    return shown


def test_a_repository(tmp_path: Path) -> None:
    files = {
        "chart/Chart.yaml": "apiVersion: v2\nname: chart\nversion: 0.1.0\n",
        "chart/templates/pod.yaml": "kind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n",
        "chart/values.yaml": "gpus: 1\n",
        "k8s/kustomization.yaml": KUSTOMIZATION,
        "k8s/pod.yaml": GOOD,
        ".github/workflows/ci.yaml": "on: [push]\njobs: {}\n",
        "node_modules/broken/x.yaml": "kind: [\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    result = check("-R", "-f", str(tmp_path), "--ignore", "node_modules")

    assert result.exit_code == 0
    assert words(result).endswith(
        "1 object: 0 denied, 1 would change, 0 ok; 3 other documents without apiVersion and kind"
    )
    assert " ".join(result.stderr.split()).replace(f"{tmp_path}/", "") == (
        "note: 1 Helm chart not checked (chart): helm template CHART | gpu-admission check -f - "
        "note: 1 kustomization not checked (k8s): kustomize build DIRECTORY | gpu-admission check -f -"
    )


def test_a_placeholder_is_neither_refused_nor_ok() -> None:
    result = check("-f", "-", stdin=POD.replace("COUNT", '"{{ .Values.gpus }}"'))

    assert result.exit_code == 0
    assert words(result) == (
        "unknown stdin:1 Pod default/train stdin:9: spec.containers[0].resources.limits[nvidia.com/gpu] "
        '= "{{ .Values.gpus }}": a placeholder; render the file first '
        "1 object: 0 denied, 0 would change, 0 ok, 1 unknown (render first)"
    )


def test_a_placeholder_that_decides_whether_it_is_a_gpu_pod_is_not_ok() -> None:
    text = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llm}
spec:
  predictor:
    model:
      resources:
        limits: {cpu: "${CPUS}", nvidia.com/gpu: "${GPUS}"}
        requests: {nvidia.com/gpu: "${GPUS}"}
"""

    result = check("-f", "-", stdin=text)

    path = "spec.predictor.model.resources"
    assert words(result).startswith(
        "unknown stdin:1 InferenceService default/llm "
        f'stdin:8: {path}.limits[nvidia.com/gpu] = "${{GPUS}}": a placeholder; render the file first '
        f'stdin:9: {path}.requests[nvidia.com/gpu] = "${{GPUS}}": a placeholder; render the file first '
    )


def test_what_is_wrong_beside_a_placeholder_is_refused() -> None:
    second = "  - name: second\n    resources: {limits: {nvidia.com/gpu: 500m}}\n"

    result = check("-f", "-", stdin=POD.replace("COUNT", "$GPUS") + second)

    assert result.exit_code == 1
    assert '(container "second") = "500m" (0.5): set nvidia.com/gpu: 1' in words(result)
    assert '"$GPUS": a placeholder; render the file first' in words(result)


def test_parameters_that_a_controller_fills_in_are_not_placeholders(tmp_path: Path) -> None:
    (tmp_path / "workflow.yaml").write_text(
        """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: train}
spec:
  templates:
  - name: train
    container:
      image: registry.example/train:1
      readinessProbe: {periodSeconds: "{{inputs.parameters.period}}"}
"""
    )

    shown = document(tmp_path)

    assert [(each["verdict"], each["placeholders"]) for each in shown["objects"]] == [("ok", [])]
    assert shown["problems"] == []


@cases(
    "text",
    {
        "quota": (
            "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUQuota\nmetadata: {name: default}\n"
            'spec: {hard: {resources: {nvidia.com/gpu: "4"}}}\n'
        ),
        "class": (
            "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUClass\nmetadata: {name: half}\n"
            "spec: {equivalents: {nvidia.com/gpu: [nvidia.com/gpu.shared]}}\n"
        ),
        "text": ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plugin}\ndata: {nvidia.com/gpu: 8}\n"),
    },
)
def test_documents_about_gpus_ask_for_none(text: str) -> None:
    result = check("-f", "-", stdin=text)

    assert result.exit_code == 0
    assert "0 denied, 0 would change" in result.stdout
    assert "warning" not in result.output


def test_json_lists_everything_apart(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(KUSTOMIZATION)
    (tmp_path / "pod.yaml").write_text(POD.replace("COUNT", "$GPUS") + "  a: 1\n  a: 2\n---\nb: 1\n")

    shown = document(tmp_path)

    message = 'Duplicate value: key "a"; the last one counts'
    assert shown["warnings"] == [
        {"file": f"{tmp_path}/pod.yaml", "line": 11, "column": 3, "path": "", "message": message}
    ]
    remedy = "kustomize build DIRECTORY | gpu-admission check -f -"
    assert shown["toRender"] == [
        {"file": str(tmp_path), "line": 0, "what": "kustomization", "remedy": remedy}
    ]
    (pod,) = shown["objects"]
    assert pod["verdict"] == "unknown"
    path = "spec.containers[0].resources.limits[nvidia.com/gpu]"
    assert pod["placeholders"] == [{"path": path, "line": 9, "column": 16, "value": "$GPUS"}]
    assert (shown["summary"]["unknown"], shown["summary"]["otherDocuments"]) == (1, 1)


@cases("chosen", no_numbers="first", choice_zero="1:0", no_finding=":1", no_choice="1:")
def test_a_choice_that_is_no_pair_of_numbers(tmp_path: Path, chosen: str) -> None:
    (tmp_path / "pod.yaml").write_text(GOOD)

    result = check("-f", str(tmp_path / "pod.yaml"), f"--fix={chosen}")

    message = f"Error: --fix={chosen} must be FINDING:CHOICE, two numbers such as --fix=1:2"
    assert (result.exit_code, " ".join(result.stderr.split()).endswith(message)) == (2, True), result.output
