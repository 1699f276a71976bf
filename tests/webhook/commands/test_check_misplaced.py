"""`check` reports fields in a place that nothing reads, and documents that no API server sends to a webhook, once each."""

import json

import yaml

from tests.cases import cases
from tests.webhook.commands.checking import GOOD, check, words

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec:\n  containers:\n  - name: main\n    image: train\n"
LIMITS = POD + "    resources: {limits: {nvidia.com/gpu: 1}}\n"
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: train}
spec:
  selector: {matchLabels: {app: train}}
  resources: {limits: {nvidia.com/gpu: 1}}
  template:
    metadata: {labels: {app: train}}
    spec: {containers: [{name: main, image: train}]}
"""
WORKER = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  runPolicy: {schedulingPolicy: {minResources: {nvidia.com/gpu: 8}}}
  pytorchReplicaSpecs:
    Worker: {template: {spec: {containers: [{name: pytorch, resources: {nvidia.com/gpu: 1}}]}}}
"""
MAIN = "spec.containers[0]"


@cases(
    ("text", "paths"),
    beside_limits=(POD + "    resources: {nvidia.com/gpu: 1}\n", [f"{MAIN}.resources[nvidia.com/gpu]"]),
    limits_of_a_container=(POD + "    limits: {nvidia.com/gpu: 1}\n", [f"{MAIN}.limits[nvidia.com/gpu]"]),
    limit=(POD + "    resources: {limit: {nvidia.com/gpu: 1}}\n", [f"{MAIN}.resources.limit[nvidia.com/gpu]"]),
    in_the_spec=(POD + "  nvidia.com/gpu: 1\n", ["spec[nvidia.com/gpu]"]),
    above_the_template=(DEPLOYMENT, ["spec.resources.limits[nvidia.com/gpu]"]),
    in_a_worker=(WORKER,
        ["spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].resources[nvidia.com/gpu]"]),
    read_once_by_a_rule=(POD + "  resources: {limits: {nvidia.com/gpu: 1}}\n",
        ["spec.resources.limits[nvidia.com/gpu]"]),
    where_it_belongs=(GOOD + "  overhead: {nvidia.com/gpu: 1}\n  nodeSelector: {nvidia.com/gpu: '1'}\n", []),
)  # fmt: skip
def test_gpus_in_the_wrong_place(text: str, paths: list[str]) -> None:
    (found,) = json.loads(check("-o", "json", "-", stdin=text).stdout)["objects"]
    findings = [each for place in (found, *found["pods"]) for each in place["findings"]]

    assert [each["path"] for each in findings if each["reason"] == "MisplacedField"] == paths


@cases(
    "text",
    beside_limits=POD + "    resources: {nvidia.com/gpu: 1}\n",
    beside_other_limits=POD + "    resources: {limits: {}, nvidia.com/gpu: 1}\n",
)
def test_what_stands_beside_limits_is_moved(text: str) -> None:
    result = check("--fix", "--yes", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (0, LIMITS)


def test_the_sentence() -> None:
    result = check("-o", "lines", "-", stdin=POD + "    resources: {nvidia.com/gpu: 1}\n")

    assert result.stdout.splitlines()[-1] == (
        "stdin:8: warning: spec.containers[0].resources[nvidia.com/gpu]: write it into resources.limits of the "
        "container; must not stand here: kubectl rejects an unknown field, and other clients lose it [ineffective-fields]"
    )


TEMPLATE = """\
    spec:
      containers:
      - {name: main, image: "registry.example/train:1", resources: {limits: {nvidia.com/gpu: 4}}}
"""


@cases(
    ("text", "said"),
    job_in_apps=(
        "apiVersion: apps/v1\nkind: Job\nmetadata: {name: train}\nspec:\n  template:\n" + TEMPLATE,
        'stdin:1: warning: apiVersion = "apps/v1": set apiVersion: batch/v1; has no kind Job [ineffective-fields]',
    ),
    a_group_that_is_gone=(
        "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: train}\nspec:\n  template:\n"
        + TEMPLATE.replace("gpu: 4", "gpu: 0.5"),
        "the API server rejects the Deployment itself: extensions/v1beta1 has no such kind",
    ),
    a_version_that_is_gone=(
        "apiVersion: batch/v1beta1\nkind: CronJob\nmetadata: {name: train}\nspec: {}\n",
        'stdin:1: warning: apiVersion = "batch/v1beta1": set apiVersion: batch/v1; has no kind CronJob [ineffective-fields]',
    ),
    containers_below_spec=(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat}\nspec:\n"
        + TEMPLATE.replace("    spec:\n    ", "").replace("\n    ", "\n"),
        "stdin:5: warning: spec.containers: write it into spec.template.spec; is not a field of a Deployment: "
        "the API server rejects or drops it [ineffective-fields]",
    ),
    the_spec_beside_the_template=(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat}\nspec:\n"
        "  template: {metadata: {labels: {app: chat}}}\n" + TEMPLATE.replace("    ", "  ", 1),
        "stdin:6: warning: spec.spec: write its fields into spec.template.spec; is not a field of a Deployment: "
        "the API server rejects or drops it [ineffective-fields]",
    ),
    the_template_beside_the_spec=(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat}\ntemplate:\n" + TEMPLATE,
        "stdin:5: warning: template.spec: write its fields into spec.template.spec; is not a field of a Deployment: "
        "the API server rejects or drops it [ineffective-fields]",
    ),
    a_cron_job_without_job_template=(
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: eval}\nspec:\n  template:\n" + TEMPLATE,
        "stdin:6: warning: template.spec: write its fields into spec.jobTemplate.spec.template.spec; is not a field of a "
        "CronJob: the API server rejects or drops it [ineffective-fields]",
    ),
    a_pod_with_a_template=(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: eval}\nspec:\n  template:\n" + TEMPLATE,
        "stdin:6: warning: template.spec: write its fields into spec; is not a field of a Pod: the API server rejects or "
        "drops it [ineffective-fields]",
    ),
    a_replica_set_without_template=(
        "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: eval}\nspec: {replicas: 1}\n",
        "stdin:4: warning: containers: must list containers: the API server rejects a ReplicaSet without them "
        "[ineffective-fields]",
    ),
    a_worker_without_template=(
        WORKER.replace(
            "{template: {spec: {containers: [{name: pytorch, resources: {nvidia.com/gpu: 1}}]}}}",
            "{spec: {containers: [{name: pytorch, resources: {limits: {nvidia.com/gpu: 1}}}]}}",
        )
        + "    Master: {template: {spec: {containers: [{name: pytorch}]}}}\n",
        "stdin:7: warning: spec.pytorchReplicaSpecs.Worker.spec.containers[0].resources.limits[nvidia.com/gpu]: write them into "
        "spec.pytorchReplicaSpecs.Worker.template; GPUs in spec.pytorchReplicaSpecs.Worker.spec.containers[0].resources."
        "limits[nvidia.com/gpu] are not read; or ask the platform team to name their paths in workloadKinds of a "
        "GPUResourceMapping [workloads]",
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
    assert result.exit_code == ("gpu: 0.5" in text)


def test_fix_moves_the_spec_below_its_template() -> None:
    head = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\n"
    rest = "{restartPolicy: Never, containers: [{name: main, image: train}]}"
    result = check("--fix", "--yes", "-", stdin=f"{head}spec:\n  spec: {rest}\n")

    fixed = yaml.safe_load(result.stdout)
    assert fixed["spec"] == {"template": {"spec": yaml.safe_load(rest)}}


def test_no_fix_where_both_places_have_containers() -> None:
    template = "{spec: {containers: [{name: main, image: train}]}}"
    head = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec:\n"
    document = f"{head}  containers: [{{name: a}}]\n  template: {template}\n"

    (found,) = json.loads(check("-o", "json", "-", stdin=document).stdout)["objects"]
    assert [(each["path"], each["fix"]) for each in found["findings"]] == [("spec.containers", [])]
