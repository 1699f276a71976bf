"""Kinds of workloads in documents: read strictly, before the built-in ones, and without effect on quotas."""

from pathlib import Path

import pytest

from tests.cases import cases
from webhook.configuration.loader import ConfigurationError, load_directory, load_objects
from webhook.configuration.workload_kinds import Factor, plural, steps

HEAD = "apiVersion: gpu-admission.dev/v1alpha1\nkind: GPUResourceMapping\nmetadata: {name: %s}\nspec:\n  workloadKinds:\n"
ROW = "  - {group: example.com, kind: TrainingJob, pods: [{path: spec.template, replicas: [.workers]}]}\n"
KEY = ("example.com", "TrainingJob")


def problems_of(folder: Path, rows: str) -> list[str]:
    (folder / "kinds.yaml").write_text(HEAD % "ours" + rows)
    with pytest.raises(ConfigurationError) as error:
        load_directory(folder)
    return [f"{problem.path}: {problem.message}" for problem in error.value.problems]


def test_rows_of_documents_come_before_the_built_in_ones(tmp_path: Path) -> None:
    mine = "  - {group: apps, kind: Deployment, pods: [{path: spec.other}]}\n"
    (tmp_path / "kinds.yaml").write_text(HEAD % "ours" + ROW + mine)

    kinds = load_directory(tmp_path).workload_kinds

    assert kinds[KEY].pods[0].replicas == (".workers",)
    assert [form.path for form in kinds["apps", "Deployment"].pods] == ["spec.other"]
    assert [form.path for form in kinds["apps", "StatefulSet"].pods] == ["spec.template"]


def test_of_two_documents_the_first_by_name_holds(tmp_path: Path) -> None:
    for name in ("b", "a"):
        row = ROW.replace("spec.template", f"spec.{name}")
        (tmp_path / f"{name}.yaml").write_text(HEAD % name + row)

    configuration = load_directory(tmp_path)

    assert configuration.workload_kinds[KEY].pods[0].path == "spec.a"
    assert load_objects(configuration.documents).workload_kinds[KEY].pods[0].path == "spec.a"


def test_kinds_change_the_version_but_not_the_digest_of_the_mapping(tmp_path: Path) -> None:
    (tmp_path / "kinds.yaml").write_text(HEAD % "ours" + ROW)

    built_in, own = load_directory(None), load_directory(tmp_path)

    assert own.resource_mapping.digest == built_in.resource_mapping.digest
    assert own.version != built_in.version


@cases(
    ("rows", "want"),
    names=(
        "  - {group: Example, kind: trainingJob, pods: [{path: spec.template}]}\n",
        [
            "spec.workloadKinds[0].group: must be an API group such as example.com",
            "spec.workloadKinds[0].kind: must be a kind such as TrainingJob",
        ],
    ),
    form=(
        "  - {group: example.com, kind: T, resource: T, pods: [{path: '.a', form: podspec}]}\n",
        [
            'spec.workloadKinds[0].pods[0].form: Unsupported value: "podspec": must be one of template, podSpec, '
            "resources, amounts, patch, object; did you mean podSpec?"
        ],
    ),
    paths=(
        "  - {group: example.com, kind: T, resource: T, pods: [{path: .a, form: amounts, replicas: [a or b, '']}]}\n",
        [
            "spec.workloadKinds[0].pods[0].gpus: must say where the amounts are",
            "spec.workloadKinds[0].pods[0].path: must be a path such as spec.workers[].template, with * for every key",
            "spec.workloadKinds[0].pods[0].replicas[0]: must be a path such as .replicas, or .replicas else 0",
            "spec.workloadKinds[0].pods[0].replicas[1]: must be a path such as .replicas, or .replicas else 0",
            "spec.workloadKinds[0].resource: must be the plural in the API's paths, such as trainingjobs",
        ],
    ),
    amounts_and_conditions=(
        "  - {group: example.com, kind: T, stopped: {'a b': 'true'}, together: .x,"
        " pods: [{path: a, form: amounts, gpus: [{quantity: 'a..b', resource: gpu}]}]}\n",
        [
            "spec.workloadKinds[0].pods[0].gpus[0].quantity: must be a path such as .gpus or spec.gpus",
            "spec.workloadKinds[0].pods[0].gpus[0].resource: must be a resource name such as example.com/gpu",
            "spec.workloadKinds[0].stopped.a b: must be a path such as spec.suspend",
            "spec.workloadKinds[0].together: must be a path such as spec.suspend",
        ],
    ),
    twice=(ROW + ROW, ["spec.workloadKinds[1].kind: Duplicate value: TrainingJob of example.com"]),
    more_than_are_read=(
        "".join(ROW.replace("TrainingJob", f"Job{number}") for number in range(501)),
        ["spec.workloadKinds: must have at most 500 items"],
    ),
    more_paths_than_are_read=(
        f"  - {{group: example.com, kind: T, pods: [{', '.join(f'{{path: a{number}}}' for number in range(33))}]}}\n",
        ["spec.workloadKinds[0].pods: must have at most 32 items"],
    ),
    unknown_field=(
        "  - {group: example.com, kind: T, pod: []}\n",
        ["spec.workloadKinds[0].pod: unknown field; did you mean pods?"],
    ),
)
def test_what_is_wrong_is_reported_with_its_path(tmp_path: Path, rows: str, want: list[str]) -> None:
    assert sorted(problems_of(tmp_path, rows)) == want


@cases(
    ("text", "want"),
    a_path=(".replicas", Factor((".replicas",))),
    a_number=("4", Factor((), 4)),
    unknown=("unknown", Factor((), None)),
    the_first_that_has_one=("spec.a else .b else 0", Factor(("spec.a", ".b"), 0)),
    or_unknown=(".a else unknown", Factor((".a",), None)),
    bounds=(".a less .b at least .c at most .d", Factor((".a",), 1, ".b", ".c", ".d")),
    nothing_after_else=(".a else", None),
    no_bound=(".a at most", None),
    a_list=(".a, .b", None),
    nothing=("", None),
)
def test_factors(text: str, want: Factor | None) -> None:
    assert Factor.of(text) == want


@cases(
    ("path", "beside", "want"),
    keys=("spec.template", "", ("spec", "template")),
    branches=("spec.a[].b.*.c", "", ("spec", "a", "[]", "b", "*", "c")),
    a_key_in_brackets=("metadata.annotations[a.b/c-d]", "", ("metadata", "annotations", "a.b/c-d")),
    beside_a_template=(".replicas", "spec.tasks[].template", ("spec", "tasks", "[]", "replicas")),
    beside_an_item=(".replicas", "objects[]", ("objects", "replicas")),
)  # fmt: skip
def test_steps(path: str, beside: str, want: tuple[str, ...]) -> None:
    assert steps(path, beside) == want


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("Deployment", "deployments"),
        ("PyTorchJob", "pytorchjobs"),
        ("NetworkPolicy", "networkpolicies"),
        ("Gateway", "gateways"),
        ("Ingress", "ingresses"),
    ],
)
def test_plurals(kind: str, want: str) -> None:
    assert plural(kind) == want
