"""Stored pods as their authors submitted them: what was injected is found by its words, and taken out again."""

from typing import Any

import msgspec
from hypothesis import given

from policies.pods.annotations import INJECTED
from policies.pods.injected import as_submitted
from policies.pods.patch import PodPatch
from policies.pods.pod import Pod
from policies.registry import RULES
from policies.rule import Phase
from tests.builders import JSON, context, pod, view
from tests.cases import cases
from tests.policies.every_rule import MORE_OPTIONS, NODES, options_of
from tests.strategies import PODS


def injected(submitted: Pod) -> Pod:
    """Return the pod with what every rule adds, and the note, as the engine makes it."""
    patch, lines = PodPatch(submitted), []
    for rule in RULES:
        before, options = len(patch.changes), MORE_OPTIONS.get(rule.id, [rule.options()])[0]
        if rule.mutate is not None:
            list(rule.mutate(patch, options, context(Phase.MUTATE, options_of=options_of, nodes=NODES)))
        if len(patch.changes) > before:
            lines.append(f"{rule.id}: {', '.join(change.what for change in patch.changes[before:])}")
    if lines:
        patch.set_annotation(INJECTED, "\n".join(lines))
    return patch.pod


def plain(value: Pod) -> Any:
    """Return the pod without what is empty, as plain data."""

    def pruned(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: kept for key, each in data.items() if (kept := pruned(each)) not in ({}, [], None)}
        return [pruned(each) for each in data] if isinstance(data, list) else data

    return pruned(msgspec.json.decode(msgspec.json.encode(value)))


@cases(("author_set_node", "want"), chosen_by_its_author=(True, "n"), chosen_by_the_scheduler=(False, None))
def test_the_node_of_a_pod_as_submitted(author_set_node: bool, want: str | None) -> None:
    assert as_submitted(view(pod(nodeName="n")), author_set_node=author_set_node).spec.node_name == want


@given(document=PODS)
def test_what_is_injected_again_is_the_same(document: JSON) -> None:
    once = injected(as_submitted(view(document), author_set_node=True))

    assert plain(injected(as_submitted(once, author_set_node=True))) == plain(once)
