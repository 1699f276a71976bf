"""`gpu-admission check` with a TrainJob and its runtime in one input: their numbers are those of one object."""

import re

from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.commands.checking import stream
from webhook.commands import main

JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: train, namespace: ml}
spec: {runtimeRef: {name: torch%s}, trainer: {%s}}
"""
RUNTIME = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: %s
metadata: {name: torch%s}
spec:
  mlPolicy: {numNodes: 2, %s}
  template:
    spec:
      replicatedJobs:
      - name: initializer
        template: {spec: {template: {spec: {containers: [{name: initializer, image: x}]}}}}
      - name: train
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            template:
              spec: {containers: [{name: node, image: x, resources: {limits: {nvidia.com/gpu: 4}}}]}
"""
OF_CLUSTER = RUNTIME % ("ClusterTrainingRuntime", "", "torch: {}")
OF_NAMESPACE = RUNTIME % ("TrainingRuntime", ", namespace: ml", "torch: {}")
BY_NAMESPACE = ", kind: TrainingRuntime"
QUOTA = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: ml}
spec: {hard: {gpus: 4}}
"""
MORE = (
    'spec.trainer.numProcPerNode = "8": set 4 or request 8 GPUs; should be at most 4, the GPUs of a pod of '
    "spec.trainer.resourcesPerNode, with %s torch [parallelism]"
)
FEWER = (
    'spec.trainer.numProcPerNode = "2": set 4 or request 2; should be 4, the GPUs of a pod of spec.trainer.resourcesPerNode: the '
    "others stay idle, with %s torch [parallelism]"
)
UNKNOWN = (
    'spec.runtimeRef.name = "torch": apply the %s first, or check both together; names a %s that is not known here, nor are its '
    "GPUs [workloads]"
)
GPUS = "resourcesPerNode: {limits: {nvidia.com/gpu: %s}}"
CLUSTER = "ClusterTrainingRuntime"


@cases(
    ("job", "runtime", "want"),
    more_than_a_node_of_the_runtime=(JOB % ("", "numProcPerNode: 8"), OF_CLUSTER, [MORE % CLUSTER]),
    fewer_than_a_node_of_the_runtime=(JOB % ("", "numProcPerNode: 2"), OF_CLUSTER, [FEWER % CLUSTER]),
    of_the_namespace=(JOB % (BY_NAMESPACE, "numProcPerNode: 8"), OF_NAMESPACE, [MORE % "TrainingRuntime"]),
    processes_of_the_runtime=(
        JOB % ("", GPUS % 4), RUNTIME % (CLUSTER, "", "torch: {numProcPerNode: 8}"), [MORE % CLUSTER],
    ),
    processes_of_mpi=(JOB % ("", ""), RUNTIME % (CLUSTER, "", "mpi: {numProcPerNode: 8}"), [MORE % CLUSTER]),
    as_many=(JOB % ("", "numProcPerNode: 4"), OF_CLUSTER, []),
    gpus_of_its_own=(JOB % ("", f"numProcPerNode: 8, {GPUS % 8}"), OF_CLUSTER, []),
    one_for_each_of_mpi=(JOB % ("", ""), RUNTIME % (CLUSTER, "", "mpi: {numProcPerNode: 1}"), []),
    processes_that_each_have_all_gpus=(
        JOB % ("", f"numProcPerNode: 8, {GPUS % 4}"), RUNTIME % (CLUSTER, "", "flux: {}"), [],
    ),
    another_runtime=(
        JOB % ("", "numProcPerNode: 8"),
        OF_CLUSTER.replace("{name: torch}", "{name: jax}"),
        [UNKNOWN % (CLUSTER, CLUSTER)],
    ),
    gpus_of_its_own_on_another_runtime=(JOB % ("", GPUS % 8), OF_CLUSTER.replace("{name: torch}", "{name: jax}"), []),
    of_another_namespace=(
        JOB % (BY_NAMESPACE, "numProcPerNode: 8"),
        OF_NAMESPACE.replace("namespace: ml", "namespace: web"),
        [UNKNOWN % ("TrainingRuntime", "TrainingRuntime")],
    ),
    a_runtime_that_cannot_be_read=(
        JOB % ("", "numProcPerNode: 8"),
        OF_CLUSTER.replace("{limits: {nvidia.com/gpu: 4}}", "{limits: [4]}"),
        [UNKNOWN % (CLUSTER, CLUSTER)],
    ),
    a_policy_that_cannot_be_read=(
        JOB % ("", ""),
        RUNTIME.replace("{numNodes: 2, %s}", "torch") % (CLUSTER, ""),
        ["spec.runtimeRef.name: the GPUs of torch are read only in the pods that the controller creates [workloads]"],
    ),
    nodes_beyond_a_quota=(
        JOB % ("", ""),
        stream(OF_CLUSTER, QUOTA),
        [
            "spec.trainer.resourcesPerNode: set nvidia.com/gpu: 2; 2 pods that must run together need 8 GPUs, which can never "
            "fit: the GPUQuota of ml grants 4 in all; or ask the platform team to raise spec.hard.gpus [gpu-quota]",
        ],
    ),
)  # fmt: skip
def test_a_train_job_with_its_runtime(job: str, runtime: str, want: list[str]) -> None:
    shown = CliRunner(env={"COLUMNS": None}).invoke(main, ["check", "-f", "-"], input=stream(job, runtime))

    said = re.findall(r"stdin:(\d+): warning: (.*)", shown.stdout)
    assert [sentence for line, sentence in said if int(line) <= JOB.count("\n")] == want
