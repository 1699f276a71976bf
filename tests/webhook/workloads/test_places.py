"""Where the pods of each kind are, and where in the object each part of them stands."""

from typing import Any

import msgspec
import pytest

from policies.pods.field_paths import path_parts
from tests.builders import JSON, gpu_container
from tests.cases import cases
from webhook.configuration.decoding import Problem
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import PodForm
from webhook.workloads.places import MAX_PLACES, PodPlace, pod_places, workload_pods

KINDS = load_directory(None).workload_kinds
SPEC: JSON = {"containers": [gpu_container()]}
TEMPLATE: JSON = {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}


def at(path: str, value: Any) -> JSON:
    """Return an object with the value at the path, in which `*` is the key `worker` and `[]` the second item of a list."""
    step, _, rest = path.partition(".")
    inner = at(rest, value) if rest else value
    name, bracket, _ = step.partition("[")
    return {name.replace("*", "worker"): [None, inner] if bracket else inner}


def found(group: str, kind: str, data: JSON) -> list[PodPlace]:
    places = pod_places(KINDS, group, kind, data)
    assert not any(isinstance(place, Problem) for place in places), places
    return [place for place in places if isinstance(place, PodPlace)]


@pytest.mark.parametrize(
    ("group", "kind", "path"),
    [
        pytest.param(group, kind, form.path, id=f"{kind}.{group}-{form.path}")
        for (group, kind), workload_kind in KINDS.items()
        for form in workload_kind.pods
        if form.form not in {PodForm.OBJECT, PodForm.PATCH}
    ],
)
def test_something_of_another_type_in_the_way_is_reported(group: str, kind: str, path: str) -> None:
    (problem,) = (
        each for each in pod_places(KINDS, group, kind, at(path, "text")) if isinstance(each, Problem)
    )

    assert problem.path == path.replace("[]", "[1]").replace("*", "worker")
    assert problem.message == "must be a map"


def test_a_list_that_is_none() -> None:
    (problem,) = pod_places(
        KINDS, "ray.io", "RayCluster", {"spec": {"workerGroupSpecs": {"template": TEMPLATE}}}
    )

    assert problem == Problem(("spec", "workerGroupSpecs"), "must be a list")


def test_argo_takes_from_the_workflow_what_a_template_leaves_out() -> None:
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists"}
    spec = {
        "tolerations": [toleration],
        "nodeSelector": {"accelerator": "nvidia-t4"},
        "templates": [{"container": gpu_container(), "nodeSelector": {"zone": "a"}}, {"dag": {"tasks": []}}],
    }

    (place,) = found("argoproj.io", "Workflow", {"spec": spec})

    assert place.data["spec"]["tolerations"] == [toleration]
    assert place.data["spec"]["nodeSelector"] == {"zone": "a"}
    assert place.path_in_object("spec.tolerations[0].key") == "spec.tolerations[0].key"
    assert place.path_in_object("spec.nodeSelector[zone]") == "spec.templates[0].nodeSelector.zone"


def test_a_quantity_that_a_parameter_fills_in_is_some_device() -> None:
    requested = {
        "limits": {"nvidia.com/gpu": "{{inputs.parameters.gpus}}", "cpu": "1", "memory": "${MEMORY}"}
    }

    (place,) = found("argoproj.io", "Workflow", at("spec.templates[].container", {"resources": requested}))

    assert place.data["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}}


@cases(
    ("document", "want"),
    no_map=(b"[]", "must be a map"),
    too_deep=(b"[" * 100_000, "must not be nested this deeply"),
    another_type_in_the_way=(
        msgspec.json.encode(at("spec.predictor", "text")),
        "must be a map - at `$.spec.predictor`",
    ),
    another_type_in_the_pod=(
        msgspec.json.encode(at("spec.predictor.model", {"resources": {"limits": "many"}})),
        "Expected `object | null`, got `str` - at `$.spec.predictor.model.resources.limits`",
    ),
)
def test_errors_carry_the_path_in_the_object(document: bytes, want: str) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        workload_pods(KINDS, "serving.kserve.io", "InferenceService", document)
    assert str(error.value) == want


def test_an_object_with_endless_pods_is_looked_at_in_part() -> None:
    groups = [{"template": TEMPLATE}] * 100_000

    assert len(found("ray.io", "RayCluster", {"spec": {"workerGroupSpecs": groups}})) == MAX_PLACES


def test_what_a_pod_becomes_is_put_in_its_place() -> None:
    data = at("spec.workerGroupSpecs[].template", TEMPLATE)
    (place,) = found("ray.io", "RayCluster", data)

    replaced = place.replaced(data, {"spec": {}})

    assert replaced == at("spec.workerGroupSpecs[].template", {"spec": {}})
    assert data == at("spec.workerGroupSpecs[].template", TEMPLATE)


def test_what_changes_in_a_pod_made_of_several_parts_is_put_where_each_is() -> None:
    data = at("spec.predictor.model", {"resources": {"limits": {"nvidia.com/gpu": "${GPUS}"}}})
    (place,) = found("serving.kserve.io", "InferenceService", data)
    spec = place.data["spec"]

    replaced = place.replaced(
        data, {"spec": {**spec, "tolerations": [], "containers": [{**spec["containers"][0], "env": []}]}}
    )

    model = {"resources": {"limits": {"nvidia.com/gpu": "${GPUS}"}}, "env": []}
    assert replaced == {"spec": {"predictor": {"model": model, "tolerations": []}}}


def test_what_is_nowhere_in_the_object_is_reported_of_the_whole() -> None:
    (place,) = found("trainer.kubeflow.org", "TrainJob", at("spec.trainer.resourcesPerNode", {}))

    assert place.parts_in_object(path_parts("spec.nodeSelector")) == path_parts(
        "spec.trainer.resourcesPerNode"
    )
