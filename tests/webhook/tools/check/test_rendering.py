from tests.cases import cases
from webhook.tools.check.sources import has_parameters, is_placeholder

LIMIT = "spec.containers[0].resources.limits[nvidia.com/gpu]"
ENV = "spec.containers[0].env[0].value"
ARGS = "spec.containers[0].args[1]"


@cases(
    ("value", "path", "want"),
    {
        "variable": ("$GPUS", LIMIT, True),
        "variable-with-default": ("${GPUS:-1}", LIMIT, True),
        "helm": ("{{ .Values.gpus }}", LIMIT, True),
        "jinja": ("{% if x %}1{% endif %}", LIMIT, True),
        "tekton": ("$(params.gpus)", LIMIT, True),
        "of-documentation": ("<NUMBER_OF_GPUS>", LIMIT, True),
        "inside-a-text": ("s3://${BUCKET}/model", "metadata.annotations[x]", True),
        "quantity": ("500m", LIMIT, False),
        "number-as-text": ("1", LIMIT, False),
        "number": (1, LIMIT, False),
        "absent": (None, LIMIT, False),
        "dollar-in-a-text": ("hf://user:pa$word@host/model", "metadata.annotations[x]", False),
        "angle-brackets-in-a-text": ("a < b > c", ENV, False),
        "kubernetes-expands-env": ("$(GPUS)", ENV, False),
        "kubernetes-does-not-expand-this": ("${GPUS}", ENV, True),
        "kubernetes-expands-args": ("--gpus=$(GPUS)", ARGS, False),
        "a-shell-expands-args": ("--gpus=${GPUS}", ARGS, False),
        "nothing-expands-this-in-a-pod": ("--gpus={{ gpus }}", ARGS, True),
    },
)
def test_placeholders(value: object, path: str, want: bool) -> None:
    assert is_placeholder(value, path) is want


@cases(
    ("group", "kind", "want"),
    {
        "argo": ("argoproj.io", "Workflow", True),
        "rollout-has-none": ("argoproj.io", "Rollout", False),
        "tekton": ("tekton.dev", "Task", True),
        "openshift-template-of-old": ("", "Template", True),
        "katib": ("kubeflow.org", "Experiment", True),
        "pytorchjob": ("kubeflow.org", "PyTorchJob", False),
        "pod": ("", "Pod", False),
    },
)
def test_kinds_with_parameters_of_their_own(group: str, kind: str, want: bool) -> None:
    assert has_parameters(group, kind) is want
