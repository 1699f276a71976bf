import io
from pathlib import Path
from typing import Any

import pytest

from policies.pods.pod import Metadata
from tests.cases import cases
from webhook.tools.check.manifests import Manifest, Manifests, read_manifests, with_requests, without_nulls

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: train}\nspec:\n  containers: [{name: main}]\n"

KYAML = """\
---
{
  kind: "Deployment",
  apiVersion: "apps/v1",
  metadata: { name: "chat", labels: { "on": "yes", }, },
  spec: {
    template: {
      spec: {
        containers: [{
          name: "x",
          # half a GPU
          image: "x", resources: {
            limits: { "nvidia.com/gpu": "0.5", },
          },
        }],
      },
    },
  },
}
"""


def read(tmp_path: Path, text: str, **options: Any) -> Manifests:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    found = read_manifests([str(path)], **options)
    for manifest in found.manifests:
        assert manifest.file == str(path)
    return found


def reported(found: Manifests, tmp_path: Path) -> list[str]:
    return [str(problem).replace(f"{tmp_path}/", "") for problem in found.problems]


def only(found: Manifests) -> Manifest:
    assert [str(problem) for problem in found.problems] == []
    (manifest,) = found.manifests
    return manifest


def test_a_pod(tmp_path: Path) -> None:
    manifest = only(read(tmp_path, POD))

    assert (manifest.group, manifest.kind, manifest.name, manifest.is_pod) == ("", "Pod", "train", True)
    assert manifest.line_of(("spec", "containers", 0, "name")) == 5
    ((at, pod),) = manifest.pods
    assert at.path == ""
    assert [place.container.name for place in pod.places] == ["main"]


def test_kyaml(tmp_path: Path) -> None:
    """As `kubectl get -o kyaml` of 1.36.3 prints it: YAML in flow style, with quotes, comments and trailing commas."""
    manifest = only(read(tmp_path, KYAML))

    assert (manifest.kind, manifest.name) == ("Deployment", "chat")
    assert manifest.line_of(("spec", "template", "spec", "containers", 0, "resources")) == 12
    assert manifest.line_of(("spec", "template", "spec", "containers", 0, "resources", "limits")) == 13
    ((_, pod),) = manifest.pods
    assert [place.container.limits for place in pod.places] == [{"nvidia.com/gpu": "0.5"}]


@cases(
    ("api_version", "kind", "spec", "want"),
    any_version=("apps/v1beta2", "DaemonSet", "{template: TEMPLATE}", "spec.template"),
    cronjob=(
        "batch/v1",
        "CronJob",
        "{jobTemplate: {spec: {template: TEMPLATE}}}",
        "spec.jobTemplate.spec.template",
    ),
)
def test_pods_of_workloads(tmp_path: Path, api_version: str, kind: str, spec: str, want: str) -> None:
    template = "{metadata: {labels: {a: b}}, spec: {containers: [{name: main}]}}"
    text = f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec.replace('TEMPLATE', template)}\n"

    ((at, pod),) = only(read(tmp_path, text)).pods

    assert at.path == want
    assert pod.metadata == Metadata(labels={"a": "b"})


@cases(
    ("text", "known"),
    service=("apiVersion: v1\nkind: Service\nmetadata: {name: x}\n", False),
    a_list_without_items=("apiVersion: a.b/v1\nkind: AllowList\nmetadata: {name: x}\n", False),
    a_generated_name=("apiVersion: apps/v1\nkind: Deployment\nmetadata: {generateName: x}\n", True),
    job_of_another_group=("apiVersion: batch.example.com/v1\nkind: Job\nmetadata: {name: x}\n", False),
    deployment_without_spec=("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n", True),
    null_template=("apiVersion: v1\nkind: PodTemplate\nmetadata: {name: x}\ntemplate: null\n", True),
)  # fmt: skip
def test_objects_without_pods(tmp_path: Path, text: str, known: bool) -> None:
    manifest = only(read(tmp_path, text))

    assert (manifest.name, manifest.pods, manifest.is_checked) == ("x", (), known)


def test_an_object_without_a_name_is_shown_all_the_same(tmp_path: Path) -> None:
    assert only(read(tmp_path, "apiVersion: v1\nkind: Pod\n")).title == "Pod default/(no name)"


@cases(
    ("metadata", "option", "want"),
    its_own=("{name: a, namespace: ml}", "other", "ml"),
    option=("{name: a}", "other", "other"),
    default=("{name: a}", None, "default"),
    null=("{name: a, namespace: null}", "other", "other"),
    empty=('{name: a, namespace: ""}', "other", "other"),
)
def test_namespace(tmp_path: Path, metadata: str, option: str | None, want: str) -> None:
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {metadata}\n"

    assert only(read(tmp_path, text, namespace=option)).namespace == want


def test_lists_are_unwrapped(tmp_path: Path) -> None:
    text = """\
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: a}
- apiVersion: v1
  kind: List
  items:
  - apiVersion: v1
    kind: Pod
    metadata: {name: b}
    spec:
      containers: []
---
apiVersion: v1
kind: PodList
items:
- metadata: {name: c}
---
apiVersion: v1
kind: List
"""

    found = read(tmp_path, text)

    assert [(each.kind, each.name, each.line_of()) for each in found.manifests] == [
        ("Pod", "a", 4),
        ("Pod", "b", 10),
        ("Pod", "c", 19),
    ]
    assert found.manifests[1].line_of(("spec", "containers")) == 14
    assert found.problems == []


@cases(
    ("text", "want"),
    no_apiversion=("kind: Pod\nmetadata: {name: a}\n", ["m.yaml:1: apiVersion: Required value"]),
    no_kind=("apiVersion: apps/v1\nspec: {}\n", ["m.yaml:1: kind: Required value"]),
    kind=("apiVersion: v1\nkind: 5\n",
        ["m.yaml:2: kind: must be text; YAML reads 5 as a number: quote it"]),
    empty_kind=('apiVersion: v1\nkind: ""\n', ["m.yaml:2: kind: Required value"]),
    null_kind=("apiVersion: v1\nkind: null\n", ["m.yaml:2: kind: Required value"]),
    metadata=("apiVersion: v1\nkind: Pod\nmetadata: [1]\n", ["m.yaml:3: metadata: must be a map, not a list"]),
    items=("apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: 5}\n- 7\n",
        [
            "m.yaml:6: items[0].metadata.name: must be text; YAML reads 5 as a number: quote it",
            "m.yaml:7: items[1]: must be an object: a map with apiVersion and kind",
        ]),
    items_no_list=("apiVersion: v1\nkind: List\nitems: {a: b}\n", ["m.yaml:3: items: must be a list"]),
    every_field_of_the_wrong_type=("""\
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec:
  template:
    metadata:
      annotations:
        gpu-fraction: 0.5
    spec:
      nodeSelector: {gpu: true}
      containers:
      - name: main
        env:
        - {name: A, value: 1}
        readinessProbe: {periodSeconds: "5"}
""",
        [
            "m.yaml:8: spec.template.metadata.annotations.gpu-fraction: must be text; YAML reads 0.5 as a number: quote it",
            "m.yaml:10: spec.template.spec.nodeSelector.gpu: must be text; YAML reads off, no and n as false, and on, "
            "yes and y as true: quote it",
            "m.yaml:14: spec.template.spec.containers[0].env[0].value: must be text; YAML reads 1 as a number: quote it",
            "m.yaml:15: spec.template.spec.containers[0].readinessProbe.periodSeconds: must be a whole number, "
            'not text "5"',
        ]),
    template_no_map=("apiVersion: apps/v1\nkind: Deployment\nspec:\n  template: x\n",
        ["m.yaml:4: spec.template: must be a map"]),
    a_field_beside_a_placeholder=(f"{POD}  terminationGracePeriodSeconds: ${{GRACE}}\n  nodeSelector: [a]\n",
        ["m.yaml:7: spec.nodeSelector: must be a map, not a list"]),
    spec_no_map=("apiVersion: apps/v1\nkind: Deployment\nspec: 5\n", ["m.yaml:3: spec: must be a map"]),
    the_second_of_several_templates=("apiVersion: ray.io/v1\nkind: RayCluster\nspec:\n  workerGroupSpecs:\n"
        "  - template: {spec: {containers: []}}\n  - template:\n      spec:\n        containers: none\n",
        ['m.yaml:8: spec.workerGroupSpecs[1].template.spec.containers: must be a list, not text "none"']),
    empty=("", ["m.yaml: must contain an object"]),
    only_comments=("# only\n---\n", ["m.yaml: must contain an object"]),
)  # fmt: skip
def test_bad_objects_are_reported_with_line_and_path(tmp_path: Path, text: str, want: list[str]) -> None:
    found = read(tmp_path, text)

    assert reported(found, tmp_path) == want
    assert found.manifests == []


@cases(
    ("text", "want"),
    list=("- 1\n", ["stdin:1: must be an object: a map with apiVersion and kind"]),
    text=("just text\n", ["stdin:1: must be an object: a map with apiVersion and kind"]),
    nothing_known=("a: 1\n", ["stdin:1: apiVersion: Required value", "stdin:1: kind: Required value"]),
    helm_chart=("apiVersion: v2\nname: chart\n", ["stdin:1: kind: Required value"]),
)  # fmt: skip
def test_a_stream_holds_nothing_but_manifests(
    monkeypatch: pytest.MonkeyPatch, text: str, want: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    assert [str(problem) for problem in read_manifests(["-"]).problems] == want


@cases(
    "text",
    values_of_a_chart="replicas: 1\nresources: {limits: {nvidia.com/gpu: 1}}\n",
    json_patch="- {op: add, path: /spec/replicas, value: 2}\n",
    text="just text\n",
    helm_chart="apiVersion: v2\nname: chart\nversion: 0.1.0\n",
    grafana_provisioning="apiVersion: 1\ndatasources: [{name: a}]\n",
    drone_pipeline="kind: pipeline\ntype: docker\nsteps: []\n",
)
def test_a_document_without_apiversion_and_kind_is_not_a_manifest(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, f"{text}---\n{POD}")

    assert only(found).name == "train"
    assert found.other_documents == 1


def test_duplicate_keys_warn_and_the_last_one_counts(tmp_path: Path) -> None:
    found = read(tmp_path, f"{POD}  nodeSelector: {{a: b}}\n  nodeSelector: {{c: d}}\n")

    ((at, _),) = only(found).pods
    assert at.data["spec"]["nodeSelector"] == {"c": "d"}
    (warning,) = found.warnings
    assert str(warning).endswith('m.yaml:7: Duplicate value: key "nodeSelector"; the last one counts')
    assert warning.column == 3


DEFINITION = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: a.b.c}
spec:
  group: b.c

  names:
  # comment
  - {kind: A}
status: {stored: [v1]}
"""


@pytest.mark.parametrize("with_crd_specs", [False, True])
def test_the_schema_of_a_definition_is_read_only_on_demand(tmp_path: Path, with_crd_specs: bool) -> None:
    deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 2}\n"

    found = read(
        tmp_path, f"{DEFINITION}---\n{POD}---\n{deployment}---\n{DEFINITION}", with_crd_specs=with_crd_specs
    )

    assert [(each.kind, each.line_of()) for each in found.manifests] == [
        ("CustomResourceDefinition", 1),
        ("Pod", 12),
        ("Deployment", 18),
        ("CustomResourceDefinition", 23),
    ]
    definition, pod, deployed, last = found.manifests
    assert ("spec" in definition.data, "spec" in last.data) == (with_crd_specs, with_crd_specs)
    assert definition.data["status"] == {"stored": ["v1"]}
    assert pod.data["spec"] == {"containers": [{"name": "main"}]}
    assert deployed.data["spec"] == {"replicas": 2}
    assert definition.line_of(("status",)) == 10


@cases(
    ("resources", "want"),
    a_limit=("limits: {nvidia.com/gpu: }", ["limits[nvidia.com/gpu]"]),
    both=(
        "{limits: {amd.com/gpu: }, requests: {amd.com/gpu: ~}}",
        ["limits[amd.com/gpu]", "requests[amd.com/gpu]"],
    ),
    of_the_kubelet=("limits: {cpu: , nvidia.com/gpu: 0}", []),
    a_name_that_says_the_amount=("limits: {nvidia.com/gpu=1}", []),
    elsewhere=("claims: {nvidia.com/gpu: }", []),
)
def test_an_amount_that_is_left_empty(tmp_path: Path, resources: str, want: list[str]) -> None:
    resources = resources if resources.startswith("{") else f"{{{resources}}}"
    text = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: b, resources: {resources}}}]}}\n"
    found = read(tmp_path, text)

    at = "m.yaml:4: spec.containers[0].resources"
    message = "is empty, which the API server reads as 0"
    assert [str(each).rpartition("/m.yaml")[2] for each in found.warnings] == [
        f"{at.removeprefix('m.yaml')}.{each}: {message}" for each in want
    ]


def test_a_placeholder_where_a_number_must_be_is_not_a_problem(tmp_path: Path) -> None:
    text = POD.replace("{name: main}", '{name: main, readinessProbe: {periodSeconds: "${PERIOD}"}}')

    manifest = only(read(tmp_path, text))

    assert manifest.pods == ()
    assert [each.sentence() for each in manifest.placeholders] == [
        'spec.containers[0].readinessProbe.periodSeconds = "${PERIOD}": a placeholder; render the file first'
    ]


def test_what_can_be_read_is_read(tmp_path: Path) -> None:
    text = f"{POD}---\na: [1\n---\napiVersion: v1\nkind: Pod\nspec: 5\n---\n{POD.replace('train', 'last')}"

    found = read(tmp_path, text)

    assert [manifest.name for manifest in found.manifests] == ["train", "last"]
    assert reported(found, tmp_path) == [
        "m.yaml:7: while parsing a flow sequence, did not find expected ',' or ']'",
        "m.yaml:11: spec: must be a map, not a whole number 5",
    ]


# ---- what the API server makes of an object before a webhook sees it


@cases(
    ("data", "want"),
    null_member=({"labels": None, "name": "a"}, {"name": "a"}),
    null_below=({"spec": {"tolerations": [{"key": None}]}}, {"spec": {"tolerations": [{}]}}),
    null_quantity_is_zero=({"limits": {"nvidia.com/gpu": None}}, {"limits": {"nvidia.com/gpu": 0}}),
    null_in_a_map_of_text=({"nodeSelector": {"a": None}}, {"nodeSelector": {"a": ""}}),
    null_in_a_list_of_text=({"args": [None, "x"]}, {"args": ["", "x"]}),
    null_in_a_list_of_objects=({"containers": [None]}, {"containers": [{}]}),
    keys_are_text=({"a": {1: "x", 0.5: "y"}}, {"a": {"1": "x", "0.5": "y"}}),
    boolean_keys=({True: 1, False: 2}, {"true": 1, "false": 2}),
    empty_is_not_null=({"a": 0, "b": "", "c": [], "d": False}, {"a": 0, "b": "", "c": [], "d": False}),
)  # fmt: skip
def test_nulls_and_keys_as_stored(data: Any, want: Any) -> None:
    assert without_nulls(data) == want


@cases(
    ("resources", "want"),
    no_requests=({"limits": {"a": "1"}}, {"limits": {"a": "1"}, "requests": {"a": "1"}}),
    one_missing=(
        {"limits": {"a": "1", "b": "2"}, "requests": {"a": "0"}},
        {"limits": {"a": "1", "b": "2"}, "requests": {"a": "0", "b": "2"}},
    ),
    no_limits=({"requests": {"a": "1"}}, {"requests": {"a": "1"}}),
    nothing=({}, {}),
)
def test_limits_become_requests(resources: Any, want: Any) -> None:
    def pod(shape: Any) -> Any:
        return {"spec": {"containers": [{"resources": shape}], "initContainers": [{"resources": shape}, {}]}}

    given = pod(resources)

    assert with_requests(given) == pod(want)
    assert given == pod(resources)


def test_only_pods_get_requests_from_limits(tmp_path: Path) -> None:
    spec = "{containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]}"
    workload = f"apiVersion: apps/v1\nkind: Deployment\nspec: {{template: {{spec: {spec}}}}}\n"
    text = f"apiVersion: v1\nkind: Pod\nspec: {spec}\n---\n{workload}"

    pods = [manifest.pods[0][0].data for manifest in read(tmp_path, text).manifests]

    assert [data["spec"]["containers"][0]["resources"] for data in pods] == [
        {"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": 1}},
        {"limits": {"nvidia.com/gpu": 1}},
    ]


@cases(
    ("written", "want"),
    integer=("1", 1),
    half=("0.5", 0.5),
    exponent=("1e3", 1000),
    whole_float=("1.0", 1),
    quoted=('"1"', "1"),
    suffix=("500m", "500m"),
    null=("null", 0),
)
def test_quantities_reach_the_rules_as_the_api_server_gets_them(
    tmp_path: Path, written: str, want: Any
) -> None:
    limits = f"{{limits: {{nvidia.com/gpu: {written}}}}}"
    ((_, pod),) = only(read(tmp_path, POD.replace("main", f"main, resources: {limits}"))).pods

    (place,) = pod.places
    assert place.container.resources is not None
    assert place.container.resources.limits == {"nvidia.com/gpu": want}
