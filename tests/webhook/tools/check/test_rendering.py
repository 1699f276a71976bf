from tests.cases import cases
from webhook.tools.check.sources import has_parameters, is_placeholder

LIMIT = "spec.containers[0].resources.limits[nvidia.com/gpu]"
ENV = "spec.containers[0].env[0].value"
ARGS = "spec.containers[0].args[1]"


@cases(
    ("value", "path", "want"),
    variable=("$GPUS", LIMIT, True),
    variable_with_default=("${GPUS:-1}", LIMIT, True),
    helm=("{{ .Values.gpus }}", LIMIT, True),
    jinja=("{% if x %}1{% endif %}", LIMIT, True),
    tekton=("$(params.gpus)", LIMIT, True),
    of_documentation=("<NUMBER_OF_GPUS>", LIMIT, True),
    inside_a_text=("s3://${BUCKET}/model", "metadata.annotations[x]", True),
    quantity=("500m", LIMIT, False),
    number_as_text=("1", LIMIT, False),
    number=(1, LIMIT, False),
    absent=(None, LIMIT, False),
    dollar_in_a_text=("hf://user:pa$word@host/model", "metadata.annotations[x]", False),
    angle_brackets_in_a_text=("a < b > c", ENV, False),
    kubernetes_expands_env=("$(GPUS)", ENV, False),
    kubernetes_does_not_expand_this=("${GPUS}", ENV, True),
    kubernetes_expands_args=("--gpus=$(GPUS)", ARGS, False),
    a_shell_expands_args=("--gpus=${GPUS}", ARGS, False),
    nothing_expands_this_in_a_pod=("--gpus={{ gpus }}", ARGS, True),
)
def test_placeholders(value: object, path: str, want: bool) -> None:
    assert is_placeholder(value, path) is want


@cases(
    ("group", "kind", "want"),
    argo=("argoproj.io", "Workflow", True),
    rollout_has_none=("argoproj.io", "Rollout", False),
    tekton=("tekton.dev", "Task", True),
    openshift_template_of_old=("", "Template", True),
    katib=("kubeflow.org", "Experiment", True),
    pytorchjob=("kubeflow.org", "PyTorchJob", False),
    pod=("", "Pod", False),
)
def test_kinds_with_parameters_of_their_own(group: str, kind: str, want: bool) -> None:
    assert has_parameters(group, kind) is want
