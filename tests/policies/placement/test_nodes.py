"""Whether any node could take a pod, by the labels that are known."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from policies.placement.nodes import (
    HOSTNAME,
    NODE_NAME_FIELD,
    NamedNode,
    NodeFacts,
    NodeGroup,
    NodeState,
    node_facts,
    nodes_with_other_labels,
    takes_new_node,
)
from policies.pods.pod import Toleration
from tests.builders import JSON, gpu_container, node_affinity, pod, view
from tests.cases import cases

KEYS = frozenset({"accelerator", "product"})
T4 = (("accelerator", "nvidia-t4"), ("product", "Tesla-T4"))
UNLABELLED = (("product", "Tesla-T4"),)


def requiring(*terms: Sequence[tuple[str, ...]]) -> JSON:
    return {"affinity": node_affinity(*terms)}


@cases(
    ("spec", "values", "label_sets", "want"),
    {
        "the-class-is-there": ({}, ["nvidia-t4"], [T4], True),
        "another-is": ({}, ["nvidia-h100"], [T4], False),
        "one-of-several": ({}, ["nvidia-h100", "nvidia-t4"], [T4], True),
        "the-label-is-missing": ({}, ["nvidia-t4"], [UNLABELLED], False),
        "no-nodes": ({}, ["nvidia-t4"], [], False),
        "a-pod-that-demands-nothing": ({}, [], [UNLABELLED], True),
        "its-own-selector": ({"nodeSelector": {"accelerator": "nvidia-t4"}}, [], [T4], True),
        "its-own-selector-in-vain": ({"nodeSelector": {"accelerator": "nvidia-h100"}}, [], [T4], False),
        "labels-nobody-knows": ({"nodeSelector": {"zone": "b"}}, ["nvidia-t4"], [T4], True),
        "both-on-the-same-node": ({"nodeSelector": {"product": "A100"}}, ["nvidia-t4"], [T4], False),
        "each-on-another-node-is-not-enough": (
            {"nodeSelector": {"product": "A100"}},
            ["nvidia-t4"],
            [T4, (("product", "A100"),)],
            False,
        ),
        "in": (requiring([("product", "In", "A100", "Tesla-T4")]), [], [T4], True),
        "not-in": (requiring([("product", "NotIn", "Tesla-T4")]), [], [T4], False),
        "not-in-what-is-missing": (requiring([("product", "NotIn", "A100")]), [], [()], True),
        "exists": (requiring([("accelerator", "Exists")]), [], [UNLABELLED], False),
        "absent": (requiring([("accelerator", "DoesNotExist")]), [], [UNLABELLED], True),
        "either": (requiring([("product", "In", "A100")], [("product", "In", "Tesla-T4")]), [], [T4], True),
        "an-empty-term-matches-nothing": (requiring([]), [], [T4], False),
        "more-than-are-read": (requiring(*[[("product", "In", "A100")]] * 10_000), [], [T4], True),
    },
)
def test_could_take(spec: JSON, values: list[str], label_sets: list[object], want: bool) -> None:
    facts = NodeFacts(keys=KEYS, label_sets=frozenset(label_sets))  # type: ignore[arg-type] # tuples of the table

    assert facts.labels_match(view(pod(gpu_container(), **spec)), "accelerator", values) is want


@cases(
    ("nodes", "requirements", "want"),
    as_many=(500, 20, False),
    one_more=(137, 73, True),
    few_requirements_whatever_the_nodes=(700, 16, False),
    no_longer_few=(589, 17, True),
)
def test_at_most_ten_thousand_requirements_of_all_nodes_are_compared(
    nodes: int, requirements: int, want: bool
) -> None:
    label_sets = frozenset((("product", f"p{number}"),) for number in range(nodes))
    asking = view(pod(gpu_container(), **requiring([("product", "In", "A100")] * (requirements - 1))))

    assert NodeFacts(keys=KEYS, label_sets=label_sets).labels_match(asking, "", []) is want


@cases(
    ("labels", "want"),
    a_pool_that_makes_it=({"accelerator": frozenset({"nvidia-t4"})}, True),
    a_pool_that_makes_any=({"accelerator": None}, True),
    a_pool_that_chooses=({"accelerator": frozenset({"nvidia-l4", "nvidia-t4"})}, True),
    a_pool_of_others=({"accelerator": frozenset({"nvidia-l4"})}, False),
    a_pool_that_says_nothing=({}, False),
)
def test_a_pool_counts_as_nodes(labels: dict[str, frozenset[str] | None], want: bool) -> None:
    facts = NodeFacts(keys=KEYS, pools=(NodeGroup(labels, pool="gpu"),))

    assert facts.labels_match(view(pod(gpu_container())), "accelerator", ["nvidia-t4"]) is want


@cases(
    ("spec", "want"),
    no_constraint=({}, True),
    by_its_hostname=({"nodeSelector": {HOSTNAME: "node-0"}}, False),
    by_its_hostname_in_affinity=(requiring([(HOSTNAME, "In", "node-0")]), False),
    by_its_name=(
        {
            "affinity": node_affinity(
                {"matchFields": [{"key": NODE_NAME_FIELD, "operator": "In", "values": ["node-0"]}]}
            )
        },
        False,
    ),
    not_by_that_name=(requiring([(HOSTNAME, "NotIn", "node-0")]), True),
    or_by_another_label=(requiring([(HOSTNAME, "In", "node-0")], [("product", "Exists")]), True),
)
def test_no_pool_adds_a_node_that_the_pod_selects_by_its_name(spec: JSON, want: bool) -> None:
    made, pool = view(pod(gpu_container(), **spec)), NodeGroup({"product": None}, pool="any")

    assert takes_new_node(made) is want
    assert NodeFacts(keys=KEYS, pools=(pool,)).pool_for(made) == ("any" if want else "")


def test_open_labels_of_a_pool_have_any_value_but_where_it_says_which() -> None:
    labels = {"accelerator": frozenset({"nvidia-t4"}), "zone/a": frozenset({"x"})}
    pool = NodeGroup(labels, open_prefixes=("zone/",), pool="gpu")
    facts = NodeFacts(keys=KEYS | {"zone/a", "zone/b"}, pools=(pool,))

    def labels_match(**selected: str) -> bool:
        labels = {key.replace("_", "/"): value for key, value in selected.items()}
        return facts.labels_match(
            view(pod(gpu_container(), nodeSelector=labels)), "accelerator", ["nvidia-t4"]
        )

    assert [labels_match(zone_a="x"), labels_match(zone_a="y"), labels_match(zone_b="y")] == [
        True,
        False,
        True,
    ]
    assert not labels_match(product="Tesla-T4"), "it names no such label"


def test_startup_taints_of_a_pool_keep_nobody_away() -> None:
    starting = Toleration(key="example.com/checks", effect="NoSchedule")
    taints = (replace(starting, value="running"), Toleration(key="reserved", effect="NoSchedule"))
    nodes = [(T4, NodeState(taints=taints))]

    without = node_facts(KEYS, nodes)
    assert without.states[T4] == {NodeState(taints=taints)}
    facts = node_facts(KEYS, nodes, (NodeGroup({}, pool="gpu", startup_taints=(starting,)),))
    assert facts.states[T4] == {NodeState(taints=taints[1:], is_usable=False)}


def test_the_values_of_a_label() -> None:
    facts = NodeFacts(keys=KEYS, label_sets=frozenset({T4, UNLABELLED}))

    assert facts.values_of("accelerator") == {"nvidia-t4"}
    assert facts.values_of("product") == {"Tesla-T4"}


@cases(
    ("zones", "want"),
    few_label_sets_are_all_compared=(100, False),
    of_too_many_comparisons_nothing_is_said=(1000, True),
)
def test_how_many_demands_are_read_depends_on_the_nodes(zones: int, want: bool) -> None:
    there = frozenset((("accelerator", "nvidia-t4"), ("product", f"p{number}")) for number in range(zones))
    terms = [[("product", "In", "none")]] * 40

    facts = NodeFacts(keys=KEYS, label_sets=there)

    assert facts.labels_match(view(pod(gpu_container(), **requiring(*terms))), "", ()) is want


@pytest.mark.parametrize("values", [("1", "2"), ("9" * 30,)])
def test_what_the_api_server_refuses_of_a_comparison_meets_no_node(values: tuple[str, ...]) -> None:
    facts = NodeFacts(keys=KEYS, label_sets=frozenset(((("product", "5"),),)))
    spec = requiring([("product", "Gt" if len(values) > 1 else "Lt", *values)])

    assert not facts.labels_match(view(pod(gpu_container(), **spec)), "", ())


def with_resource(name: str, *, is_schedulable: bool = True) -> NodeState:
    return NodeState(is_schedulable, resources=frozenset({name}))


@cases(
    ("other", "want"),
    another=(with_resource("b"), {"a", "b"}),
    cordoned=(with_resource("b", is_schedulable=False), {"a"}),
    only_its_metadata_was_read=(None, set()),
)
def test_the_resources_of_schedulable_nodes(other: NodeState | None, want: set[str]) -> None:
    facts = node_facts(KEYS, [(T4, with_resource("a")), (UNLABELLED, other)])

    states = facts.states_for(view(pod(gpu_container())), ["a"])
    found = None if states is None else {name for state in states for name in state.resources}
    assert facts.resources == want
    assert found == (want or None)
    assert facts.label_sets == {T4, UNLABELLED}


OTHER = frozenset({(T4, ("count=1", "team=ml")), (UNLABELLED, ("count=4",)), ((), ("count=4", "team=ml"))})
POOLS = (
    NodeGroup({"accelerator": frozenset({"nvidia-l4"}), "rack": frozenset({"b"})}, ("karpenter.",), "l4"),
    NodeGroup({"accelerator": frozenset({"nvidia-t4"}), "rack": frozenset({"a"})}, pool="t4"),
)


@cases(
    ("spec", "want"),
    a_count_of_other_nodes=({"nodeSelector": {"count": "4"}}, "nodeSelector count=4"),
    a_count_of_its_nodes=({"nodeSelector": {"count": "1"}}, ""),
    a_label_of_its_nodes_and_others=({"nodeSelector": {"team": "ml"}}, ""),
    a_value_that_no_node_has=({"nodeSelector": {"count": "2"}}, "nodeSelector count=2"),
    a_label_that_no_node_has=({"nodeSelector": {"later": "yes"}}, ""),
    a_label_of_another_pool=({"nodeSelector": {"rack": "b"}}, "nodeSelector rack=b"),
    a_label_of_its_pool=({"nodeSelector": {"rack": "a"}}, ""),
    a_label_that_a_pool_may_have=({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}, ""),
    by_affinity=(requiring([("count", "In", "4", "8")]), "node affinity on count"),
    of_its_nodes_by_affinity=(requiring([("count", "In", "1", "4")]), ""),
    one_of_two_terms=(requiring([("count", "In", "4")], [("team", "In", "ml")]), ""),
    all_terms=(requiring([("count", "In", "4")], [("rack", "In", "b")]), "node affinity on count"),
    without_a_value=(requiring([("count", "NotIn", "1")]), ""),
)
def test_a_label_outside_the_keys_that_only_nodes_of_other_classes_have(spec: JSON, want: str) -> None:
    facts = NodeFacts(keys=KEYS, label_sets=frozenset({T4, UNLABELLED}), pools=POOLS, with_other_labels=OTHER)

    assert facts.excluding_label(view(pod(gpu_container(), **spec)), "accelerator", ["nvidia-t4"]) == want


def test_facts_are_equal_whatever_the_order_of_equal_nodes() -> None:
    nodes = [
        NamedNode(uid=name, name=name, hostname=name, labels=labels, other_labels=("cards=1",))
        for name, labels in (("a", T4), ("b", UNLABELLED), ("c", T4))
    ]

    assert nodes_with_other_labels(nodes) == nodes_with_other_labels(nodes[:0:-1])
