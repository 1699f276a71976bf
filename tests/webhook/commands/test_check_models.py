"""`gpu-admission check` with an InferenceService of LLMKube and its Model: the Model says how many GPUs a pod gets."""

import re

from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.commands.checking import stream
from webhook.commands import main

MODEL = """\
apiVersion: inference.llmkube.dev/v1alpha1
kind: Model
metadata: {name: llama, namespace: ml}
spec: {hardware: {gpu: {%s}}}
"""
SERVICE = """\
apiVersion: inference.llmkube.dev/v1alpha1
kind: InferenceService
metadata: {name: chat, namespace: ml}
spec: {modelRef: llama, replicas: 3%s}
"""
QUOTA = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: ml}
spec: {hard: {gpus: 4}}
"""
UNKNOWN = (
    'spec.modelRef = "llama": apply the Model first, or check both together; names a Model that is not known here, nor are its '
    "GPUs [workloads]"
)


@cases(
    ("documents", "want"),
    of_the_model=((MODEL % "count: 2", SERVICE % "", QUOTA), ["6"]),
    the_model_precedes_the_service=((MODEL % "count: 4", SERVICE % ", resources: {gpu: 1}", QUOTA), ["12"]),
    without_a_count_the_service_says_it=(
        (MODEL % "enabled: true", SERVICE % ", resources: {gpu: 2}", QUOTA),
        ["6"],
    ),
    of_its_vendor=((MODEL % "count: 2, vendor: amd", SERVICE % "", QUOTA), ["6"]),
    without_any=((MODEL % "enabled: true", SERVICE % "", QUOTA), []),
)
def test_the_gpus_of_the_pods(documents: tuple[str, ...], want: list[str]) -> None:
    shown = check(*documents)

    assert re.findall(r"needs (\d+) GPUs, which can never fit", shown) == want
    assert UNKNOWN not in shown


def test_without_the_model_they_are_not_known() -> None:
    assert UNKNOWN in check(SERVICE % "")


def check(*documents: str) -> str:
    result = CliRunner().invoke(main, ["check", "-f", "-"], input=stream(*documents))
    return " ".join(result.output.split())
