"""The whole sentences about GPUs of an object that are not read."""

from tests.builders import JSON
from tests.cases import cases
from webhook.configuration.loader import load_directory
from webhook.workloads.models import unknown_model
from webhook.workloads.unread import unread_gpus

BUILT_IN = load_directory(None)
ASK = "ask the platform team to name their paths in workloadKinds of a GPUResourceMapping [workloads]"


@cases(
    ("group", "kind", "spec", "want"),
    more_than_are_named=(
        "example.com",
        "TrainingJob",
        {name: {"gpu": 1} for name in "abcde"},
        f"spec.a.gpu: GPUs in spec.a.gpu, spec.b.gpu, spec.c.gpu and 2 more are not read; {ASK}",
    ),
    beside_the_pods_of_a_known_kind=(
        "kubeflow.org",
        "PyTorchJob",
        {"elasticPolicy": {"limits": {"nvidia.com/gpu": 1}}},
        "spec.elasticPolicy.limits[nvidia.com/gpu]: write them into spec.pytorchReplicaSpecs.Worker.template; GPUs in "
        f"spec.elasticPolicy.limits[nvidia.com/gpu] are not read; or {ASK}",
    ),
)
def test_gpus_that_are_not_read(group: str, kind: str, spec: JSON, want: str) -> None:
    data = {"kind": kind, "spec": spec}
    (found,) = unread_gpus(group, kind, data, (), BUILT_IN.resource_mapping, BUILT_IN.workload_kinds)

    assert found.sentence() == want


def test_a_model_that_is_not_known() -> None:
    assert unknown_model({"spec": {"modelRef": "llama"}}).sentence() == (
        'spec.modelRef = "llama": check it together with the Model; names a Model that is neither here nor in the cluster: its '
        "GPUs are not known [workloads]"
    )
