"""gpu-toleration: GPU pods, and only GPU pods, may land on tainted GPU nodes."""

from typing import Any

from policies.finding import Severity
from policies.gpus.resource_mapping import DeviceClassPattern, ResourceMapping, ResourceMappingSpec
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rule import Context, Phase
from policies.rules.gpu_toleration import GPUTolerationOptions, mutate
from tests.builders import JSON, RESOURCE_MAPPING, apply, container, context, gpu_container, pod, view
from tests.cases import cases
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
    )
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


@cases(
    ("document", "options", "want"),
    {
        "gpu-container": (gpu_pod(), DEFAULTS, [GPU]),
        "gpu-init-container": (
            pod(container(), initContainers=[gpu_container(name="warm")]),
            DEFAULTS,
            [GPU],
        ),
        "fraction-annotation": (pod(annotations={"gpu-fraction": "0.5"}), DEFAULTS, [GPU]),
        "no-gpu": (pod(), DEFAULTS, None),
        "zero-gpus-is-no-gpu": (pod(gpu_container("0")), DEFAULTS, None),
        "list-is-null": (gpu_pod(tolerations=None), DEFAULTS, [GPU]),
        "keeps-existing": (gpu_pod(tolerations=[TEAM]), DEFAULTS, [TEAM, GPU]),
        "tolerated-already": (gpu_pod(tolerations=[GPU]), DEFAULTS, [GPU]),
        "tolerates-all": (gpu_pod(tolerations=[{"operator": "Exists"}]), DEFAULTS, [{"operator": "Exists"}]),
        "all-of-the-policy": (gpu_pod(), SEED, [GPU, DEDICATED]),
        "only-what-is-missing": (gpu_pod(tolerations=[DEDICATED]), SEED, [DEDICATED, GPU]),
        "class-to-which-the-pod-is-pinned": (
            gpu_pod(nodeSelector={"accelerator": "nvidia-t4"}),
            DEFAULTS,
            [GPU, T4],
        ),
        "other-classes-have-other-taints": (
            gpu_pod(nodeSelector={"accelerator": "nvidia-a100"}),
            DEFAULTS,
            [GPU],
        ),
        "a-list-that-names-the-taint-says-it-better": (gpu_pod(), OWN_TAINT, [TRAINING]),
        "of-the-vendor": (
            pod(gpu_container(resource="amd.com/gpu")),
            BY_VENDOR,
            [taint("amd.com/gpu"), ROCM],
        ),
        "of-another-vendor": (gpu_pod(), BY_VENDOR, [GPU]),
        "of-two-vendors": (
            pod(gpu_container(), gpu_container(name="other", resource="amd.com/gpu")),
            BY_VENDOR,
            [GPU, taint("amd.com/gpu"), ROCM],
        ),
    },
)
def test_tolerations(document: JSON, options: GPUTolerationOptions, want: list[JSON] | None) -> None:
    once = run(document, options)

    assert once["spec"].get("tolerations") == want
    assert run(once, options) == once  # reinvocation changes nothing


BUILT_IN = load_directory(None).resource_mapping


@cases(
    ("resource", "key"),
    {
        "nvidia": ("nvidia.com/gpu", "nvidia.com/gpu"),
        "nvidia-time-sliced": ("nvidia.com/gpu.shared", "nvidia.com/gpu"),
        "nvidia-mig": ("nvidia.com/mig-1g.10gb", "nvidia.com/gpu"),
        "nvidia-mig-time-sliced": ("nvidia.com/mig-1g.10gb.shared", "nvidia.com/gpu"),
        "hami-memory": ("nvidia.com/gpumem", "nvidia.com/gpu"),
        "nvidia-vgpu": ("nvidia.com/GRID_T4-1Q", "nvidia.com/gpu"),
        "volcano-s-name-of-nvidia-gpus": ("volcano.sh/vgpu-number", "nvidia.com/gpu"),
        "amd": ("amd.com/gpu", "amd.com/gpu"),
        "amd-partition": ("amd.com/cpx_nps4", "amd.com/gpu"),
        "tpu": ("google.com/tpu", "google.com/tpu"),
        "neuron": ("aws.amazon.com/neuron", "aws.amazon.com/neuron"),
        "neuron-core": ("aws.amazon.com/neuroncore", "aws.amazon.com/neuron"),
        "neuron-device": ("aws.amazon.com/neurondevice", "aws.amazon.com/neuron"),
        "gaudi": ("habana.ai/gaudi", "habana.ai/gaudi"),
        "intel": ("gpu.intel.com/i915", "gpu.intel.com/i915"),
        "ascend": ("huawei.com/Ascend910", "huawei.com/Ascend910"),
    },
)
def test_the_taint_is_named_as_the_resource_of_the_vendor_s_device(resource: str, key: str) -> None:
    once = run(pod(gpu_container(resource=resource)), given=context(resource_mapping=BUILT_IN))

    assert once["spec"]["tolerations"] == [taint(key)]


CLAIM: JSON = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}


@cases(
    ("document", "claimed", "want"),
    {
        "claim": (pod(**CLAIM), ("gpu.amd.com",), [taint("amd.com/gpu"), DEDICATED]),
        "claim-for-a-gpu-of-any-vendor": (pod(**CLAIM), ("any-gpu",), [DEDICATED]),
        "claim-for-perhaps-a-gpu": (pod(**CLAIM), (), None),
        "perhaps-a-gpu-beside-a-gpu": (pod(gpu_container(), **CLAIM), (), [GPU, DEDICATED]),
        "implicit-name-of-a-device-class": (
            pod(gpu_container(resource="deviceclass.resource.kubernetes.io/gpu.amd.com")),
            (),
            [taint("amd.com/gpu"), DEDICATED],
        ),
        "implicit-name-of-any-vendor": (
            pod(gpu_container(resource="deviceclass.resource.kubernetes.io/any-gpu")),
            (),
            [DEDICATED],
        ),
        "extended-name-of-a-device-class": (
            pod(gpu_container(resource="example.com/big")),
            (),
            [GPU, DEDICATED],
        ),
    },
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


@cases(
    ("document", "given"),
    {
        "tolerated-in-the-template": (
            gpu_pod(tolerations=[{"operator": "Exists"}]),
            context(Phase.TEMPLATE, made_by_daemonset=True),
        ),
        "no-gpu": (pod(), context(Phase.TEMPLATE, made_by_daemonset=True)),
        "template-of-a-deployment": (gpu_pod(), context(Phase.TEMPLATE)),
        "pod-of-a-daemonset": (gpu_pod(), context(Phase.MUTATE, made_by_daemonset=True)),
    },
)
def test_templates_that_need_none(document: JSON, given: Context) -> None:
    assert list(mutate(PodPatch(view(document)), DEFAULTS, given)) == []


NO_KEY = "is required: a toleration without a key tolerates every taint"


@cases(
    ("by_vendor", "want"),
    {
        "a-domain": ({"amd.com": ()}, []),
        "a-resource": (
            {"amd.com/gpu": ()},
            [("byVendor[amd.com/gpu]", "must be named as the domain of its resources, such as nvidia.com")],
        ),
        "no-key": ({"amd.com": (Toleration(operator="Exists"),)}, [("byVendor[amd.com][0].key", NO_KEY)]),
    },
)
def test_problems_by_vendor(
    by_vendor: dict[str, tuple[Toleration, ...]], want: list[tuple[str, str]]
) -> None:
    assert list(GPUTolerationOptions(by_vendor=by_vendor).problems()) == want


@cases(
    ("toleration", "want"),
    {
        "valid": (Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"), []),
        "no-key": (Toleration(operator="Exists"), [("tolerations[0].key", NO_KEY)]),
        "all-at-once": (
            Toleration(key="a", operator="In", effect="Never", toleration_seconds=3),
            [
                ("tolerations[0].operator", 'must be Exists or Equal, not "In"'),
                (
                    "tolerations[0].effect",
                    'must be one of NoSchedule, PreferNoSchedule, NoExecute, not "Never"',
                ),
                ("tolerations[0].tolerationSeconds", "is allowed only with effect NoExecute"),
            ],
        ),
        "exists-with-a-value": (
            Toleration(key="a", operator="Exists", value="x"),
            [("tolerations[0].value", "must be empty when operator is Exists")],
        ),
        "what-no-taint-can-be": (
            Toleration(key="gpu nodes", value="a b"),
            [
                ("tolerations[0].key", 'must be a taint key, not "gpu nodes"'),
                ("tolerations[0].value", 'must be a taint value, not "a b"'),
            ],
        ),
        "no-key-and-more": (
            Toleration(value="x", operator="Exists"),
            [
                ("tolerations[0].key", NO_KEY),
                ("tolerations[0].value", "must be empty when operator is Exists"),
            ],
        ),
    },
)
def test_problems(toleration: Toleration, want: list[tuple[str, str]]) -> None:
    assert list(GPUTolerationOptions(tolerations=(toleration,)).problems()) == want
