"""`gpu-admission check` with an object and the one that describes its pods, in one input or alone."""

import re

from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.commands.checking import stream
from webhook.commands import main

GPU = "resources: {limits: {nvidia.com/gpu: 2}}"
SERVICE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llama, namespace: ml}
spec: {predictor: {model: {modelFormat: {name: vLLM}, runtime: vllm%s}}}
"""
RUNTIME = """\
apiVersion: serving.kserve.io/v1alpha1
kind: %s
metadata: {name: vllm%s}
spec: {containers: [{name: kserve-container, image: x%s}]}
"""
TASK = """\
apiVersion: tekton.dev/v1
kind: Task
metadata: {name: train, namespace: ml}
spec: {steps: [{name: train, image: x%s}]}
"""
PIPELINE = """\
apiVersion: tekton.dev/v1
kind: Pipeline
metadata: {name: all, namespace: ml}
spec: {%s: [{name: train, taskRef: {name: train}}]}
"""
RUN = """\
apiVersion: tekton.dev/v1
kind: %s
metadata: {name: run, namespace: ml}
spec: {%s}
"""
TEMPLATE = """\
apiVersion: argoproj.io/v1alpha1
kind: %s
metadata: {name: train%s}
spec: {templates: [{name: train, container: {image: x%s}}]}
"""
WORKFLOW = """\
apiVersion: argoproj.io/v1alpha1
kind: %s
metadata: {name: run, namespace: ml}
spec: {%s}
"""
GPUS_READ_IN_PODS = "%s: the GPUs of %s are read only in the pods that the controller creates [workloads]"
UNKNOWN = '%s = "%s": apply the %s first, or check both together; names a %s that is not known here, nor are its GPUs [workloads]'
UNKNOWN_RUNTIME = UNKNOWN % ("spec.predictor.model.runtime", "vllm", "ServingRuntime", "ServingRuntime")
STEPS = "computeResources: {limits: {nvidia.com/gpu: 2}}"
OF_A_RUNTIME = [GPUS_READ_IN_PODS % ("spec.predictor.model.runtime", "vllm")]
OF_A_TASK = TASK % f", {STEPS}"


@cases(
    ("text", "other", "want"),
    a_runtime=(SERVICE % "", RUNTIME % ("ServingRuntime", ", namespace: ml", f", {GPU}"), OF_A_RUNTIME),
    a_runtime_of_the_cluster=(SERVICE % "", RUNTIME % ("ClusterServingRuntime", "", f", {GPU}"), OF_A_RUNTIME),
    a_runtime_without_gpus=(SERVICE % "", RUNTIME % ("ServingRuntime", ", namespace: ml", ""), []),
    a_runtime_that_is_not_known=(SERVICE % "", "", [UNKNOWN_RUNTIME]),
    a_runtime_of_another_namespace=(
        SERVICE % "", RUNTIME % ("ServingRuntime", ", namespace: web", f", {GPU}"), [UNKNOWN_RUNTIME],
    ),
    gpus_of_its_own=(SERVICE % f", {GPU}", "", []),
    a_task=(RUN % ("TaskRun", "taskRef: {name: train}"), OF_A_TASK, [GPUS_READ_IN_PODS % ("spec.taskRef.name", "train")]),
    a_task_without_gpus=(RUN % ("TaskRun", "taskRef: {name: train}"), TASK % "", []),
    a_task_that_is_not_known=(
        RUN % ("TaskRun", "taskRef: {name: train}"), "", [UNKNOWN % ("spec.taskRef.name", "train", "Task", "Task")],
    ),
    a_task_of_another_kind=(
        RUN % ("TaskRun", "taskRef: {name: train, kind: ClusterTask}"),
        OF_A_TASK,
        [UNKNOWN % ("spec.taskRef.name", "train", "ClusterTask", "ClusterTask")],
    ),
    a_task_of_a_pipeline=(
        RUN % ("PipelineRun", "pipelineRef: {name: all}"),
        stream(PIPELINE % "tasks", OF_A_TASK),
        [GPUS_READ_IN_PODS % ("spec.pipelineRef.name", "all")],
    ),
    a_last_task_of_a_pipeline=(
        RUN % ("PipelineRun", "pipelineRef: {name: all}"),
        stream(PIPELINE % "finally", OF_A_TASK),
        [GPUS_READ_IN_PODS % ("spec.pipelineRef.name", "all")],
    ),
    a_task_of_a_run=(
        RUN % ("PipelineRun", "pipelineSpec: {tasks: [{name: a, taskRef: {name: train}}]}"),
        OF_A_TASK,
        [GPUS_READ_IN_PODS % ("spec.pipelineSpec.tasks[0].taskRef.name", "train")],
    ),
    a_template=(
        WORKFLOW % ("Workflow", "workflowTemplateRef: {name: train}"),
        TEMPLATE % ("WorkflowTemplate", ", namespace: ml", f", {GPU}"),
        [GPUS_READ_IN_PODS % ("spec.workflowTemplateRef.name", "train")],
    ),
    a_template_of_the_cluster=(
        WORKFLOW % ("CronWorkflow", "workflowSpec: {workflowTemplateRef: {name: train, clusterScope: true}}"),
        TEMPLATE % ("ClusterWorkflowTemplate", "", f", {GPU}"),
        [GPUS_READ_IN_PODS % ("spec.workflowSpec.workflowTemplateRef.name", "train")],
    ),
    a_template_of_a_task=(
        WORKFLOW % ("Workflow", "templates: [{name: a, dag: {tasks: [{name: b, templateRef: {name: train, template: train}}]}}]"),
        TEMPLATE % ("WorkflowTemplate", ", namespace: ml", f", {GPU}"),
        [GPUS_READ_IN_PODS % ("spec.templates[0].dag.tasks[0].templateRef.name", "train")],
    ),
    a_name_that_is_none=(RUN % ("TaskRun", "taskRef: {name: [train]}"), OF_A_TASK, []),
)  # fmt: skip
def test_gpus_of_what_it_names(text: str, other: str, want: list[str]) -> None:
    shown = CliRunner(env={"COLUMNS": None}).invoke(main, ["check", "-f", "-"], input=stream(text, other))

    said = re.findall(r"stdin:(\d+): warning: (.*)", shown.stdout)
    assert [sentence for line, sentence in said if int(line) <= text.count("\n")] == want
