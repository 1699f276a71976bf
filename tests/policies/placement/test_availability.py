"""Whether the classes on which a pod can land have what it asks for."""

from fractions import Fraction

from policies.gpus.classes import GPUClasses
from policies.placement.availability import Availability
from policies.placement.class_options import ClassOptions
from policies.placement.hardware import kept_label_keys
from policies.placement.nodes import Labels, NodeFacts, NodeGroup, NodeState
from policies.pods.annotations import GPU_CLASS
from policies.rules.gpu_requests import AmountLimits, GPURequestsOptions
from tests.builders import CLASSES, JSON, RESOURCE_MAPPING, gpu_class, gpu_container, pod, view
from tests.cases import cases
from tests.policies.placement.availabilities import (
    A100,
    A100_40,
    A100_80,
    ANYWHERE,
    T4,
    Said,
    availability,
    denial,
    resource,
    said,
    warning,
)
from webhook.configuration.loader import load_objects

BY_80 = "nvidia-a100-80gb (nodeSelector accelerator=nvidia-a100-80gb), to which the pod is pinned: it"
BY_T4 = "nvidia-t4 (nodeSelector accelerator=nvidia-t4), to which the pod is pinned: it"
OR_PIN = ", or pin the pod to nvidia-a100-40gb, which has nvidia.com/mig-1g.5gb"
NEAR_11 = "request nvidia.com/mig-1g.10gb or nvidia.com/mig-1g.5gb"
UNLISTED = warning("should be a slice that some GPU class has: none lists 1g.11gb", NEAR_11)


@cases(
    ("selector", "profile", "want"),
    some_class_has_it=(ANYWHERE, "1g.10gb", None),
    the_pinned_class_has_it=(A100_80, "1g.10gb", None),
    one_of_the_pinned_family_has_it=(A100, "1g.5gb", None),
    resource_names_have_no_plus=(A100_40, "1g.5gb.me", None),
    a_selector_that_pins_nothing=({"accelerator": "unknown"}, "1g.10gb", None),
    nobody_has_it=(ANYWHERE, "1g.11gb", UNLISTED),
    only_63_characters_are_compared=(
        ANYWHERE,
        f"{'z' * 62}11",
        warning(
            f"should be a slice that some GPU class has: none lists {'z' * 62}11",
            "request nvidia.com/mig-1g.5gb or nvidia.com/mig-1g.20gb",
        ),
    ),
    another_class_has_it=(
        A100_80,
        "1g.5gb",
        denial(
            f"must be a slice of {BY_80} has no 1g.5gb",
            f"request nvidia.com/mig-1g.20gb or nvidia.com/mig-1g.10gb{OR_PIN}",
        ),
    ),
    pinned_and_nobody_has_it=(
        A100_80,
        "9g.99gb",
        warning(
            f"should be a slice of {BY_80} lists no 9g.99gb",
            "request nvidia.com/mig-7g.80gb or nvidia.com/mig-3g.40gb",
        ),
    ),
    pinned_to_a_class_that_lists_no_slices=(
        T4,
        "1g.5gb",
        warning(
            f"should be a slice of {BY_T4} lists no 1g.5gb",
            f"request whole GPUs (nvidia.com/gpu){OR_PIN}",
        ),
    ),
)
def test_slices_that_no_class_has(selector: dict[str, str], profile: str, want: Said | None) -> None:
    assert said(availability(selector).unknown_slice(resource(f"nvidia.com/mig-{profile}"))) == want


def sliced(*profiles: str, pools: tuple[NodeGroup, ...] = ()) -> NodeFacts:
    """Return a node for each of the profiles, labelled as GPU Feature Discovery does, one without slices, and the pools."""
    whole = (("nvidia.com/gpu.count", "8"), ("nvidia.com/mig-1g.11gb.product", "A100"))
    label_sets = frozenset({whole, *(((f"nvidia.com/mig-{each}.count", "7"),) for each in profiles)})
    return NodeFacts(keys=kept_label_keys(CLASSES.label_keys, ()), label_sets=label_sets, pools=pools)


ONLY_10 = "request nvidia.com/mig-1g.10gb"
NOWHERE = denial("must be a slice that some node has: none has 1g.11gb", ONLY_10)
CLOSED = denial("must be a slice that some GPU class has: none has 1g.11gb", NEAR_11)
ON_DEMAND = ClassOptions(autoscaled_classes=("nvidia-a100",))
POOLS = (NodeGroup({}, pool="gpus"),)


@cases(
    ("nodes", "use", "known_profiles_only", "want"),
    the_catalogue_is_closed=(None, ClassOptions(), True, CLOSED),
    no_node_has_it=(sliced("1g.10gb"), ClassOptions(), False, NOWHERE),
    closed_and_no_node_has_it=(
        sliced("1g.10gb"),
        ClassOptions(),
        True,
        denial("must be a slice that some GPU class has: none has 1g.11gb", ONLY_10),
    ),
    a_node_has_it=(sliced("1g.10gb", "1g.11gb"), ClassOptions(), False, None),
    no_node_says_which_slices_it_has=(sliced(), ClassOptions(), False, UNLISTED),
    nodes_to_come=(sliced("1g.10gb", pools=POOLS), ClassOptions(), False, UNLISTED),
    nodes_to_come_by_the_policy=(sliced("1g.10gb"), ON_DEMAND, False, UNLISTED),
)
def test_profiles_that_no_class_lists(
    nodes: NodeFacts | None, use: ClassOptions, known_profiles_only: bool, want: Said | None
) -> None:
    found = Availability(view(pod()), CLASSES, use, nodes)

    assert (
        said(found.unknown_slice(resource("nvidia.com/mig-1g.11gb"), known_profiles_only=known_profiles_only))
        == want
    )


PENDING = warning("no schedulable node has nvidia.com/mig-1g.5gb now: the pod stays pending", ONLY_10)


@cases(
    ("nodes", "use", "want"),
    no_node_has_it=(sliced("1g.10gb"), ClassOptions(), PENDING),
    a_node_has_it=(sliced("1g.10gb", "1g.5gb"), ClassOptions(), None),
    no_node_says_which_slices_it_has=(sliced(), ClassOptions(), None),
    nodes_are_not_known=(None, ClassOptions(), None),
    nodes_to_come=(sliced("1g.10gb", pools=POOLS), ClassOptions(), None),
)
def test_a_profile_that_a_class_lists_and_no_node_has(
    nodes: NodeFacts | None, use: ClassOptions, want: Said | None
) -> None:
    found = Availability(view(pod()), CLASSES, use, nodes)

    assert said(found.no_node_has(resource("nvidia.com/mig-1g.5gb"), RESOURCE_MAPPING)) == want


@cases(
    ("name", "is_said"),
    one_that_rule_ineffective_fields_corrects=("nvidia.com/gpus", False),
    a_slice_without_its_dash=("nvidia.com/mig1g.5gb", False),
    a_slice_without_its_dot=("nvidia.com/mig-3g40gb", False),
    one_of_another_vendor=("amd.com/gpu", True),
)
def test_a_misspelt_name_is_said_once(name: str, is_said: bool) -> None:
    mapping = load_objects([]).resource_mapping
    known = mapping.resource(name)
    assert known is not None
    limits = AmountLimits(
        Availability(view(pod()), CLASSES, nodes=SHARING), mapping, GPURequestsOptions(gpus_per_node=8)
    )
    assert (limits.check_resource(known, 1) is not None) is is_said


@cases(
    ("selector", "want"),
    anywhere=(
        ANYWHERE,
        warning(
            "no schedulable node has nvidia.com/gpu now, but amd.com/gpu or nvidia.com/gpu.shared: the pod stays pending",
            "request amd.com/gpu or nvidia.com/gpu.shared",
        ),
    ),
    of_the_vendor_of_its_class=(
        T4,
        warning(
            "no schedulable node has nvidia.com/gpu now, but nvidia.com/gpu.shared: the pod stays pending",
            "request nvidia.com/gpu.shared",
        ),
    ),
)
def test_what_nodes_have_instead_of_whole_gpus(selector: dict[str, str], want: Said) -> None:
    has = NodeState(resources=frozenset({"nvidia.com/gpu.shared", "amd.com/gpu", "example.com/dongle"}))
    nodes = NodeFacts(keys=(), states={(): frozenset({has})})
    found = Availability(view(pod(nodeSelector=selector)), CLASSES, nodes=nodes)

    assert said(found.no_node_has(resource("nvidia.com/gpu"), RESOURCE_MAPPING)) == want


WITHOUT_DEVICES: dict[Labels, frozenset[NodeState]] = {
    (("accelerator", "nvidia-t4"),): frozenset({NodeState()})
}


@cases(
    ("nodes", "want"),
    of_a_gpu_node=(
        NodeFacts(keys=(), states=WITHOUT_DEVICES),
        warning("no schedulable node has nvidia.com/gpu now: the pod stays pending", ""),
    ),
    of_a_gpu_node_beside_a_pool=(NodeFacts(keys=(), states=WITHOUT_DEVICES, pools=POOLS), None),
    of_no_gpu_node=(NodeFacts(keys=(), states={(): frozenset({NodeState()})}), None),
    of_nodes_whose_devices_are_not_known=(NodeFacts(keys=(), label_sets=frozenset(WITHOUT_DEVICES)), None),
)
def test_no_node_has_any_device(nodes: NodeFacts, want: Said | None) -> None:
    """A cluster without GPU nodes may get them; where they exist, their device plugin does not run."""
    found = Availability(view(pod()), CLASSES, nodes=nodes)

    assert said(found.no_node_has(resource("nvidia.com/gpu"), RESOURCE_MAPPING)) == want


def test_what_nodes_have_instead_is_offered_only_beside_what_the_pod_also_requests() -> None:
    having = ({"nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"}, {"nvidia.com/gpu"})
    states = frozenset(NodeState(resources=frozenset(each)) for each in having)
    both = pod(
        *(
            gpu_container(resource=f"nvidia.com/{each}", name=each[:3])
            for each in ("gpu.shared", "mig-1g.10gb")
        )
    )
    found = Availability(view(both), CLASSES, nodes=NodeFacts(keys=(), states={(): states}))

    complaint = found.no_node_has(resource("nvidia.com/gpu.shared"), RESOURCE_MAPPING)

    assert complaint is not None
    assert complaint.remedy == "request nvidia.com/mig-1g.10gb or nvidia.com/mig-3g.40gb"


SHARING = NodeFacts(
    keys=(), states={(): frozenset({NodeState(resources=frozenset({"nvidia.com/gpu.shared"}))})}
)


@cases(
    ("nodes", "want"),
    nodes_are_not_known=(
        None,
        ["nvidia.com/mig-3g.20gb: 1 (a slice)", "nvidia.com/gpu.shared: 1 (a time-sliced share)"],
    ),
    only_what_a_node_has=(sliced("7g.80gb"), ["nvidia.com/mig-7g.80gb: 1 (a slice)"]),
    only_what_a_schedulable_node_has=(SHARING, ["nvidia.com/gpu.shared: 1 (a time-sliced share)"]),
    no_node_has_a_slice_that_is_large_enough=(sliced("1g.10gb"), []),
)
def test_a_part_of_a_gpu_is_offered_where_a_node_has_it(nodes: NodeFacts | None, want: list[str]) -> None:
    found = Availability(view(pod()), CLASSES, nodes=nodes)

    assert smaller(found, "nvidia.com/gpu", Fraction(1, 2)) == want


def smaller(found: Availability, name: str, part: Fraction) -> list[str]:
    ways = found.smaller_resources(resource(name), part, RESOURCE_MAPPING)
    return [f"{each}: 1 ({what})" for each, what in ways.items()]


def test_an_open_and_a_closed_catalogue_have_answers_of_their_own() -> None:
    found, sliced_gpu = Availability(view(pod()), CLASSES), resource("nvidia.com/mig-1g.11gb")

    assert [said(found.unknown_slice(sliced_gpu, known_profiles_only=each)) for each in (False, True)] == [
        UNLISTED,
        CLOSED,
    ]


ONLY_T4, BY_DEFAULT = ClassOptions(allowed=("nvidia-t4",)), ClassOptions(default="nvidia-t4")
ONLY_40 = ClassOptions(default="nvidia-t4", allowed=("nvidia-a100-40gb",))
NAMED = {"annotations": {GPU_CLASS: "nvidia-a100-80gb"}}
SHARE = "nvidia.com/gpu.shared: 1 (a time-sliced share)"
ANY, THIRD = ClassOptions(), Fraction(1, 3)


def slice_of(profile: str) -> str:
    return f"nvidia.com/mig-{profile}: 1 (a slice)"


@cases(
    ("spec", "use", "part", "want"),
    no_allowed_class_has_slices=({}, ONLY_T4, THIRD, [SHARE]),
    the_default_has_none=({}, BY_DEFAULT, THIRD, [SHARE]),
    a_default_that_is_not_allowed=({}, ONLY_40, THIRD, [SHARE]),
    of_the_default=({}, ClassOptions(default="nvidia-a100-40gb"), THIRD, [slice_of("3g.20gb"), SHARE]),
    of_the_class_that_the_pod_names=(NAMED, BY_DEFAULT, THIRD, [slice_of("3g.40gb"), SHARE]),
    named_in_vain=({**NAMED, "nodeName": "node-1"}, BY_DEFAULT, THIRD, [SHARE]),
    quarter=({"nodeSelector": A100_80}, ANY, Fraction(1, 4), [slice_of("1g.20gb"), SHARE]),
    tenth=({"nodeSelector": A100_80}, ANY, Fraction(1, 10), [slice_of("1g.10gb"), SHARE]),
    no_variants=({"nodeSelector": A100_40}, ANY, Fraction(1, 100), [slice_of("1g.5gb"), SHARE]),
    no_slice_is_so_large=({"nodeSelector": A100_40}, ANY, Fraction(3, 4), [SHARE]),
    no_slices_at_all=({"nodeSelector": T4}, ANY, Fraction(1, 2), [SHARE]),
)
def test_ways_to_get_a_part_of_a_gpu(spec: JSON, use: ClassOptions, part: Fraction, want: list[str]) -> None:
    found = Availability(view(pod(**spec)), CLASSES, use)

    assert smaller(found, "nvidia.com/gpu", part) == want
    assert smaller(found, "amd.com/gpu", part) == [], "has neither"


def test_no_class_is_suggested_that_the_namespace_may_not_use() -> None:
    found = Availability(view(pod(nodeSelector=T4)), CLASSES, ONLY_T4)

    assert said(found.unknown_slice(resource("nvidia.com/mig-1g.5gb"))) == warning(
        f"should be a slice of {BY_T4} lists no 1g.5gb", "request whole GPUs (nvidia.com/gpu)"
    )
    assert said(found.other_vendor(resource("amd.com/gpu"))) == denial(
        "must be nvidia.com/gpu: the pod is pinned to nvidia-t4 (nodeSelector accelerator=nvidia-t4)",
        "request nvidia.com/gpu",
    )


SIZED = GPUClasses(
    (
        gpu_class("big", "nvidia", 80, gpus_per_node=8),
        gpu_class("small", "nvidia", 16, gpus_per_node=4),
        gpu_class("unsaid", "old", 16),
        gpu_class("sliced", "sliced", 80, gpus_per_node=8, equivalents={"nvidia.com/gpu": "1/4"}),
    )
)

BIG, FAMILY = {"nodeSelector": {"accelerator": "big"}}, {"nodeSelector": {"accelerator": "nvidia"}}
BY_NAME = "annotation gpu-admission.dev/gpu-class"


def at_most(most: int, why: str, name: str = "nvidia.com/gpu") -> Said:
    remedy = f"request {name}: {most} or less, and spread the work over several pods"
    return denial(f"must be at most {most}{why}", remedy)


@cases(
    ("spec", "count", "most", "of"),
    as_many_as_a_node_has=(BIG, 8, None, ""),
    more_than_a_node_has=(BIG, 64, 8, "big (nodeSelector accelerator=big)"),
    class_that_the_pod_names=({"annotations": {GPU_CLASS: "small"}}, 5, 4, f"small ({BY_NAME})"),
    largest_of_a_family=(FAMILY, 8, None, ""),
    more_than_the_largest_of_a_family=(FAMILY, 9, 8, "big or small (nodeSelector accelerator=nvidia)"),
    a_class_that_does_not_say_it=({"nodeSelector": {"accelerator": "unsaid"}}, 64, None, ""),
    units_that_are_no_cards=({"nodeSelector": {"accelerator": "sliced"}}, 64, None, ""),
    pinned_to_nothing=({}, 64, None, ""),
)
def test_more_cards_than_a_node_has(spec: JSON, count: int, most: int | None, of: str) -> None:
    want = None if most is None else at_most(most, f": no node of {of} has more")
    assert (
        said(Availability(view(pod(**spec)), SIZED).too_many_cards(resource("nvidia.com/gpu"), count)) == want
    )


SLICE_OF_80 = "nvidia.com/mig-3g.40gb"


def test_slices_on_the_cards_that_the_class_states() -> None:
    profiles = CLASSES.named({"nvidia-a100-80gb"})[0].mig_profiles
    gpu_classes = GPUClasses((gpu_class("dgx", "nvidia", 80, gpus_per_node=4, mig_profiles=profiles),))

    found = said(
        availability({"accelerator": "dgx"}, gpu_classes).too_many_slices(resource(SLICE_OF_80), 9, 8)
    )

    why = ", for a pod runs on one node: 2 on each dgx, 4 GPUs in a node"
    assert found == at_most(8, why, SLICE_OF_80)


def test_a_catalogue_that_knows_no_slices_judges_none() -> None:
    gpu_classes = GPUClasses((gpu_class("nvidia-x1", "nvidia-x", 80),))

    assert availability(ANYWHERE, gpu_classes).unknown_slice(resource("nvidia.com/mig-1g.99gb")) is None


def test_the_names_of_eight_slices_are_compared() -> None:
    found = availability(ANYWHERE)
    complaints = [found.unknown_slice(resource(f"nvidia.com/mig-9g.9{n}gb")) for n in range(9)]

    whole = [each and each.remedy == "request whole GPUs (nvidia.com/gpu)" for each in complaints]
    assert whole == [*[False] * 8, True]


def test_whole_cards_are_no_slices() -> None:
    assert availability(T4).unknown_slice(resource("nvidia.com/gpu")) is None
    assert availability(T4).too_many_slices(resource("nvidia.com/gpu"), 10**9, 8) is None
    assert availability(ANYWHERE).more_than_any_machine(resource("nvidia.com/gpu"), 16, 16) is None


@cases(
    ("selector", "count", "is_too_many"),
    as_many_as_a_node_holds=(A100_80, 16, False),
    one_more=(A100_80, 17, True),
    a_class_without_the_profile_is_complained_of_elsewhere=(A100_40, 17, False),
)
def test_more_slices_than_a_node_has(selector: dict[str, str], count: int, is_too_many: bool) -> None:
    why = ", for a pod runs on one node: 2 on each nvidia-a100-80gb, 8 GPUs in a node"
    want = at_most(16, why, SLICE_OF_80) if is_too_many else None
    assert said(availability(selector).too_many_slices(resource(SLICE_OF_80), count, 8)) == want
