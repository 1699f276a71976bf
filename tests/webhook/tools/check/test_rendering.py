import pytest

from webhook.tools.check.rendering import has_parameters, is_placeholder

LIMIT = "spec.containers[0].resources.limits[nvidia.com/gpu]"
ENV = "spec.containers[0].env[0].value"
ARGS = "spec.containers[0].args[1]"


@pytest.mark.parametrize(
    ("value", "path", "want"),
    [
        pytest.param("$GPUS", LIMIT, True, id="variable"),
        pytest.param("${GPUS:-1}", LIMIT, True, id="variable-with-default"),
        pytest.param("{{ .Values.gpus }}", LIMIT, True, id="helm"),
        pytest.param("{% if x %}1{% endif %}", LIMIT, True, id="jinja"),
        pytest.param("$(params.gpus)", LIMIT, True, id="tekton"),
        pytest.param("<NUMBER_OF_GPUS>", LIMIT, True, id="of-documentation"),
        pytest.param("s3://${BUCKET}/model", "metadata.annotations[x]", True, id="inside-a-text"),
        pytest.param("500m", LIMIT, False, id="quantity"),
        pytest.param("1", LIMIT, False, id="number-as-text"),
        pytest.param(1, LIMIT, False, id="number"),
        pytest.param(None, LIMIT, False, id="absent"),
        pytest.param("hf://user:pa$word@host/model", "metadata.annotations[x]", False, id="dollar-in-a-text"),
        pytest.param("a < b > c", ENV, False, id="angle-brackets-in-a-text"),
        pytest.param("$(GPUS)", ENV, False, id="kubernetes-expands-env"),
        pytest.param("${GPUS}", ENV, True, id="kubernetes-does-not-expand-this"),
        pytest.param("--gpus=$(GPUS)", ARGS, False, id="kubernetes-expands-args"),
        pytest.param("--gpus=${GPUS}", ARGS, False, id="a-shell-expands-args"),
        pytest.param("--gpus={{ gpus }}", ARGS, True, id="nothing-expands-this-in-a-pod"),
    ],
)
def test_placeholders(value: object, path: str, want: bool) -> None:
    assert is_placeholder(value, path) is want


@pytest.mark.parametrize(
    ("group", "kind", "want"),
    [
        pytest.param("argoproj.io", "Workflow", True, id="argo"),
        pytest.param("argoproj.io", "Rollout", False, id="rollout-has-none"),
        pytest.param("tekton.dev", "Task", True, id="tekton"),
        pytest.param("", "Template", True, id="openshift-template-of-old"),
        pytest.param("kubeflow.org", "Experiment", True, id="katib"),
        pytest.param("kubeflow.org", "PyTorchJob", False, id="pytorchjob"),
        pytest.param("", "Pod", False, id="pod"),
    ],
)
def test_kinds_with_parameters_of_their_own(group: str, kind: str, want: bool) -> None:
    assert has_parameters(group, kind) is want
