"""gpu-requests: GPU requests are whole, equal their limits, and can be met; everything else is reported at once."""

from typing import Any

import pytest

from policies.finding import Edit, Finding, Severity, one_choice
from policies.gpus.mapping_spec import Measure, ResourceMappingSpec, ResourcePattern
from policies.gpus.resource_mapping import ResourceMapping
from policies.placement.nodes import NodeFacts
from policies.pods.patch import PodPatch
from policies.rule import Phase
from policies.rules.gpu_isolation import DEVICE_VARIABLE
from policies.rules.gpu_requests import GPURequestsOptions, check, mutate
from tests.builders import JSON, apply, container, context, gpu_container, operations, pod, view
from tests.cases import cases
from tests.policies.rules.requests import GPU, findings, resources, sentences
from webhook.configuration.loader import load_objects

LIMIT = f"spec.containers[0].resources.limits[{GPU}]"
A100_80 = {"accelerator": "nvidia-a100-80gb"}


def test_more_than_kubernetes_counts() -> None:
    assert sentences(pod(gpu_container("1e16")))[0] == (
        f'{LIMIT} (container "main") = "1e16": set {GPU}: 1; must be at most 9223372036854775: Kubernetes counts thousandths '
        "in 64 bits"
    )


def request_alone(request: Any, resource: str = GPU) -> JSON:
    return container(resources={"requests": {resource: request}})


@cases(
    "document",
    no_gpu=pod(),
    limit_alone=pod(gpu_container("1")),
    zero_is_no_request=pod(gpu_container("0")),
    a_thousand_thousandths_are_one=pod(gpu_container("1000m")),
    rounded_up_to_a_whole_one=pod(gpu_container("0.99999")),
    equal_in_other_words=pod(container(**resources("1", "1000m"))),
    slices=pod(gpu_container("4", resource="nvidia.com/mig-1g.10gb")),
    one_share=pod(gpu_container("1", resource="nvidia.com/gpu.shared")),
    virtual_gpus_are_not_time_slices=(pod(gpu_container("2", resource="volcano.sh/vgpu-number"))),
    memory_has_no_maximum=pod(gpu_container("30000", resource="nvidia.com/gpumem")),
    all_of_a_gpu=pod(gpu_container("100", resource="nvidia.com/gpucores")),
    processors_may_be_shared=pod(container(resources={"limits": {"cpu": "500m"}})),
    implicit_class_request_alone=(pod(request_alone("1", "deviceclass.resource.kubernetes.io/big"))),
    fraction=pod(annotations={"gpu-fraction": "0.5"}, schedulerName="kai-scheduler"),
    variable_without_a_gpu=(pod(container(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]))),
)
def test_fine_as_it_is(document: JSON) -> None:
    assert sentences(document, GPURequestsOptions(max_per_container=1000, max_per_pod=1000)) == []


NO_LIMIT = "must have an equal limit: GPUs cannot be overcommitted"
SMALLER = f"{GPU}.shared: 1 (a time-sliced share); must be a whole number of GPUs, not"
NOT_A_QUANTITY = f"set {GPU}: 1; must be a quantity that Kubernetes can count"


@cases(
    ("quantity", "shown", "want"),
    half=(
        "500m",
        '"500m" (0.5)',
        f"set {GPU}: 1, or nvidia.com/mig-3g.20gb: 1 (a slice), or {SMALLER} half of one",
    ),
    quarter_as_a_json_number=(
        0.25,
        '"0.25"',
        f"set {GPU}: 1, or nvidia.com/mig-1g.20gb: 1 (a slice), or {SMALLER} a quarter of one",
    ),
    three_quarters=(
        "750m",
        '"750m" (0.75)',
        f"set {GPU}: 1, or nvidia.com/mig-7g.80gb: 1 (a slice), or {SMALLER} three quarters of one",
    ),
    a_third=(
        "0.333",
        '"0.333"',
        f"set {GPU}: 1, or nvidia.com/mig-3g.20gb: 1 (a slice), or {SMALLER} 0.333 of one",
    ),
    and_a_half=("1.5", '"1.5"', f"set {GPU}: 1 or 2; must be a whole number of GPUs, not 1.5 of them"),
    negative=("-1n", '"-1n"', f"set {GPU}: 1, or remove {GPU}; must not be negative"),
    no_number=("one", '"one"', NOT_A_QUANTITY),
    quoted_in_part=("9" * 300, f'"{"9" * 60}…"', NOT_A_QUANTITY),
)
def test_a_number_that_no_node_could_give(quantity: Any, shown: str, want: str) -> None:
    found = sentences(pod(gpu_container(quantity)))

    assert found == [f'{LIMIT} (container "main") = {shown}: {want}']


def test_a_request_without_a_limit_gets_both_because_one_alone_is_denied() -> None:
    [finding] = findings(pod(request_alone("1.5")))

    assert finding.sentence() == (
        f'spec.containers[0].resources.requests[{GPU}] (container "main") = "1.5": set {GPU}: 1 or 2; must be a whole '
        "number of GPUs, not 1.5 of them"
    )
    assert finding.choices == tuple(
        (Edit(LIMIT, amount), Edit(f"spec.containers[0].resources.requests[{GPU}]", amount))
        for amount in (1, 2)
    )


def test_which_of_several_containers_gets_less_is_for_their_author() -> None:
    containers = [{**gpu_container("8"), "name": "a"}, {**gpu_container("2"), "name": "b"}]

    [finding] = findings(pod(*containers), options=GPURequestsOptions(max_per_pod=8))

    assert finding.sentence() == (
        f"spec: request {GPU}: 8 or less; the pod needs 10 {GPU} at one time: must be at most 8 per pod by policy"
    )
    assert (len(finding.choices), finding.fix) == (1, ())


@cases(
    ("resource", "quantity", "message", "remedy"),
    percentage=("nvidia.com/gpucores", "101", "must be at most 100 percent of a GPU", "100 or less"),
    implicit_device_class=(
        "deviceclass.resource.kubernetes.io/big",
        "0.5",
        "must be a whole number of accelerators, not half of one",
        "1",
    ),
    one_and_a_half=("nvidia.com/gpu", "1.5", "must be a whole number of GPUs, not 1.5 of them", "1 or 2"),
    amd=("amd.com/gpu", "0.5", "must be a whole number of GPUs, not half of one", "1"),
    several_shares=(
        "nvidia.com/gpu.shared",
        "3",
        "should be 1: several time-sliced shares give no more of a GPU, and its device plugin may reject them",
        "1",
    ),
)
def test_other_resources(resource: str, quantity: str, message: str, remedy: str) -> None:
    [finding] = findings(pod(gpu_container(quantity, resource=resource)))

    assert (finding.message, finding.advice) == (message, f"set {resource}: {remedy}")
    assert [str(edits[0].value) for edits in finding.choices] == remedy.removesuffix(" or less").split(" or ")


@cases(
    ("measure", "of"),
    devices=(Measure.DEVICES, "accelerators, not 1.5 of them"),
    cores=(Measure.CORES, "accelerator cores"),
    shares=(Measure.SHARES, "shares of a GPU"),
    slices=(Measure.SLICES, "slices of a GPU"),
    gib=(Measure.MEMORY_GIB, "GiB of GPU memory"),
    mib=(Measure.MEMORY_MIB, "MiB of GPU memory"),
    bytes=(Measure.MEMORY_BYTES, "bytes of GPU memory"),
    percents_of_memory=(Measure.MEMORY_PERCENT, "percents of GPU memory"),
    percents=(Measure.CORE_PERCENT, "percents of a GPU"),
    thousandths=(Measure.CORE_MILLIS, "thousandths of a GPU"),
)
def test_a_part_of_what_is_counted(measure: Measure, of: str) -> None:
    pattern = ResourcePattern(pattern="example.com/mig-*", measure=measure)
    known = context(resource_mapping=ResourceMapping((ResourceMappingSpec(resources=(pattern,)),)))
    document = pod(gpu_container("1.5", resource="example.com/mig-1g.10gb"))

    messages = [finding.message for finding in check(view(document), GPURequestsOptions(), known)]

    assert messages == [f"must be a whole number of {of}"]


@cases(
    ("limit", "request_", "want"),
    copied_by_defaulting=("500m", "500m", [LIMIT]),
    copied_and_rewritten=("0.5", "500m", [LIMIT]),
    copied_nonsense=("one", "one", [LIMIT]),
    only_the_request_is_broken=("1", "500m", [LIMIT.replace("limits", "requests")]),
    each_broken_in_its_own_way=("0.5", "0.25", [LIMIT, LIMIT.replace("limits", "requests")]),
)
def test_one_cause_is_one_finding(limit: str, request_: str, want: list[str]) -> None:
    assert [finding.path for finding in findings(pod(container(**resources(limit, request_))))] == want


@pytest.mark.parametrize(("limit", "request_"), [("2", "1"), (1, 2), ("0", "1"), ("2", None)])
def test_request_and_limit_that_differ(limit: Any, request_: Any) -> None:
    [finding] = findings(pod(container(**resources(limit, request_))))

    assert finding.sentence() == (
        f'spec.containers[0].resources.requests[{GPU}] (container "main") = '
        f'"{"null" if request_ is None else request_}": set {GPU}: {limit}; must equal '
        f"limits[{GPU}] ({limit}): GPUs cannot be overcommitted"
    )


@cases(
    ("options", "phase", "want"),
    refused=(GPURequestsOptions(), Phase.MUTATE, [(Severity.DENIAL, NO_LIMIT)]),
    refused_in_templates=(GPURequestsOptions(), Phase.TEMPLATE, [(Severity.DENIAL, NO_LIMIT)]),
    to_be_completed=(GPURequestsOptions(complete_limits=True), Phase.MUTATE, []),
    only_in_pods=(
        GPURequestsOptions(complete_limits=True),
        Phase.TEMPLATE,
        [(Severity.WARNING, "must have an equal limit in a template: completeLimits adds it to pods only")],
    ),
)
def test_request_without_limit(
    options: GPURequestsOptions, phase: Phase, want: list[tuple[Severity, str]]
) -> None:
    found = findings(pod(request_alone("2")), options, phase)

    assert [(finding.severity, finding.message) for finding in found] == want
    assert {finding.remedy for finding in found} <= {"add nvidia.com/gpu: 2 to resources.limits"}


COMPLETE = GPURequestsOptions(complete_limits=True)


@cases(
    ("document", "want"),
    limits_are_made=(
        pod(request_alone("2")),
        [{"op": "add", "path": "/spec/containers/0/resources/limits", "value": {GPU: "2"}}],
    ),
    beside_other_limits=(
        pod(container(resources={"limits": {"cpu": "1"}, "requests": {GPU: 1, "nvidia.com/gpumem": "1"}})),
        [
            {"op": "add", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": 1},
            {
                "op": "add",
                "path": "/spec/containers/0/resources/limits/nvidia.com~1gpumem",
                "value": "1",
            },
        ],
    ),
    init_container=(
        pod(initContainers=[request_alone("1")]),
        [{"op": "add", "path": "/spec/initContainers/0/resources/limits", "value": {GPU: "1"}}],
    ),
    what_is_refused_stays=(pod(request_alone("500m")), []),
    nonsense_stays=(pod(request_alone("many")), []),
    negative_stays=(pod(request_alone("-1")), []),
    a_limit_is_never_changed=(pod(container(**resources("2", "1"))), []),
    implicit_class_needs_none=(pod(request_alone("1", "deviceclass.resource.kubernetes.io/big")), []),
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
    the_least=({"gpu-fraction": "0.01"}, []),
    less_than_is_counted=(
        {"gpu-fraction": "0.000000001"},
        [
            'metadata.annotations[gpu-fraction] = "0.000000001": set "0.01" or more; counts as 0.01: schedulers treat '
            "a smaller fraction as 0, and enforce no limit"
        ],
    ),
)
def test_parts_of_a_gpu_that_are_less_than_is_counted(annotations: dict[str, str], want: list[str]) -> None:
    assert sentences(pod(annotations=annotations, schedulerName="kai-scheduler")) == want


@cases(
    ("resource", "quantity", "selector", "message"),
    not_this=("nvidia.com/mig-1g.5gb", "1", A100_80, "to which the pod is pinned: it has no 1g.5gb"),
    vendor=("amd.com/gpu", "1", A100_80, "must be nvidia.com/gpu: the pod is pinned"),
    too_many=(
        "nvidia.com/mig-1g.10gb",
        "57",
        A100_80,
        "must be at most 56, for a pod runs on one node: 7 on each nvidia-a100-80gb",
    ),
)
def test_what_no_node_has(resource: str, quantity: str, selector: dict[str, str], message: str) -> None:
    document = pod(gpu_container(quantity, resource=resource), nodeSelector=selector)

    [finding] = findings(document, GPURequestsOptions(gpus_per_node=8))

    assert message in finding.message
    assert finding.path == f"spec.containers[0].resources.limits[{resource}]"


def test_of_what_must_go_nothing_else_is_said() -> None:
    both = {"limits": {"amd.com/gpu": 8}, "requests": {"amd.com/gpu": 8, GPU: 1}}

    assert sentences(pod(container(resources=both), nodeSelector={"accelerator": "amd-mi300x"})) == [
        f'spec.containers[0].resources.requests[{GPU}] (container "main") = "1": remove {GPU}; must be amd.com/gpu: the pod is '
        "pinned to amd-mi300x (nodeSelector accelerator=amd-mi300x)"
    ]


@cases(("gpus", "is_reported"), as_many_as_the_largest_machine_has=("16", False), one_more=("17", True))
def test_more_than_any_machine_has(gpus: str, is_reported: bool) -> None:
    assert bool(findings(pod(gpu_container(gpus)))) is is_reported


@cases(
    ("limits", "said"),
    cards_and_slices=({GPU: 1, "nvidia.com/mig-1g.10gb": 1}, f"{GPU} and nvidia.com/mig-1g.10gb"),
    cards_and_shares=({GPU: 1, "nvidia.com/gpu.shared": 1}, f"{GPU} and nvidia.com/gpu.shared"),
    of_two_vendors=({GPU: 1, "amd.com/gpu": 1}, f"amd.com/gpu and {GPU}"),
    slices_of_two_sizes=({"nvidia.com/mig-1g.10gb": 1, "nvidia.com/mig-3g.40gb": 1}, ""),
    none_of_one=({GPU: 1, "nvidia.com/mig-1g.10gb": 0}, ""),
    one_is_misspelt=({GPU: 1, "amd.com/gpus": 1}, ""),
    a_device_class=({GPU: 1, "deviceclass.resource.kubernetes.io/gpu": 1}, ""),
)
def test_kinds_of_gpus_that_few_nodes_have_together(limits: dict[str, int], said: str) -> None:
    document = pod(container(resources={"limits": limits}))
    mapping = load_objects([]).resource_mapping
    found = check(view(document), GPURequestsOptions(), context(resource_mapping=mapping))

    want = f"the pod stays pending unless a node has {said} together, which few have"
    remedy = "request only one of them, or each in a pod of its own"
    mixed = [each for each in found if each.path == "spec"]
    assert [each.sentence() for each in mixed] == ([f"spec: {remedy}; {want}"] if said else [])
    limit = "spec.containers[0].resources.limits[{}]"
    assert [each.choices for each in mixed] == (
        [tuple((Edit(limit.format(name)),) for name in reversed(said.split(" and ")))] if said else []
    )


def test_what_few_nodes_have_together_is_said_of_the_nodes_where_they_are_known() -> None:
    document = pod(container(resources={"limits": {GPU: 1, "amd.com/gpu": 1}}))

    assert list(check(view(document), GPURequestsOptions(), context(nodes=NodeFacts(keys=())))) == []


def test_zero_of_what_no_node_has_is_no_request() -> None:
    assert sentences(pod(gpu_container("0", resource="nvidia.com/mig-1g.11gb"))) == []


@cases(
    ("variable", "value"),
    indices=({"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}, "0,1"),
    hidden_though_requested=({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, "void"),
    from_elsewhere=(
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        None,
    ),
)
def test_gpus_chosen_by_hand(variable: JSON, value: str | None) -> None:
    [finding] = findings(pod(gpu_container("2", env=[{"name": "HOME", "value": "/"}, variable])))

    assert finding == Finding(
        reason=DEVICE_VARIABLE,
        severity=Severity.WARNING,
        path="spec.containers[0].env[1]",
        container="main",
        value=value,
        message=f"{variable['name']} should not be set by hand: the node decides which GPUs a container gets",
        choices=one_choice(Edit("spec.containers[0].env[1]")),
        remedy=f"remove {variable['name']}",
    )


@cases(
    "container",
    one_resource=gpu_container("1"),
    two_resources_of_one_container=(
        {**gpu_container("1"), "resources": {"limits": {"nvidia.com/gpu": "1", "google.com/tpu": "1"}}}
    ),
)
def test_a_fraction_beside_whole_gpus(container: JSON) -> None:
    [finding] = findings(pod(container, annotations={"gpu-fraction": "0.5"}))

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        'metadata.annotations[gpu-fraction] = "0.5": remove it, or the whole GPUs of container "main"; should not '
        "stand beside whole GPUs: schedulers that know the annotation reject such pods, the others ignore it"
    )


PART: JSON = {"annotations": {"gpu-fraction": "0.5"}}


@cases(
    ("document", "why"),
    no_scheduler_named=(pod(**PART), "default-scheduler does not share GPUs"),
    another_scheduler=(pod(**PART, schedulerName="volcano"), "volcano does not share GPUs"),
    no_scheduler_involved=(
        pod(**PART, schedulerName="kai-scheduler", nodeName="node-1"),
        "nodeName bypasses schedulers",
    ),
)
@pytest.mark.parametrize("phase", [Phase.VALIDATE, Phase.TEMPLATE])
def test_a_fraction_that_no_scheduler_reads(document: JSON, why: str, phase: Phase) -> None:
    [finding] = findings(document, phase=phase)

    assert finding.severity is Severity.WARNING
    assert finding.sentence() == (
        f'metadata.annotations[gpu-fraction] = "0.5": set schedulerName: kai-scheduler and no nodeName, or request a GPU in '
        f"resources.limits; has no effect: {why}, so the pod gets none"
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
    defaults=(GPURequestsOptions(), []),
    no_gpus_at_all=(GPURequestsOptions(max_per_container=0), []),
    all_at_once=(
        GPURequestsOptions(max_per_container=-1, max_per_pod=-2, gpus_per_node=0),
        [
            ("maxPerContainer", "must be 0 or more, or null for no limit, not -1"),
            ("maxPerPod", "must be 0 or more, or null for no limit, not -2"),
            ("gpusPerNode", "must be 1 or more, not 0"),
        ],
    ),
)
def test_options(options: GPURequestsOptions, want: list[tuple[str, str]]) -> None:
    assert list(options.problems()) == want
