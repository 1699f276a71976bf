"""gpu-toleration: GPU pods, and only GPU pods, may land on tainted GPU nodes."""

from typing import Any

import pytest

from policies.finding import Severity
from policies.gpus.resource_mapping import DeviceClassPattern, ResourceMapping, ResourceMappingSpec
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rule import Context, Phase
from policies.rules.gpu_toleration import GPUTolerationOptions, mutate
from tests.builders import JSON, RESOURCE_MAPPING, apply, container, context, gpu_container, pod, view
from webhook.configuration.loader import load_directory

GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
TEAM = {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
T4 = {"key": "accelerator", "operator": "Equal", "value": "t4", "effect": "NoSchedule"}
DEDICATED = {"key": "dedicated", "value": "ml-workloads", "effect": "NoSchedule"}
DEFAULTS = GPUTolerationOptions()
SEED = GPUTolerationOptions(
    tolerations=(
        Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"),
        Toleration(key="dedicated", value="ml-workloads", effect="NoSchedule"),
    ),
)
TRAINING: JSON = {"key": "nvidia.com/gpu", "value": "training", "effect": "NoSchedule"}
OWN_TAINT = GPUTolerationOptions(
    tolerations=(Toleration(key="nvidia.com/gpu", value="training", effect="NoSchedule"),)
)
BY_VENDOR = GPUTolerationOptions(
    by_vendor={"amd.com": (Toleration(key="rocm", operator="Exists", effect="NoSchedule"),)}
)
ROCM: JSON = {"key": "rocm", "operator": "Exists", "effect": "NoSchedule"}
DRA = ResourceMapping(
    (
        *RESOURCE_MAPPING.specs,
        ResourceMappingSpec(
            device_classes=(
                DeviceClassPattern(pattern="gpu.amd.com", resource="amd.com/gpu"),
                DeviceClassPattern(
                    pattern="big", resource="nvidia.com/gpu", extended_resource_name="example.com/big"
                ),
                DeviceClassPattern(pattern="any-gpu"),
            )
        ),
    )
)


def run(document: JSON, options: GPUTolerationOptions = DEFAULTS, given: Context | None = None) -> JSON:
    patch = PodPatch(view(document))
    assert list(mutate(patch, options, given or context())) == []
    return apply(document, patch)


def taint(key: str) -> JSON:
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}


def gpu_pod(**spec: Any) -> JSON:
    return pod(gpu_container(), **spec)


@pytest.mark.parametrize(
    ("document", "options", "want"),
    [
        pytest.param(gpu_pod(), DEFAULTS, [GPU], id="gpu-container"),
        pytest.param(
            pod(container(), initContainers=[gpu_container(name="warm")]),
            DEFAULTS,
            [GPU],
            id="gpu-init-container",
        ),
        pytest.param(pod(annotations={"gpu-fraction": "0.5"}), DEFAULTS, [GPU], id="fraction-annotation"),
        pytest.param(pod(), DEFAULTS, None, id="no-gpu"),
        pytest.param(pod(gpu_container("0")), DEFAULTS, None, id="zero-gpus-is-no-gpu"),
        pytest.param(gpu_pod(tolerations=None), DEFAULTS, [GPU], id="list-is-null"),
        pytest.param(gpu_pod(tolerations=[TEAM]), DEFAULTS, [TEAM, GPU], id="keeps-existing"),
        pytest.param(gpu_pod(tolerations=[GPU]), DEFAULTS, [GPU], id="tolerated-already"),
        pytest.param(
            gpu_pod(tolerations=[{"operator": "Exists"}]),
            DEFAULTS,
            [{"operator": "Exists"}],
            id="tolerates-all",
        ),
        pytest.param(gpu_pod(), SEED, [GPU, DEDICATED], id="all-of-the-policy"),
        pytest.param(gpu_pod(tolerations=[DEDICATED]), SEED, [DEDICATED, GPU], id="only-what-is-missing"),
        pytest.param(
            gpu_pod(nodeSelector={"accelerator": "nvidia-t4"}),
            DEFAULTS,
            [GPU, T4],
            id="class-to-which-the-pod-is-pinned",
        ),
        pytest.param(
            gpu_pod(nodeSelector={"accelerator": "nvidia-a100"}),
            DEFAULTS,
            [GPU],
            id="other-classes-have-other-taints",
        ),
        pytest.param(gpu_pod(), OWN_TAINT, [TRAINING], id="a-list-that-names-the-taint-says-it-better"),
        pytest.param(
            pod(gpu_container(resource="amd.com/gpu")),
            BY_VENDOR,
            [taint("amd.com/gpu"), ROCM],
            id="of-the-vendor",
        ),
        pytest.param(gpu_pod(), BY_VENDOR, [GPU], id="of-another-vendor"),
        pytest.param(
            pod(gpu_container(), gpu_container(name="other", resource="amd.com/gpu")),
            BY_VENDOR,
            [GPU, taint("amd.com/gpu"), ROCM],
            id="of-two-vendors",
        ),
    ],
)
def test_tolerations(document: JSON, options: GPUTolerationOptions, want: list[JSON] | None) -> None:
    once = run(document, options)

    assert once["spec"].get("tolerations") == want
    assert run(once, options) == once  # reinvocation changes nothing


BUILT_IN = load_directory(None).resource_mapping


@pytest.mark.parametrize(
    ("resource", "key"),
    [
        pytest.param("nvidia.com/gpu", "nvidia.com/gpu", id="nvidia"),
        pytest.param("nvidia.com/gpu.shared", "nvidia.com/gpu", id="nvidia-time-sliced"),
        pytest.param("nvidia.com/mig-1g.10gb", "nvidia.com/gpu", id="nvidia-mig"),
        pytest.param("nvidia.com/mig-1g.10gb.shared", "nvidia.com/gpu", id="nvidia-mig-time-sliced"),
        pytest.param("nvidia.com/gpumem", "nvidia.com/gpu", id="hami-memory"),
        pytest.param("nvidia.com/GRID_T4-1Q", "nvidia.com/gpu", id="nvidia-vgpu"),
        pytest.param("volcano.sh/vgpu-number", "nvidia.com/gpu", id="volcano-s-name-of-nvidia-gpus"),
        pytest.param("amd.com/gpu", "amd.com/gpu", id="amd"),
        pytest.param("amd.com/cpx_nps4", "amd.com/gpu", id="amd-partition"),
        pytest.param("google.com/tpu", "google.com/tpu", id="tpu"),
        pytest.param("aws.amazon.com/neuron", "aws.amazon.com/neuron", id="neuron"),
        pytest.param("aws.amazon.com/neuroncore", "aws.amazon.com/neuron", id="neuron-core"),
        pytest.param("aws.amazon.com/neurondevice", "aws.amazon.com/neuron", id="neuron-device"),
        pytest.param("habana.ai/gaudi", "habana.ai/gaudi", id="gaudi"),
        pytest.param("gpu.intel.com/i915", "gpu.intel.com/i915", id="intel"),
        pytest.param("huawei.com/Ascend910", "huawei.com/Ascend910", id="ascend"),
    ],
)
def test_the_taint_is_named_as_the_resource_of_the_vendor_s_device(resource: str, key: str) -> None:
    document = pod(gpu_container(resource=resource))

    once = run(document, given=context(resource_mapping=BUILT_IN))

    assert once["spec"]["tolerations"] == [taint(key)]


CLAIM: JSON = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}


@pytest.mark.parametrize(
    ("document", "claimed", "want"),
    [
        pytest.param(pod(**CLAIM), ("gpu.amd.com",), [taint("amd.com/gpu"), DEDICATED], id="claim"),
        pytest.param(pod(**CLAIM), ("any-gpu",), [DEDICATED], id="claim-for-a-gpu-of-any-vendor"),
        pytest.param(pod(**CLAIM), (), None, id="claim-for-perhaps-a-gpu"),
        pytest.param(
            pod(gpu_container(), **CLAIM),
            (),
            [GPU, DEDICATED],
            id="perhaps-a-gpu-beside-a-gpu",
        ),
        pytest.param(
            pod(gpu_container(resource="deviceclass.resource.kubernetes.io/gpu.amd.com")),
            (),
            [taint("amd.com/gpu"), DEDICATED],
            id="implicit-name-of-a-device-class",
        ),
        pytest.param(
            pod(gpu_container(resource="deviceclass.resource.kubernetes.io/any-gpu")),
            (),
            [DEDICATED],
            id="implicit-name-of-any-vendor",
        ),
        pytest.param(
            pod(gpu_container(resource="example.com/big")),
            (),
            [GPU, DEDICATED],
            id="extended-name-of-a-device-class",
        ),
    ],
)
def test_devices_by_dra(document: JSON, claimed: tuple[str, ...], want: list[JSON] | None) -> None:
    options = GPUTolerationOptions(
        tolerations=(Toleration(key="dedicated", value="ml-workloads", effect="NoSchedule"),)
    )

    once = run(document, options, context(resource_mapping=DRA, claimed=claimed))

    assert once["spec"].get("tolerations") == want


def test_the_template_of_a_daemonset_needs_tolerations_itself() -> None:
    given = context(Phase.TEMPLATE, made_by_daemonset=True)
    patch = PodPatch(view(gpu_pod(nodeSelector={"accelerator": "nvidia-t4"}, tolerations=[TEAM])))

    [finding] = mutate(patch, DEFAULTS, given)

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        "spec.tolerations: add nvidia.com/gpu:NoSchedule, accelerator=t4:NoSchedule to the template; the DaemonSet "
        "controller makes no pod for a node whose taints the template does not tolerate [gpu-toleration]"
    )
    assert patch.changes == []


@pytest.mark.parametrize(
    ("document", "given"),
    [
        pytest.param(
            gpu_pod(tolerations=[{"operator": "Exists"}]),
            context(Phase.TEMPLATE, made_by_daemonset=True),
            id="tolerated-in-the-template",
        ),
        pytest.param(pod(), context(Phase.TEMPLATE, made_by_daemonset=True), id="no-gpu"),
        pytest.param(gpu_pod(), context(Phase.TEMPLATE), id="template-of-a-deployment"),
        pytest.param(gpu_pod(), context(Phase.MUTATE, made_by_daemonset=True), id="pod-of-a-daemonset"),
    ],
)
def test_templates_that_need_none(document: JSON, given: Context) -> None:
    assert list(mutate(PodPatch(view(document)), DEFAULTS, given)) == []


@pytest.mark.parametrize(
    ("by_vendor", "want"),
    [
        pytest.param({"amd.com": ()}, [], id="a-domain"),
        pytest.param(
            {"amd.com/gpu": ()},
            [("byVendor[amd.com/gpu]", "must be named as the domain of its resources, such as nvidia.com")],
            id="a-resource",
        ),
        pytest.param(
            {"amd.com": (Toleration(operator="Exists"),)},
            [("byVendor[amd.com][0].key", "is required: a toleration without a key tolerates every taint")],
            id="no-key",
        ),
    ],
)
def test_problems_by_vendor(
    by_vendor: dict[str, tuple[Toleration, ...]], want: list[tuple[str, str]]
) -> None:
    assert list(GPUTolerationOptions(by_vendor=by_vendor).problems()) == want


@pytest.mark.parametrize(
    ("toleration", "want"),
    [
        pytest.param(
            Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"), [], id="valid"
        ),
        pytest.param(
            Toleration(operator="Exists"),
            [
                (
                    "tolerations[0].key",
                    "is required: a toleration without a key tolerates every taint",
                )
            ],
            id="no-key",
        ),
        pytest.param(
            Toleration(key="a", operator="In", effect="Never", toleration_seconds=3),
            [
                ("tolerations[0].operator", 'must be Exists or Equal, not "In"'),
                (
                    "tolerations[0].effect",
                    'must be one of NoSchedule, PreferNoSchedule, NoExecute, not "Never"',
                ),
                ("tolerations[0].tolerationSeconds", "is allowed only with effect NoExecute"),
            ],
            id="all-at-once",
        ),
        pytest.param(
            Toleration(key="a", operator="Exists", value="x"),
            [("tolerations[0].value", "must be empty when operator is Exists")],
            id="exists-with-a-value",
        ),
        pytest.param(
            Toleration(key="gpu nodes", value="a b"),
            [
                ("tolerations[0].key", 'must be a taint key, not "gpu nodes"'),
                ("tolerations[0].value", 'must be a taint value, not "a b"'),
            ],
            id="what-no-taint-can-be",
        ),
        pytest.param(
            Toleration(value="x", operator="Exists"),
            [
                (
                    "tolerations[0].key",
                    "is required: a toleration without a key tolerates every taint",
                ),
                ("tolerations[0].value", "must be empty when operator is Exists"),
            ],
            id="no-key-and-more",
        ),
    ],
)
def test_problems(toleration: Toleration, want: list[tuple[str, str]]) -> None:
    assert list(GPUTolerationOptions(tolerations=(toleration,)).problems()) == want
