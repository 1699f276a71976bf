"""gpu-requests: the most of a resource by number, by name, by class, and what a node of the class has."""

import pytest

from policies.finding import Edit, Finding
from policies.gpus.classes import GPUClass, GPUClasses, NodeLabel
from policies.placement.nodes import NodeFacts, NodeState
from policies.rule import RuleOptions
from policies.rules.gpu_class import GPUClassOptions
from policies.rules.gpu_requests import GPURequestsOptions, check
from tests.builders import CLASSES, JSON, container, context, gpu_class, gpu_container, pod, view
from tests.cases import cases
from tests.policies.rules.requests import GPU, resources, sentences
from webhook.configuration.loader import load_directory

LIMITS = {"*": 2, "nvidia-a100-80gb": 4}
PER_CONTAINER, PER_POD = GPURequestsOptions(max_per_container=LIMITS), GPURequestsOptions(max_per_pod=LIMITS)
LIMIT = "spec.containers[0].resources.limits[nvidia.com/gpu]"


def findings(document: JSON, options: GPURequestsOptions, classes: GPUClasses = CLASSES) -> list[Finding]:
    def options_of(rule_id: str) -> RuleOptions | None:
        return GPUClassOptions() if rule_id == "gpu-class" else None

    return list(check(view(document), options, context(classes=classes, options_of=options_of)))


def asking(count: int, resource: str = "nvidia.com/gpu", gpu_class: str = "") -> JSON:
    selector = {"accelerator": gpu_class} if gpu_class else {}
    return pod(gpu_container(str(count), resource=resource), nodeSelector=selector)


@cases(
    ("most", "resource", "gpu_class"),
    of_the_resource=(2, "amd.com/gpu", ""),
    of_the_class=(4, "nvidia.com/gpu", "nvidia-a100-80gb"),
)
@cases(
    ("options", "message"),
    container=(PER_CONTAINER, "must be at most {} per container by policy"),
    pod=(PER_POD, "must be at most {} per pod by policy"),
)
def test_by_name(options: GPURequestsOptions, message: str, most: int, resource: str, gpu_class: str) -> None:
    assert findings(asking(most, resource, gpu_class), options) == []
    [finding] = findings(asking(most + 1, resource, gpu_class), options)
    assert finding.message == message.format(most)


PROFILES = CLASSES.named({"nvidia-a100-80gb"})[0].mig_profiles
SIZED = GPUClasses(
    (
        gpu_class("h100", "h100", 80, gpus_per_node=8),
        gpu_class("dgx-2", "v100", 32, gpus_per_node=16),
        gpu_class("dgx", "dgx", 80, gpus_per_node=4, mig_profiles=PROFILES),
    )
)

SPREAD = "request nvidia.com/gpu: 8 or less, and spread the work over several pods"
BY_SELECTOR = "must be at most 8: no node of h100 (nodeSelector accelerator=h100) has more"
H100_NODE: JSON = {"nodeSelector": {"accelerator": "h100"}}


@cases(
    ("document", "want"),
    more_than_a_node_has=(
        asking(64, gpu_class="h100"),
        [f'{LIMIT} (container "main") = "64": {SPREAD}; {BY_SELECTOR}'],
    ),
    of_two_containers=(
        pod(gpu_container("5", "a"), gpu_container("4", "b"), **H100_NODE),
        [f"spec: {SPREAD}; the pod needs 9 nvidia.com/gpu at one time: {BY_SELECTOR}"],
    ),
    in_turn=(pod(gpu_container("5", "a"), initContainers=[gpu_container("8", "b")], **H100_NODE), []),
    slices=(
        asking(9, "nvidia.com/mig-3g.40gb", "dgx"),
        [
            'spec.containers[0].resources.limits[nvidia.com/mig-3g.40gb] (container "main") = "9": request '
            "nvidia.com/mig-3g.40gb: 8 or less, and spread the work over several pods; must be at most 8, for a pod runs on "
            "one node: 2 on each dgx, 4 GPUs in a node"
        ],
    ),
    it_may_run_on_nodes_of_no_class=(asking(16), []),
)
def test_cards_of_a_node(document: JSON, want: list[str]) -> None:
    found = [finding.sentence() for finding in findings(document, GPURequestsOptions(), SIZED)]

    assert found == want


def test_a_closed_catalogue_denies_other_profiles() -> None:
    document = asking(1, "nvidia.com/mig-1g.11gb")

    [finding] = findings(document, GPURequestsOptions(known_profiles_only=True))

    assert finding.message == "must be a slice that some GPU class has: none has 1g.11gb"


def test_problems() -> None:
    options = GPURequestsOptions(max_per_pod={"what": 1, "a/b/c": 1})

    assert [path for path, _ in (*options.problems(), *options.class_problems(CLASSES))] == [
        "maxPerPod[a/b/c]",
        "maxPerPod[what]",
    ]


UNEQUAL = f"must equal limits[{GPU}] ({{}}): GPUs cannot be overcommitted"
MOST_4 = f"set {GPU}: 4 or less; must be at most 4 per container by policy"
POD_OF_TWO = pod(gpu_container("5", "a"), gpu_container("4", "b"))


@cases(
    ("document", "want"),
    as_many_as_allowed=(pod(gpu_container("4")), []),
    one_is_one_finding=(pod(gpu_container("9")), [f'{LIMIT} (container "main") = "9": {MOST_4}']),
    a_container_and_the_pod=(
        POD_OF_TWO,
        [
            f'{LIMIT} (container "a") = "5": {MOST_4}',
            f"spec: request {GPU}: 6 or less; the pod needs 9 {GPU} at one time: must be at most 6 per pod by policy",
        ],
    ),
    memory_beside_too_many_cards=(
        pod(
            container("a", resources={"limits": {GPU: "4", "nvidia.com/gpumem": "9000"}}),
            gpu_container("4", "b"),
        ),
        [
            f"spec: request {GPU}: 6 or less; the pod needs 8 {GPU} at one time: must be at most 6 per pod by policy"
        ],
    ),
    the_overhead_alone=(
        pod(container("a"), overhead={GPU: "7"}),
        [
            f"spec: the pod needs 7 {GPU} at one time: must be at most 6 per pod by policy; ask the platform team to raise "
            "gpu-requests.maxPerPod"
        ],
    ),
    init_steps_run_before=(pod(gpu_container("3", "a"), initContainers=[gpu_container("4", "b")]), []),
    each_by_itself=(pod(gpu_container("4", "a", resource="google.com/tpu"), gpu_container("4", "b")), []),
    memory_is_not_counted=(pod(gpu_container("90000", resource="nvidia.com/gpumem")), []),
    what_cannot_be_counted_has_no_total=(
        pod(gpu_container("5", "a"), gpu_container("many", "b")),
        [
            f'{LIMIT} (container "a") = "5": {MOST_4}',
            f'spec.containers[1].resources.limits[{GPU}] (container "b") = "many": set {GPU}: 1; must be a '
            "quantity that Kubernetes can count",
        ],
    ),
)
def test_more_than_the_policy_allows(document: JSON, want: list[str]) -> None:
    assert sentences(document, GPURequestsOptions(max_per_container=4, max_per_pod=6)) == want


def test_where_no_container_alone_can_request_enough_less_each_requests_its_part() -> None:
    document = pod(*(gpu_container("4", name) for name in "abc"))

    [found] = findings(document, GPURequestsOptions(max_per_container=4, max_per_pod=6))

    assert found.choices == (
        tuple(Edit(f"spec.containers[{each}].resources.limits[{GPU}]", 2) for each in range(3)),
    )


MOST_6 = f"request {GPU}: 6 or less; must be at most 6 per pod by policy"


@cases(
    ("asked", "want"),
    limit_alone=(gpu_container("7"), [("limits", "7", MOST_6)]),
    of_equal_ones_the_limit=(container(**resources("7", "7000m")), [("limits", "7", MOST_6)]),
    what_is_larger=(
        container(**resources("2", "8")),
        [
            ("requests", "8", f"set {GPU}: 2; {UNEQUAL.format(2)}"),
            ("requests", "8", MOST_6),
        ],
    ),
    beside_a_limit_of_zero=(
        container(**resources("0", "8")),
        [
            ("requests", "8", f"set {GPU}: 0; {UNEQUAL.format(0)}"),
            ("requests", "8", MOST_6),
        ],
    ),
)
def test_the_limit_per_pod_alone_is_reported_at_the_container(
    asked: JSON, want: list[tuple[str, str, str]]
) -> None:
    at = 'spec.containers[0].resources.{}[nvidia.com/gpu] (container "main") = "{}": {}'

    found = sentences(pod(asked), GPURequestsOptions(max_per_pod=6))

    assert found == [at.format(*each) for each in want]


def test_the_limit_per_container_is_of_the_larger_amount() -> None:
    found = sentences(pod(container(**resources("2", "5"))), GPURequestsOptions(max_per_container=4))

    assert found[1:] == [f'{LIMIT.replace("limits", "requests")} (container "main") = "5": {MOST_4}']


ANY = GPURequestsOptions()
MAX_KNOWN = (
    "request nvidia.com/gpu: {0} or less, and spread the work over several pods; {1}should be at most {0}: a pod runs on one "
    "node, and the largest machines have no more"
)


@cases(
    ("document", "options", "want"),
    one_container=(
        pod(gpu_container("64")),
        ANY,
        [f'{LIMIT} (container "main") = "64": {MAX_KNOWN.format(16, "")}'],
    ),
    two_containers=(
        pod(gpu_container("12", "a"), gpu_container("12", "b")),
        ANY,
        ["spec: " + MAX_KNOWN.format(16, "the pod needs 24 nvidia.com/gpu at one time: ")],
    ),
    larger_machines=(pod(gpu_container("20")), GPURequestsOptions(gpus_per_node=32), []),
    partitions=(pod(gpu_container("64", resource="amd.com/gpu")), ANY, []),
    shares=(
        pod(gpu_container("64", resource="nvidia.com/gpu.shared")),
        ANY,
        ["should be 1: several time-sliced shares"],
    ),
    a_limit_of_the_policy=(
        pod(gpu_container("64")),
        GPURequestsOptions(max_per_pod=8),
        ["must be at most 8 per pod by policy"],
    ),
)
def test_more_gpus_than_any_machine_has(document: JSON, options: GPURequestsOptions, want: list[str]) -> None:
    found = sentences(document, options)

    assert len(found) == len(want)
    assert all(part in sentence for part, sentence in zip(want, found, strict=True))


@pytest.mark.parametrize(
    ("resource", "amount", "is_too_much"),
    [
        ("koordinator.sh/gpu", 200, False),
        ("koordinator.sh/gpu-core", 200, False),
        ("tencent.com/vcuda-core", 200, False),
        ("baidu.com/cgpu_core", 800, False),
        ("huawei.com/npu-core", 200, False),
        ("nvidia.com/gpucores", 200, True),
        ("amd.com/gpucores", 200, True),
        ("hygon.com/dcucores", 101, True),
        ("huawei.com/Ascend910B3-core", 101, True),
        ("cambricon.com/mlu370.smlu.vcore", 101, True),
        ("metax-tech.com/vcore", 101, True),
        ("iluvatar.ai/BI-V100.vCore", 101, True),
        ("enflame.com/vgcu-percentage", 101, True),
    ],
)
def test_percent_are_of_several_cards_where_no_resource_counts_them(
    resource: str, amount: int, is_too_much: bool
) -> None:
    mapping = load_directory(None).resource_mapping
    document = view(asking(amount, resource))

    found = list(check(document, GPURequestsOptions(), context(resource_mapping=mapping)))

    message = "must be at most 100 percent of a GPU"
    assert [each.message for each in found] == ([message] if is_too_much else [])


QUARTERS = gpu_class("quarters", "a100", 40, equivalents={"nvidia.com/gpu": "1/4"})
SEVERAL_SHARES = (
    "should be 1: several time-sliced shares give no more of a GPU, and its device plugin may reject them"
)
WHOLE = gpu_class("whole", "a100", 40)
PARTITIONS = gpu_class(
    "partitions", "mi300x", 192, resource="amd.com/gpu", equivalents={"amd.com/gpu": "1/8"}
)


@cases(
    ("document", "classes", "warned"),
    by_name=(asking(10, "nvidia.com/gpu.shared"), (WHOLE,), "10"),
    by_class=(asking(8, gpu_class="quarters"), (QUARTERS, WHOLE), "8"),
    of_each_class_that_the_pod_can_get=(asking(8), (QUARTERS,), "8"),
    one_share=(asking(1, gpu_class="quarters"), (QUARTERS,), ""),
    whole_card_resources=(asking(8, gpu_class="whole"), (QUARTERS, WHOLE), ""),
    perhaps_whole_cards=(asking(8), (QUARTERS, WHOLE), ""),
    partitions_of_which_several_are_more=(asking(8, "amd.com/gpu", "partitions"), (PARTITIONS,), ""),
)
def test_several_shares_are_no_more_of_a_card(
    document: JSON, classes: tuple[GPUClass, ...], warned: str
) -> None:
    found = findings(document, GPURequestsOptions(), GPUClasses(classes))

    assert [(each.value, each.message, each.advice.rpartition(": ")[2]) for each in found] == (
        [(warned, SEVERAL_SHARES, "1")] if warned else []
    )


PRODUCT, STRATEGY = "nvidia.com/gpu.product", "nvidia.com/gpu.sharing-strategy"


def on_nodes(*labels: JSON, amount: int = 16) -> NodeFacts:
    states = frozenset(
        {NodeState(resources=frozenset({"nvidia.com/gpu"}), amounts=(("nvidia.com/gpu", amount),))}
    )
    sets = {tuple(sorted(each.items())): states for each in labels}
    return NodeFacts(keys=frozenset({PRODUCT, STRATEGY}), label_sets=frozenset(sets), states=sets)


OF_SHARED = gpu_class(
    "t4-shared", "t4", 16, node_labels=(NodeLabel(key=PRODUCT, values=("Tesla-T4-SHARED",)),)
)


@cases(
    ("nodes", "amount", "warned"),
    time_sliced=(on_nodes({STRATEGY: "time-slicing"}), 2, True),
    by_mps=(on_nodes({STRATEGY: "mps"}), 20, True),
    by_product=(on_nodes({PRODUCT: "Tesla-T4-SHARED"}), 2, True),
    one_share=(on_nodes({STRATEGY: "mps"}), 1, False),
    whole=(on_nodes({PRODUCT: "Tesla-T4", STRATEGY: "none"}), 2, False),
    whole_on_other_nodes=(on_nodes({STRATEGY: "mps"}, {STRATEGY: "none"}), 2, False),
    of_a_class=(None, 2, True),
)
def test_nodes_and_classes_that_share_cards_under_their_name(
    nodes: NodeFacts | None, amount: int, warned: bool
) -> None:
    selector = {} if nodes else {PRODUCT: "Tesla-T4-SHARED"}
    document = pod(gpu_container(str(amount)), nodeSelector=selector)
    known = context(classes=GPUClasses((OF_SHARED,)), nodes=nodes)

    found = [each.message for each in check(view(document), GPURequestsOptions(), known)]

    assert found == ([SEVERAL_SHARES] if warned else [])
