import io
import os
from pathlib import Path

import pytest

from tests.cases import cases
from webhook.tools.check.manifests import Manifests, read_manifests
from webhook.tools.check.placeholders import has_parameters, is_placeholder
from webhook.tools.check.sources import render_sentences

POD = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "NAME"}, "spec": {"containers": [{"name": "main"}]}}\n'
TEMPLATE = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {{ .Release.Name }}\n"


def tree(tmp_path: Path, **files: str) -> Path:
    """Write the files, by names in which `__` is `/`."""
    for name, content in files.items():
        path = tmp_path / name.replace("__", "/").replace("_yaml", ".yaml").replace("_json", ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def read(top: Path, *ignore: str) -> Manifests:
    return read_manifests([str(top)], recursive=True, ignore=ignore)


def names(found: Manifests) -> list[str]:
    assert [str(problem) for problem in found.problems] == []
    return [manifest.name for manifest in found.manifests]


def notes(found: Manifests, top: Path) -> list[str]:
    return [sentence.replace(f"{top}/", "") for sentence in render_sentences(found.to_render)]


def pod(name: str) -> str:
    return POD.replace("NAME", name)


def folder(tmp_path: Path) -> Path:
    files = {"b.yml": "b", "a.yaml": "a", "sub__c.yaml": "c", "notes.txt": "d", "e.json": "e"}
    return tree(tmp_path, **{path: pod(name) for path, name in files.items()})


def test_a_directory_is_read_like_kubectl_does(tmp_path: Path) -> None:
    top = folder(tmp_path)

    assert names(read_manifests([str(top)])) == ["a", "b", "e"]
    assert names(read(top)) == ["a", "b", "e", "c"], "with the directories below"
    assert names(read_manifests([f"{top}/notes.txt", f"{top}/a.yaml"])) == ["d", "a"], "as they are named"


@pytest.mark.timeout(20)
def test_a_pipe_and_a_loop_in_a_directory_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop").symlink_to(tmp_path)

    assert names(read(tree(tmp_path, a_yaml=pod("a")))) == ["a"]


def test_a_device_that_is_named_is_read_up_to_the_limit() -> None:
    problems = read_manifests(["/dev/zero"]).problems

    assert [str(problem) for problem in problems] == ["/dev/zero: must be at most 64 MiB"]


@cases(
    ("recursive", "want"),
    flat=(False, "must contain a .yaml, .yml or .json file (-R reads the directories below, too)"),
    recursive=(True, "must contain a .yaml, .yml or .json file"),
)  # fmt: skip
def test_a_directory_without_manifests(tmp_path: Path, recursive: bool, want: str) -> None:
    found = read_manifests([str(tmp_path)], recursive=recursive)

    assert [problem.message for problem in found.problems] == [want]


def test_sources_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("kind: ü\n".encode("latin-1"))
    (tmp_path / "good.yaml").write_text(pod("train"))
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    sources = [f"{tmp_path}/missing.yaml", str(tmp_path), "https://example.com/pod.yaml"]

    found = read_manifests(sources)

    assert [manifest.name for manifest in found.manifests] == ["train"]
    assert [str(problem).replace(f"{tmp_path}/", "") for problem in found.problems] == [
        "https://example.com/pod.yaml: URLs are not supported: curl -sSL URL | gpu-admission check -f -",
        "missing.yaml: No such file or directory",
        "gone.yaml: No such file or directory",
        "latin.yaml: must be UTF-8 text",
    ]


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pod("train").encode())))
    found = read_manifests(["-"])
    assert [(manifest.name, manifest.file) for manifest in found.manifests] == [("train", "stdin")]

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    assert [str(problem) for problem in read_manifests(["-"]).problems] == ["-: must contain an object"]


@cases(
    ("ignore", "want"),
    nothing=([], ["a", "b", "c", "d"]),
    file_by_name=(["b.yaml"], ["a", "c", "d"]),
    directory_by_name=(["vendor"], ["a", "b", "d"]),
    directory_by_path=(["deploy/vendor/"], ["a", "b", "d"]),
    directory_from_here=(["./deploy"], ["a"]),
    star_matches_slashes=(["deploy/*.yaml"], ["a"]),
    at_any_depth=(["**/d.yaml"], ["a", "b", "c"]),
    at_any_depth_and_at_the_top=(["**/a.yaml"], ["b", "c", "d"]),
    several=(["[bc].yaml", "d.*"], ["a"]),
    names_are_matched_whole_and_below_the_directory=(["tmp*", "eploy", "yaml"], ["a", "b", "c", "d"]),
)  # fmt: skip
def test_ignored_files_are_not_read(tmp_path: Path, ignore: list[str], want: list[str]) -> None:
    top = tree(
        tmp_path,
        a_yaml=pod("a"),
        deploy__b_yaml=pod("b"),
        deploy__vendor__c_yaml=pod("c"),
        deploy__x__d_yaml=pod("d"),
    )

    assert names(read(top, *ignore)) == want


def test_that_all_is_ignored_is_not_a_problem(tmp_path: Path) -> None:
    top = tree(tmp_path, a_yaml="a: [", b_yaml=pod("b"))

    assert names(read(top, "*")) == []
    assert names(read_manifests([f"{top}/a.yaml", f"{top}/b.yaml"], ignore=["a.yaml"])) == ["b"]


def test_a_helm_chart_is_noted_once(tmp_path: Path) -> None:
    top = tree(
        tmp_path,
        chart__Chart_yaml="apiVersion: v2\nname: chart\nversion: 0.1.0\n",
        chart__values_yaml="gpus: 1\nkind: {a: b}\n",
        chart__templates__pod_yaml=TEMPLATE,
        chart__templates__more__pod_yaml="{{- if .Values.gpus }}\n" + TEMPLATE + "{{- end }}\n",
        chart__templates__plain_yaml=pod("plain"),
        other__templates__pod_yaml=pod("no-chart"),
    )

    found = read(top)

    assert names(found) == ["plain", "no-chart"]
    assert found.other_documents == 2
    assert notes(found, top) == [
        "1 Helm chart not checked (chart): helm template CHART | gpu-admission check -f -"
    ]


@cases(
    ("text", "want"),
    value=(TEMPLATE, 4),
    line=("{{- if .Values.gpus }}\nkind: Pod\n{{- end }}\n", 1),
    flow=("kind: Pod\nspec: {replicas: {{ replicas }}}\n", 2),
    jinja=("kind: Pod\n{% for gpu in gpus %}\n- {{ gpu }}\n{% endfor %}\n", 2),
)
def test_a_template_that_yaml_cannot_read_is_noted(tmp_path: Path, text: str, want: int) -> None:
    top = tree(tmp_path, t_yaml=text, a_yaml=pod("a"))

    found = read(top)

    assert names(found) == ["a"]
    assert notes(found, top) == [f"1 template not checked (t.yaml:{want}): render it and check the result"]


@cases(
    "text",
    quoted_parameter='kind: Workflow\nargs: ["{{inputs.parameters.gpus}}"\nspec: 1\n',
    no_braces="kind: Pod\na: b: c\n",
)
def test_a_broken_file_is_a_problem_whatever_it_quotes(tmp_path: Path, text: str) -> None:
    found = read(tree(tmp_path, t_yaml=text))

    assert len(found.problems) == 1
    assert found.to_render == []


def test_kustomizations_are_noted_and_their_patches_left_to_them(tmp_path: Path) -> None:
    patches = (
        "patches: [{path: ../patches/p.yaml}, {patch: '[]'}]\npatchesStrategicMerge: [patch.yaml, '{}']\n"
    )
    head = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    top = tree(
        tmp_path,
        base__kustomization_yaml="resources: [pod.yaml]\n",
        base__pod_yaml=pod("base"),
        part__kustomization_yaml="apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n",
        patches__p_yaml=pod("base"),
        prod__Kustomization=f"{head}{patches}",
        prod__patch_yaml=pod("base"),
    )

    found = read(top)

    assert [manifest.file for manifest in found.manifests] == [f"{top}/base/pod.yaml"]
    assert notes(found, top) == [
        "2 kustomizations not checked (base, prod): kustomize build DIRECTORY | gpu-admission check -f -"
    ]


def test_a_patch_that_is_named_is_left_to_its_kustomization(tmp_path: Path) -> None:
    top = tree(tmp_path, kustomization_yaml="patches: [{path: sub/patch.yaml}]\n", sub__patch_yaml=pod("a"))

    found = read_manifests([f"{top}/sub/patch.yaml", f"{top}/kustomization.yaml"])

    assert names(found) == []
    assert notes(found, top) == [
        f"1 kustomization not checked ({top}): kustomize build DIRECTORY | gpu-admission check -f -"
    ]


def test_of_many_only_the_first_are_named(tmp_path: Path) -> None:
    files = {f"k{number}__kustomization_yaml": "resources: []\n" for number in range(7)}
    top = tree(tmp_path, **files)

    (note,) = notes(read(top), top)

    assert note.startswith("7 kustomizations not checked (k0, k1, k2, k3, k4 and 2 more): ")


def test_other_files_of_a_repository_are_counted_not_parsed(tmp_path: Path) -> None:
    top = tree(tmp_path, tsconfig_json='{"a": 1, // comment\n}', ci_yaml="on: [push]\n", a_yaml=pod("a"))

    found = read(top)

    assert names(found) == ["a"]
    assert found.other_documents == 2


LIMIT = "spec.containers[0].resources.limits[nvidia.com/gpu]"
ENV = "spec.containers[0].env[0].value"
ARGS = "spec.containers[0].args[1]"


@cases(
    ("value", "path", "want"),
    variable=("$GPUS", LIMIT, True),
    variable_with_default=("${GPUS:-1}", LIMIT, True),
    helm=("{{ .Values.gpus }}", LIMIT, True),
    jinja=("{% if x %}1{% endif %}", LIMIT, True),
    tekton=("$(params.gpus)", LIMIT, True),
    of_documentation=("<NUMBER_OF_GPUS>", LIMIT, True),
    inside_a_text=("s3://${BUCKET}/model", "metadata.annotations[x]", True),
    quantity=("500m", LIMIT, False),
    number_as_text=("1", LIMIT, False),
    number=(1, LIMIT, False),
    absent=(None, LIMIT, False),
    dollar_in_a_text=("hf://user:pa$word@host/model", "metadata.annotations[x]", False),
    angle_brackets_in_a_text=("a < b > c", ENV, False),
    kubernetes_expands_env=("$(GPUS)", ENV, False),
    kubernetes_does_not_expand_this=("${GPUS}", ENV, True),
    kubernetes_expands_args=("--gpus=$(GPUS)", ARGS, False),
    a_shell_expands_args=("--gpus=${GPUS}", ARGS, False),
    nothing_expands_this_in_a_pod=("--gpus={{ gpus }}", ARGS, True),
)
def test_placeholders(value: object, path: str, want: bool) -> None:
    assert is_placeholder(value, path) is want


@cases(
    ("group", "kind", "want"),
    argo=("argoproj.io", "Workflow", True),
    rollout_has_none=("argoproj.io", "Rollout", False),
    tekton=("tekton.dev", "Task", True),
    openshift_template_of_old=("", "Template", True),
    katib=("kubeflow.org", "Experiment", True),
    pytorchjob=("kubeflow.org", "PyTorchJob", False),
    pod=("", "Pod", False),
)
def test_kinds_with_parameters_of_their_own(group: str, kind: str, want: bool) -> None:
    assert has_parameters(group, kind) is want
