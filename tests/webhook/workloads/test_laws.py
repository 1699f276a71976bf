"""Whatever stands in an object, its pods are found or it is said what is wrong; nothing else happens."""

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import gpu_container
from webhook.configuration.decoding import Problem
from webhook.configuration.loader import load_directory
from webhook.configuration.workload_kinds import EVERY_ITEM, EVERY_KEY, PodForm, WorkloadKind, factors, steps
from webhook.workloads.places import pod_places, workload_pods

KINDS = load_directory(None).workload_kinds
WITH_PODS = [kind for kind in KINDS.values() if kind.pods]
SPEC = {"containers": [gpu_container()]}
PATCHES = [
    "containers: [{true: 1}]",
    "containers: [{a: 1180591620717411303424}]",
    "containers: [.nan]",
    "[",
    "a: &a [*a]",
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from(["", "*", "3", "{{x}}", "nvidia.com/gpu", *PATCHES]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["spec", "template", "containers", "resources", "limits", "*", "x"]), inner)
        | st.just({"spec": SPEC})
        | st.just(SPEC)
    ),
    max_leaves=8,
)  # fmt: skip


def paths_of(kind: WorkloadKind) -> list[tuple[str, ...]]:
    ways = [steps(path) for path in (*kind.stopped, kind.together) if path]
    for form in kind.pods:
        ways.append(steps(form.path))
        named = [form.claims, form.elastic, *form.defaults]
        named += [path for gpu in form.gpus for path in (gpu.quantity, gpu.name)]
        named += [
            path for each in factors((*form.replicas, *form.most, *form.gang)) for path in each.every_path()
        ]
        ways += [steps(path, form.path) for path in named if path]
    return ways


def placed(data: Any, way: tuple[str, ...], value: Any) -> Any:
    """Return the data with the value at the way, as far as nothing there is of another type."""
    if not way:
        return value
    if way[0] == EVERY_ITEM:
        items = data if isinstance(data, list) and data else [{}]
        return [placed(items[0], way[1:], value), *items[1:]]
    key = "Worker" if way[0] == EVERY_KEY else way[0]
    members = data if isinstance(data, dict) else {}
    return {**members, key: placed(members.get(key), way[1:], value)}


@settings(max_examples=10 * settings().max_examples)
@given(st.data())
def test_objects_of_any_content(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(WITH_PODS))
    body: Any = {}
    for way in data.draw(st.lists(st.sampled_from(paths_of(kind)), max_size=4)):
        body = placed(body, way, data.draw(ANYTHING))

    for place in pod_places(KINDS, *kind.key, body):
        if isinstance(place, Problem):
            assert place.message in {"must be a map", "must be a list", "must be text"}
            continue
        for number in (place.count.running, place.count.maximum, place.count.gang):
            assert number is None or number >= 0
        if place.is_partial:
            assert place.replaced(body, place.data) is body
    with suppress(msgspec.ValidationError):
        workload_pods(KINDS, *kind.key, msgspec.json.encode(body))


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patch_that_is_no_json_is_not_read(patch: str) -> None:
    found = pod_places(KINDS, "argoproj.io", "Workflow", {"spec": {"podSpecPatch": patch}})

    for place in found:
        assert not isinstance(place, Problem)
        assert msgspec.json.encode(place.data)


def test_every_form_is_in_use() -> None:
    assert {form.form for kind in WITH_PODS for form in kind.pods} == set(PodForm)
