"""check reports what an API server would refuse or drop, and never hands to a webhook, once and with what to write."""

from pathlib import Path

from tests.cases import cases
from tests.webhook.commands.test_check import check, words

TEMPLATE = """\
    spec:
      containers:
      - {name: main, image: "registry.example/train:1", resources: {limits: {nvidia.com/gpu: 4}}}
"""
JOB = "kind: Job\nmetadata: {name: train}\nspec:\n  template:\n" + TEMPLATE


@cases(
    ("text", "said"),
    job_in_apps=(
        "apiVersion: apps/v1\n" + JOB,
        (
            'stdin:1: warning: apiVersion = "apps/v1": set apiVersion: batch/v1; has no kind Job [ineffective-fields]'
        ),
    ),
    containers_below_spec=(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat}\nspec:\n"
        + TEMPLATE.replace("    spec:\n    ", "").replace("\n    ", "\n"),
        "stdin:5: warning: spec.containers: write it into spec.template.spec; is not a field of a Deployment: "
        "the API server refuses or drops it [ineffective-fields]",
    ),
    daemonset_with_gpus=(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: monitor}\nspec:\n  template:\n" + TEMPLATE,
        'stdin:8: warning: containers[0].resources.limits[nvidia.com/gpu] (container "main") = "4": remove the '
        "request if it only monitors GPUs; is held on every node of this DaemonSet, and no other pod gets it "
        "there; or ask the platform team to exempt its namespace in the GPUPolicy [gpu-requests]",
    ),
    a_quota_of_limits=(
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: gpus}\nspec:\n  hard:\n"
        '    requests.nvidia.com/gpu: "4"\n    limits.nvidia.com/gpu: "4"\n',
        "stdin:7: warning: spec.hard[limits.nvidia.com/gpu]: remove it, requests.nvidia.com/gpu is set as well",
    ),
)
def test_a_slip_in_a_document(text: str, said: str) -> None:
    result = check("-f", "-", stdin=text)

    assert said in words(result)
    assert "gpu-admission does not read GPU resources" not in result.stdout
    assert result.exit_code == 0


def test_misspelt_example() -> None:
    example = Path(__file__).parents[3] / "examples" / "workloads" / "pod-misspelt.yaml"

    said = words(check("-f", str(example)))

    assert "did you mean nvidia.com/gpu? No device plugin that is known has this resource" in said
    assert (
        "write it as annotation gpu-admission.dev/gpu-class; has no effect as a label [ineffective-fields]"
        in said
    )
