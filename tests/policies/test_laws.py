"""What holds for every rule of the registry, whatever pod it is shown.

A rule that is added to the registry is tested here without another line.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import Phase as Stage
from hypothesis import example, find, given, settings
from hypothesis.errors import NoSuchExample
from msgspec.structs import replace

from policies.finding import Finding, Severity
from policies.pods.patch import PodPatch
from policies.pods.pod import Container, Metadata, Pod, PodSpec
from policies.quota.demand import UnclassifiedPods
from policies.quota.quota_request import demand_input, quota_request_for_pod
from policies.registry import RULES, fingerprints
from policies.rule import Phase, Rule, RuleOptions
from tests.builders import JSON, RESOURCE_MAPPING, apply, context, gpu_container, operations, pod, view
from tests.cases import cases
from tests.policies.every_rule import MORE_OPTIONS, NODES, every_rule, options_of, run
from tests.strategies import PODS

RAISED_NEVER_LOWERED = frozenset({"initialDelaySeconds", "terminationGracePeriodSeconds"})
"""The values of the user's that a rule may change, and only upwards."""
RAISED = min(RAISED_NEVER_LOWERED)


def checked(document: JSON, rule: Rule, options: RuleOptions, phase: Phase) -> list[Finding]:
    return (
        list(rule.check(view(document), options, context(phase, options_of=options_of, nodes=NODES)))
        if rule.check
        else []
    )


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


MUTATING = [rule for rule in RULES if rule.mutate]


@cache
def rules_that_change_nothing() -> set[str]:
    """Return the ids of the rules that change none of 2,000 generated pods."""
    left = {rule.id: rule for rule in MUTATING}

    def is_changed(document: JSON, rule: Rule) -> bool:
        every = [rule.options(), *MORE_OPTIONS.get(rule.id, [])]
        return any(operations(run(document, rule, options)[0]) for options in every)

    def all_change(document: JSON) -> bool:
        for rule in [rule for rule in left.values() if is_changed(document, rule)]:
            del left[rule.id]
        return not left

    # The first one will do: no time is spent on looking for the smallest.
    search = settings(max_examples=2000, derandomize=True, database=None, phases=[Stage.generate])
    with suppress(NoSuchExample):
        find(PODS, all_change, settings=search)
    return set(left)


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.id) for rule in MUTATING])
def test_the_generated_pods_give_every_rule_something_to_do(rule: Rule) -> None:
    """Otherwise the laws below would hold for a rule that never ran."""
    assert rule.id not in rules_that_change_nothing()


@given(document=PODS)
def test_the_same_pod_yields_the_same_again(document: JSON) -> None:
    for rule, options in every_rule():
        patch, found = run(document, rule, options)
        again, found_again = run(copy.deepcopy(document), rule, options)

        assert operations(again) == operations(patch)
        assert found_again == found
        for phase in Phase:
            assert checked(copy.deepcopy(document), rule, options, phase) == checked(
                document, rule, options, phase
            )


@given(document=PODS)
def test_the_patch_makes_what_the_draft_says(document: JSON) -> None:
    for rule, options in every_rule():
        patch, _ = run(document, rule, options)

        assert plain(view(apply(document, patch))) == plain(patch.pod)


@given(document=PODS)
def test_a_second_pass_changes_nothing(document: JSON) -> None:
    for rule, options in every_rule():
        patch, _ = run(document, rule, options)

        second, _ = run(apply(document, patch), rule, options)

        assert operations(second) == []


@given(document=PODS)
def test_what_the_user_set_stays(document: JSON) -> None:
    for rule, options in every_rule():
        patch, _ = run(document, rule, options)

        assert list(lost("pod", document, apply(document, patch))) == []


@given(document=PODS)
def test_findings_say_what_where_and_what_to_do(document: JSON) -> None:
    names = {place.container.name for place in view(document).places}
    for rule, options in every_rule():
        _, found = run(document, rule, options)
        for phase in Phase:
            found += checked(document, rule, options, phase)

        for finding in found:
            assert not finding.rule, "the evaluation fills it in"
            assert finding.container is None or finding.container in names
            assert finding.message
            assert finding.advice or finding.ask_contact or finding.severity is Severity.WARNING
            assert finding.sentence().isprintable()


class DeclaredKeys(dict[str, str]):
    """Annotations or labels of which only those with declared keys may be looked up."""

    def __init__(self, values: dict[str, str], declared: Callable[[str], bool]) -> None:
        super().__init__(values)
        self._declared = declared

    def _check(self, key: Any) -> Any:
        assert self._declared(key), f"metadata_keys of the rule lack {key}"
        return key

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._check(key))

    def __getitem__(self, key: str) -> str:
        return super().__getitem__(self._check(key))

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(self._check(key), default)


def with_declared_keys(document: JSON, rule: Rule) -> tuple[Pod, Pod]:
    """Return the pod, in which no other key can be looked up, and the pod that has no other keys."""
    seen, prints = view(document), fingerprints([rule], RESOURCE_MAPPING)
    if seen.metadata is None:
        return seen, seen
    maps = {"labels": seen.metadata.labels, "annotations": seen.metadata.annotations}
    kept = {name: prints.read_metadata(values) for name, values in maps.items()}
    guarded = {
        name: values and DeclaredKeys(values, lambda key: prints.read_metadata({key: ""}) == {key: ""})
        for name, values in maps.items()
    }
    whole, reduced = (replace(seen, metadata=replace(seen.metadata, **each)) for each in (guarded, kept))
    return whole, reduced


ANNOTATED = pod(
    gpu_container(resources={}),
    annotations={
        "gpu-fraction": "0.5",
        "gpu-fraction-container-name": "sidecar",
        "gpu-admission/cuda": "12.4",
        "nvidia.com/use-gputype": "A100",
        "nvidia.cdi.k8s.io/gpu": "nvidia.com/gpu=all",
        "team": "ml",
    },
    schedulerName="kai-scheduler",
)


def answer(seen: Pod, rule: Rule, options: RuleOptions) -> Any:
    """Return what the rule finds in the pod, and the operations of its patch."""
    patch = PodPatch(seen)
    contexts = [context(phase, options_of=options_of, nodes=NODES) for phase in Phase]
    found = [list(rule.check(seen, options, each)) for each in contexts if rule.check]
    found += [list(rule.mutate(patch, options, each)) for each in contexts[:1] if rule.mutate]
    return found, operations(patch)


@given(document=PODS)
@example(document=ANNOTATED)
def test_a_rule_reads_only_the_annotations_and_labels_that_it_declares(document: JSON) -> None:
    for rule, options in every_rule():
        whole, reduced = with_declared_keys(document, rule)
        assert answer(whole, rule, options) == answer(reduced, rule, options)


def test_a_key_that_is_not_declared() -> None:
    seen, _ = with_declared_keys({"metadata": {"annotations": {"team": "ml"}}}, RULES[0])
    with pytest.raises(AssertionError, match="metadata_keys of the rule lack team"):
        seen.annotations.get("team")


@given(document=PODS)
def test_demand_depends_on_its_input_alone(document: JSON) -> None:
    """An equal input is that of a pod without everything else."""
    seen = fingerprints(RULES, RESOURCE_MAPPING).reduced(view(document))

    def plain_containers(containers: tuple[Container, ...] | None) -> tuple[Container, ...] | None:
        kept = ("name", "resources", "restart_policy")
        return containers and tuple(
            Container(**{name: getattr(each, name) for name in kept}) for each in containers
        )

    kept = ("resources", "overhead", "node_selector", "affinity", "node_name")
    spec = PodSpec(
        containers=plain_containers(seen.spec.containers),
        init_containers=plain_containers(seen.spec.init_containers),
        **{name: getattr(seen.spec, name) for name in kept},
    )
    bare = Pod(metadata=Metadata(annotations=seen.annotations), given_spec=spec, status=seen.status)
    assert demand_input(bare) == demand_input(seen)
    for unclassified_pods in UnclassifiedPods:
        demands = [
            quota_request_for_pod("review", each, None, context()).after(context(), unclassified_pods)
            for each in (view(document), bare)
        ]
        assert demands[0] == demands[1]


@given(document=PODS)
def test_no_finding_is_told_twice(document: JSON) -> None:
    for rule in RULES:
        for phase in Phase:
            found = checked(document, rule, rule.options(), phase)
            assert len(found) == len(set(found))


@pytest.mark.parametrize("eager", [False, True], ids=["defaults", "more-options"])
@given(document=PODS)
def test_the_whole_chain_converges_in_one_pass(eager: bool, document: JSON) -> None:
    once = chain(document, eager=eager)

    assert chain(once, eager=eager) == once
    assert list(lost("pod", document, once)) == []


def chain(document: JSON, *, eager: bool) -> JSON:
    """Run every rule in the order of the registry on one draft, as /mutate does."""
    patch = PodPatch(view(document))
    every = {
        rule.id: (MORE_OPTIONS.get(rule.id, [rule.options()])[0] if eager else rule.options())
        for rule in RULES
    }
    manifest_context = context(Phase.MUTATE, options_of=every.get, nodes=NODES)
    for rule in RULES:
        if rule.mutate is not None:
            list(rule.mutate(patch, every[rule.id], manifest_context))
    return apply(document, patch)


def lost(path: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the path of everything in `before` that is not in `after` any more; lists may have gained items anywhere."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            here = f"{path}.{key}"
            if key not in after:
                yield here
            elif key in RAISED_NEVER_LOWERED and isinstance(value, int):
                if after[key] < value:
                    yield here
            else:
                yield from lost(here, value, after[key])
    elif isinstance(before, list) and isinstance(after, list):
        remaining = iter(after)
        for index, item in enumerate(before):
            here = f"{path}[{index}]"
            if not any(not list(lost(here, item, candidate)) for candidate in remaining):
                yield here
    elif before is not None and before != after:
        # A null says as little as a field that is left out.
        yield path


@cases(
    ("before", "after", "want"),
    gained_a_key=({"a": 1}, {"a": 1, "b": 2}, []),
    lost_a_key=({"a": 1}, {"b": 2}, ["pod.a"]),
    changed_a_value=({"a": 1}, {"a": 2}, ["pod.a"]),
    filled_a_null=({"a": None}, {"a": [1]}, []),
    gained_items_and_keys=([{"a": 1}, {"b": 1}], [0, {"a": 1, "c": 1}, {"b": 1}], []),
    swapped=([1, 2], [2, 1], ["pod[1]"]),
    raised=({RAISED: 5}, {RAISED: 6}, []),
    lowered=({RAISED: 5}, {RAISED: 4}, [f"pod.{RAISED}"]),
)
def test_the_law_of_keeping_can_be_broken(before: Any, after: Any, want: list[str]) -> None:
    assert list(lost("pod", before, after)) == want
