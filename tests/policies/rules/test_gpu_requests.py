"""gpu-requests: GPU requests are whole, equal their limits, and can be met; everything else is reported at once."""

from typing import Any

import pytest

from policies.finding import Finding, Severity
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.gpu_requests import GPURequestsOptions, check, mutate
from tests.builders import JSON, apply, container, context, gpu_container, operations, pod, view
from tests.cases import cases

GPU = "nvidia.com/gpu"
LIMIT = f"spec.containers[0].resources.limits[{GPU}]"
A100_80 = {"accelerator": "nvidia-a100-80gb"}


def findings(
    document: JSON, options: GPURequestsOptions | None = None, phase: Phase = Phase.VALIDATE
) -> list[Finding]:
    return list(check(view(document), options or GPURequestsOptions(), context(phase)))


def sentences(document: JSON, options: GPURequestsOptions | None = None) -> list[str]:
    return [finding.sentence() for finding in findings(document, options)]


def resources(limit: Any, request: Any, resource: str = GPU) -> JSON:
    return {"resources": {"limits": {resource: limit}, "requests": {resource: request}}}


def request_alone(request: Any, resource: str = GPU) -> JSON:
    return container(resources={"requests": {resource: request}})


@cases(
    "document",
    {
        "no-gpu": pod(),
        "limit-alone": pod(gpu_container("1")),
        "json-number": pod(gpu_container(2)),
        "zero-is-no-request": pod(gpu_container("0")),
        "null-is-zero": pod(gpu_container(None)),
        "a-thousand-thousandths-are-one": pod(gpu_container("1000m")),
        "suffix": pod(gpu_container("0.01k")),
        "what-the-api-server-takes": pod(gpu_container("+1")),
        "rounded-up-to-a-whole-one": pod(gpu_container("0.99999")),
        "equal-in-other-words": pod(container(**resources("1", "1000m"))),
        "equal-text-and-number": pod(container(**resources("1", 1))),
        "slices": pod(gpu_container("4", resource="nvidia.com/mig-1g.10gb")),
        "one-share": pod(gpu_container("1", resource="nvidia.com/gpu.shared")),
        "virtual-gpus-are-not-time-slices": (pod(gpu_container("2", resource="volcano.sh/vgpu-number"))),
        "memory-has-no-maximum": pod(gpu_container("30000", resource="nvidia.com/gpumem")),
        "all-of-a-gpu": pod(gpu_container("100", resource="nvidia.com/gpucores")),
        "processors-may-be-shared": pod(container(resources={"limits": {"cpu": "500m"}})),
        "implicit-class-request-alone": (pod(request_alone("1", "deviceclass.resource.kubernetes.io/big"))),
        "fraction": pod(annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
        "variable-without-a-gpu": (pod(container(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]))),
    },
)
def test_fine_as_it_is(document: JSON) -> None:
    assert sentences(document, GPURequestsOptions(max_per_container=1000, max_per_pod=1000)) == []


SMALLER = f"{GPU}.shared: 1 (a time-sliced share); must be a whole number of GPUs, not"
NOT_A_QUANTITY = f"set {GPU}: 1; must be a quantity that Kubernetes can count"


@cases(
    ("quantity", "shown", "want"),
    {
        "half": (
            "500m",
            '"500m" (0.5)',
            f"set {GPU}: 1, or nvidia.com/mig-3g.20gb: 1 (a slice), or {SMALLER} half of one",
        ),
        "quarter-as-a-json-number": (
            0.25,
            '"0.25"',
            f"set {GPU}: 1, or nvidia.com/mig-1g.20gb: 1 (a slice), or {SMALLER} a quarter of one",
        ),
        "three-quarters": (
            "750m",
            '"750m" (0.75)',
            f"set {GPU}: 1, or nvidia.com/mig-7g.80gb: 1 (a slice), or {SMALLER} three quarters of one",
        ),
        "one-and-a-half": (
            "1.5",
            '"1.5"',
            f"set {GPU}: 1 or 2; must be a whole number of GPUs, not 1.5 of them",
        ),
        "a-little-too-much": (
            "1.0001",
            '"1.0001"',
            f"set {GPU}: 1 or 2; must be a whole number of GPUs, not 1.0001 of them",
        ),
        "negative": ("-1", '"-1"', f"set {GPU}: 1, or omit it; must not be negative"),
        "negative-and-a-half": ("-500m", '"-500m"', f"set {GPU}: 1, or omit it; must not be negative"),
        "no-number": ("one", '"one"', NOT_A_QUANTITY),
        "out-of-all-bounds": ("1e999999999", '"1e999999999"', NOT_A_QUANTITY),
        "quoted-in-part": ("9" * 300, f'"{"9" * 60}…"', NOT_A_QUANTITY),
    },
)
def test_a_number_that_no_node_could_give(quantity: Any, shown: str, want: str) -> None:
    found = sentences(pod(gpu_container(quantity)))

    assert found == [f'{LIMIT} (container "main") = {shown}: {want} [gpu-requests]']


@cases(
    ("resource", "quantity", "message", "remedy"),
    {
        "slices": ("nvidia.com/mig-1g.10gb", "1.5", "must be a whole number of slices of a GPU", "2"),
        "cores": ("aws.amazon.com/neuroncore", "0.5", "must be a whole number of accelerator cores", "1"),
        "memory": ("nvidia.com/gpumem", "0.5", "must be a whole number of MiB of GPU memory", "1"),
        "percentage": ("nvidia.com/gpucores", "101", "must be at most 100 percent of a GPU", "100 or less"),
        "implicit-device-class": (
            "deviceclass.resource.kubernetes.io/big",
            "0.5",
            "must be a whole number of accelerators, not half of one",
            "1",
        ),
        "amd": ("amd.com/gpu", "0.5", "must be a whole number of GPUs, not half of one", "1"),
        "several-shares": (
            "nvidia.com/gpu.shared",
            "3",
            "should be 1: several time-sliced shares give no more of a GPU, and its device plugin may refuse them",
            "1",
        ),
    },
)
def test_other_resources(resource: str, quantity: str, message: str, remedy: str) -> None:
    [finding] = findings(pod(gpu_container(quantity, resource=resource)))

    assert (finding.message, finding.remedy) == (message, f"set {resource}: {remedy}")


def test_a_slice_of_the_class_to_which_the_pod_is_pinned_is_named() -> None:
    [finding] = findings(pod(gpu_container("0.5"), nodeSelector=A100_80))

    assert "nvidia.com/mig-3g.40gb" in finding.remedy


@cases(
    ("limit", "request_", "want"),
    {
        "copied-by-defaulting": ("500m", "500m", [LIMIT]),
        "copied-and-rewritten": ("0.5", "500m", [LIMIT]),
        "copied-nonsense": ("one", "one", [LIMIT]),
        "only-the-request-is-broken": ("1", "500m", [LIMIT.replace("limits", "requests")]),
        "each-broken-in-its-own-way": ("0.5", "0.25", [LIMIT, LIMIT.replace("limits", "requests")]),
    },
)
def test_one_cause_is_one_finding(limit: str, request_: str, want: list[str]) -> None:
    assert [finding.path for finding in findings(pod(container(**resources(limit, request_))))] == want


@pytest.mark.parametrize(("limit", "request_"), [("2", "1"), (1, 2), ("0", "1"), ("2", None)])
def test_request_and_limit_that_differ(limit: Any, request_: Any) -> None:
    [finding] = findings(pod(container(**resources(limit, request_))))

    assert finding.sentence() == (
        f'spec.containers[0].resources.requests[{GPU}] (container "main") = '
        f'"{"null" if request_ is None else request_}": set {GPU}: {limit}, or omit the request; must equal '
        f"limits[{GPU}] ({limit}): GPUs cannot be overcommitted [gpu-requests]"
    )


@cases(
    ("options", "phase", "want"),
    {
        "refused": (GPURequestsOptions(), Phase.MUTATE, [Severity.DENIAL]),
        "refused-in-templates": (GPURequestsOptions(), Phase.TEMPLATE, [Severity.DENIAL]),
        "to-be-completed": (GPURequestsOptions(complete_limits=True), Phase.MUTATE, []),
        "completed-only-in-pods": (
            GPURequestsOptions(complete_limits=True),
            Phase.TEMPLATE,
            [Severity.WARNING],
        ),
    },
)
def test_request_without_limit(options: GPURequestsOptions, phase: Phase, want: list[Severity]) -> None:
    found = findings(pod(request_alone("2")), options, phase)

    assert [finding.severity for finding in found] == want
    assert {finding.remedy for finding in found} <= {"add nvidia.com/gpu: 2 to resources.limits"}


COMPLETE = GPURequestsOptions(complete_limits=True)


@cases(
    ("document", "want"),
    {
        "limits-are-made": (
            pod(request_alone("2")),
            [{"op": "add", "path": "/spec/containers/0/resources/limits", "value": {GPU: "2"}}],
        ),
        "beside-other-limits": (
            pod(container(resources={"limits": {"cpu": "1"}, "requests": {GPU: 1, "amd.com/gpu": "2"}})),
            [
                {"op": "add", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": 1},
                {"op": "add", "path": "/spec/containers/0/resources/limits/amd.com~1gpu", "value": "2"},
            ],
        ),
        "init-container": (
            pod(initContainers=[request_alone("1")]),
            [{"op": "add", "path": "/spec/initContainers/0/resources/limits", "value": {GPU: "1"}}],
        ),
        "what-is-refused-stays": (pod(request_alone("500m")), []),
        "nonsense-stays": (pod(request_alone("many")), []),
        "negative-stays": (pod(request_alone("-1")), []),
        "a-limit-is-never-changed": (pod(container(**resources("2", "1"))), []),
        "implicit-class-needs-none": (pod(request_alone("1", "deviceclass.resource.kubernetes.io/big")), []),
    },
)
def test_completed_limits(document: JSON, want: list[JSON]) -> None:
    untouched, patch = PodPatch(view(document)), PodPatch(view(document))

    assert list(mutate(untouched, GPURequestsOptions(), context())) == []
    assert operations(untouched) == [], "limits are completed only on request"
    assert list(mutate(patch, COMPLETE, context())) == []
    assert operations(patch) == want
    assert findings(apply(document, patch), COMPLETE) == findings(document, COMPLETE)


@cases(
    ("annotations", "want"),
    {
        "the-least": ({"gpu-fraction": "0.01"}, []),
        "less-than-is-counted": (
            {"gpu-fraction": "0.000000001"},
            [
                'metadata.annotations[gpu-fraction] = "0.000000001": set "0.01" or more; counts as 0.01: schedulers take '
                "less for nothing, and nothing limits what the pod uses [gpu-requests]"
            ],
        ),
    },
)
def test_parts_of_a_gpu_that_are_less_than_is_counted(annotations: dict[str, str], want: list[str]) -> None:
    assert sentences(pod(annotations=annotations, schedulerName="kai-scheduler")) == want


@cases(
    ("resource", "quantity", "selector", "message"),
    {
        "no-class": (
            "nvidia.com/mig-1g.11gb",
            "1",
            {},
            "should be a slice that some GPU class has: none lists 1g.11gb",
        ),
        "not-this-class": (
            "nvidia.com/mig-1g.5gb",
            "1",
            A100_80,
            "to which the pod is pinned: it has no 1g.5gb",
        ),
        "vendor": ("amd.com/gpu", "1", A100_80, "must be nvidia.com/gpu: the pod is pinned"),
        "too-many": (
            "nvidia.com/mig-1g.10gb",
            "57",
            A100_80,
            "must be at most 56, for a pod runs on one node: 7 on each nvidia-a100-80gb",
        ),
    },
)
def test_what_no_node_of_the_class_has(
    resource: str, quantity: str, selector: dict[str, str], message: str
) -> None:
    document = pod(gpu_container(quantity, resource=resource), nodeSelector=selector)

    [finding] = findings(document, GPURequestsOptions(gpus_per_node=8))

    assert message in finding.message
    assert finding.path == f"spec.containers[0].resources.limits[{resource}]"


def test_zero_of_what_no_node_has_is_no_request() -> None:
    assert sentences(pod(gpu_container("0", resource="nvidia.com/mig-1g.11gb"))) == []


@cases(
    ("variable", "value"),
    {
        "indices": ({"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}, "0,1"),
        "hidden-though-requested": ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, "void"),
        "from-elsewhere": (
            {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            None,
        ),
    },
)
def test_gpus_chosen_by_hand(variable: JSON, value: str | None) -> None:
    [finding] = findings(pod(gpu_container("2", env=[{"name": "HOME", "value": "/"}, variable])))

    assert finding == Finding(
        rule="gpu-requests",
        severity=Severity.WARNING,
        path="spec.containers[0].env[1]",
        container="main",
        value=value,
        message=f"{variable['name']} should not be set by hand: the node decides which GPUs a container gets",
        remedy=f"remove {variable['name']}",
    )


@cases(
    "container",
    {
        "one-resource": gpu_container("1"),
        "two-resources-of-one-container": (
            {**gpu_container("1"), "resources": {"limits": {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}}}
        ),
    },
)
def test_a_fraction_beside_whole_gpus(container: JSON) -> None:
    [finding] = findings(pod(container, annotations={"gpu-fraction": "0.5"}))

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        'metadata.annotations[gpu-fraction] = "0.5": remove it, or the whole GPUs of container "main"; should not '
        "stand beside them: schedulers that know the annotation refuse such pods, the others ignore it "
        "[gpu-requests]"
    )


def test_a_bad_fraction() -> None:
    assert sentences(pod(gpu_container("1"), annotations={"gpu-fraction": "1.5"})) == [
        'metadata.annotations[gpu-fraction] = "1.5": set the part of one GPU, such as "0.5", or request a whole '
        "GPU in the resources of a container; must be a decimal number between 0 and 1 [gpu-requests]"
    ]


PART: JSON = {"annotations": {"gpu-fraction": "0.5"}}


@cases(
    ("document", "why"),
    {
        "no-scheduler-named": (pod(**PART), "default-scheduler does not share GPUs"),
        "another-scheduler": (pod(**PART, schedulerName="volcano"), "volcano does not share GPUs"),
        "no-scheduler-involved": (
            pod(**PART, schedulerName="kai-scheduler", nodeName="node-1"),
            "nodeName bypasses schedulers",
        ),
    },
)
@pytest.mark.parametrize("phase", [Phase.VALIDATE, Phase.TEMPLATE])
def test_a_fraction_that_no_scheduler_reads(document: JSON, why: str, phase: Phase) -> None:
    [finding] = findings(document, phase=phase)

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        f'metadata.annotations[gpu-fraction] = "0.5": set schedulerName: kai-scheduler and no nodeName, or request a GPU in '
        f"resources.limits; has no effect: {why}, so the pod gets none [gpu-requests]"
    )


def test_the_scheduler_of_a_fraction_may_still_be_set_before_validation() -> None:
    assert findings(pod(**PART), phase=Phase.MUTATE) == []


def test_everything_is_told_at_once() -> None:
    document = pod(
        gpu_container("0.5", "a"),
        container("b", **resources("2", "1")),
        initContainers=[gpu_container("-1", "i")],
        annotations={"gpu-memory": "much"},
    )

    assert [(finding.container, finding.path) for finding in findings(document)] == [
        ("a", LIMIT),
        ("b", f"spec.containers[1].resources.requests[{GPU}]"),
        ("i", f"spec.initContainers[0].resources.limits[{GPU}]"),
        (None, "metadata.annotations[gpu-memory]"),
    ]


@cases(
    ("options", "want"),
    {
        "defaults": (GPURequestsOptions(), []),
        "no-gpus-at-all": (GPURequestsOptions(max_per_container=0), []),
        "all-at-once": (
            GPURequestsOptions(max_per_container=-1, max_per_pod=-2, gpus_per_node=0),
            [
                ("maxPerContainer", "must be 0 or more, or null for no limit, not -1"),
                ("maxPerPod", "must be 0 or more, or null for no limit, not -2"),
                ("gpusPerNode", "must be 1 or more, not 0"),
            ],
        ),
    },
)
def test_options(options: GPURequestsOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want
