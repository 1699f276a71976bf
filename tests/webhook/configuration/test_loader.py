import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from policies.policy import TemplateMode
from policies.rule import Mode
from tests.cases import cases
from tests.webhook.configuration.written import HEAD, gpu_quota, policy, problems_of, write
from webhook.configuration.loader import Configuration, load_directory


def gpu_class(spec: str, name: str = "own-card") -> str:
    return f"{HEAD}kind: GPUClass\nmetadata: {{name: {name}}}\nspec: {spec}\n"


def test_built_in_documents_alone() -> None:
    configuration = load_directory(None)

    assert configuration.policies.policies == ()
    assert "nvidia-t4" in {each.name for each in configuration.classes}
    assert configuration.resource_mapping.resource("nvidia.com/gpu") is not None
    assert configuration.resource_mapping.resource("cpu") is None


def test_a_policy_with_everything(tmp_path: Path) -> None:
    write(
        tmp_path,
        policy=policy(
            """
  priority: 5
  match: {namespaces: ["ml-*", training]}
  pausedUntil: 2027-01-31T18:00:00Z
  templates: enforce
  exemptions:
  - {namespaces: [ml-old], rules: [gpu-requests], reason: migration, until: 2027-01-31}
  rules:
    gpu-requests: {mode: warn, maxPerContainer: 8}
    gpu-toleration: {tolerations: [{key: dedicated, value: ml-workloads, effect: NoSchedule}]}
""",
            name="ml",
        ),
    )

    effective = load_directory(tmp_path).policies.for_namespace("ml-a")

    assert (effective.name, effective.why) == ("ml", "matches ml-*, training with priority 5")
    assert effective.paused_until == datetime(2027, 1, 31, 18, tzinfo=UTC)
    assert effective.templates is TemplateMode.ENFORCE
    sources = {bound.rule.id: bound.source for bound in effective.bound_rules}
    assert sources["gpu-requests"] == sources["gpu-toleration"] == "ml"
    assert sources["gpu-class"] == "built-in"
    requests = effective.options_of("gpu-requests")
    assert requests is not None
    assert requests.mode is Mode.WARN
    assert getattr(requests, "max_per_container", None) == 8


def test_a_rule_that_is_not_named_comes_from_the_default_policy(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=policy("{rules: {gpu-requests: {mode: audit}, gpu-class: {mode: warn}}}"),
        b=policy(
            '{priority: 1, match: {namespaces: ["ml-*"]}, rules: {gpu-class: {mode: disabled}}}', name="ml"
        ),
    )

    effective = load_directory(tmp_path).policies.for_namespace("ml-a")

    assert effective.why == "matches ml-* with priority 1, before default"
    sources = {bound.rule.id: (bound.source, bound.options.mode) for bound in effective.bound_rules}
    assert sources["gpu-requests"] == ("default", Mode.AUDIT)
    assert "gpu-class" not in sources


def test_a_class_of_ones_own_replaces_the_built_in_one(tmp_path: Path) -> None:
    write(tmp_path, t4=gpu_class("{memoryGiB: 15}", name="nvidia-t4"), own=gpu_class("{memoryGiB: 5}"))

    configuration = load_directory(tmp_path)

    replaced, added = configuration.classes.get("nvidia-t4"), configuration.classes.get("own-card")
    assert replaced is not None
    assert added is not None
    assert (replaced.memory_gib, added.memory_gib) == (15, 5)
    assert configuration.classes.get("nvidia-l4") is not None
    assert configuration.places == {
        ("GPUClass", "own-card"): "own.yaml:1",
        ("GPUClass", "nvidia-t4"): "t4.yaml:1",
    }


def test_a_vocabulary_of_ones_own_comes_first(tmp_path: Path) -> None:
    text = f"{HEAD}kind: GPUResourceMapping\nmetadata: {{name: own}}\nspec:\n  resources:\n"
    write(
        tmp_path,
        own=f"{text}  - {{pattern: example.com/card, measure: devices}}\n"
        "  - {pattern: nvidia.com/gpu, measure: nothing}\n",
    )

    resource_mapping = load_directory(tmp_path).resource_mapping

    assert resource_mapping.resource("example.com/card") is not None
    assert resource_mapping.resource("nvidia.com/gpu") is None
    assert resource_mapping.resource("amd.com/gpu") is not None


def test_json_documents_are_read(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(
        '{"apiVersion": "gpu-admission.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": "x"}, "spec": {}}'
    )

    assert [each.name for each in load_directory(tmp_path).policies.policies] == ["x"]


def test_version_follows_the_content(tmp_path: Path) -> None:
    write(tmp_path, p=policy("{priority: 1}"))
    first = load_directory(tmp_path).version
    write(tmp_path, p=policy("{priority: 2}"))
    second = load_directory(tmp_path).version
    write(tmp_path, p=policy("{priority: 1}"))

    assert first != second
    assert load_directory(tmp_path).version == first
    assert len(first) == 12


def test_other_and_hidden_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, p=policy("{}"))
    (tmp_path / "README.md").write_text("# not: [yaml")
    (tmp_path / ".p.yaml.swp").write_text("[")
    (tmp_path / ".hidden.yaml").write_text("[")

    assert [each.name for each in load_directory(tmp_path).policies.policies] == ["default"]


def said(of: str, *problems: str) -> list[str]:
    """Return problems in p.yaml, each written as its line, path below the spec of the document, and message."""
    parted = (problem.partition(" ") for problem in problems)
    return [f"p.yaml:{line}: {of} spec.{rest}" for line, _, rest in parted]


DEFAULT, OWN_CARD, OWN_MAPPING = "GPUPolicy/default", "GPUClass/own-card", "GPUResourceMapping/own"
BOOLEANS = "YAML reads off, no and n as false, and on, yes and y as true"
MAPPING = f"{HEAD}kind: GPUResourceMapping\nmetadata: {{name: own}}\nspec:\n  resources:\n"


@cases(
    ("text", "want"),
    mode_off=(policy("{rules: {gpu-requests: {mode: off}}}"), said(DEFAULT,
        f"4 rules.gpu-requests.mode: must be one of enforce, warn, audit, disabled; {BOOLEANS}: write disabled")),
    misspelt_rule=(policy("{rules: {gpu-reqests: {}}}"), said(DEFAULT,
        '4 rules.gpu-reqests: unknown rule "gpu-reqests"; did you mean gpu-requests?')),
    values_of_the_right_type_that_make_no_sense=(
        policy("\n  rules:\n    gpu-requests:\n      maxPerPod: -1\n    gpu-class: {allowed: [], labelKey: a b}\n"), said(DEFAULT,
        "7 rules.gpu-requests.maxPerPod: must be 0 or more, or null for no limit, not -1",
        '8 rules.gpu-class.allowed: must not be empty: set ["*"] to allow every class',
        '8 rules.gpu-class.labelKey: must be a label key, not "a b"')),
    everything_about_a_policy=(policy(
        "\n  pausedUntil: 2027-01-31T18:00:00\n  match: {namespaces: []}\n  exemptions:\n"
        "  - {namespaces: [], reason: ' ', rules: [gpu-clas]}\n"), said(DEFAULT,
        "5 pausedUntil: must have a time zone, such as 2027-01-31T18:00:00Z",
        '6 match.namespaces: must name at least one namespace; "*" matches all',
        "8 exemptions[0].namespaces: must name at least one namespace",
        "8 exemptions[0].reason: must say why the exemption exists",
        '8 exemptions[0].rules[0]: unknown rule "gpu-clas"; did you mean gpu-class?')),
    help_of_two_lines=(policy('{help: "two\\nlines"}'), said(DEFAULT, "4 help: must be one line of at most 256 characters")),
    class_that_makes_no_sense=(gpu_class("\n  memoryGiB: 0\n  nodeLabels:\n  - {key: a b, values: []}\n"), said(OWN_CARD,
        "5 memoryGiB: must be at least 1, not 0",
        '7 nodeLabels[0].key: must be a label key, not "a b"',
        "7 nodeLabels[0].values: must not be empty")),
    resource_mapping_that_makes_no_sense=(
        MAPPING + "  - {pattern: gpu, measure: devices}\n  - {pattern: a.b/*-*, measure: fraction}\n", said(OWN_MAPPING,
        "6 resources[0].pattern: must be a resource name such as example.com/gpu or example.com/*",
        "7 resources[1].measure: must not be fraction: amounts of resources are whole numbers",
        "7 resources[1].pattern: must have at most one *, after the /")),
    two_of_one_name=(policy("{}") + "---\n" + policy("{}"),
        ['p.yaml:8: GPUPolicy/default metadata.name: Duplicate value: "default", also in p.yaml:1']),
    another_api=("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n",
        ['p.yaml:1: ConfigMap/x apiVersion: Unsupported value: "v1": must be gpu-admission.dev/v1alpha1']),
    another_kind=(HEAD + "kind: GPUPolicies\nmetadata: {name: x}\nspec: {}\n", [
        'p.yaml:2: GPUPolicies/x kind: Unsupported value: "GPUPolicies": must be one of ClusterGPUQuota, GPUClass, GPUPolicy, '
        "GPUQuota, GPUResourceMapping; did you mean GPUPolicy?"]),
    no_object=("- 1\n", ["p.yaml:1: must be a map, not a list"]),
    bad_name=(HEAD + "kind: GPUPolicy\nmetadata: {name: My_Policy}\nspec: {}\n",
        ["p.yaml:3: GPUPolicy/My_Policy metadata.name: must consist of lower case letters, digits, - and ."]),
    every_document_is_reported=(
        policy("{priority: 1, priority: 2}") + "---\na: [1\n---\n" + policy("{prio: 1}", name="third"), [
        'p.yaml:4: Duplicate value: key "priority"',
        "p.yaml:6: while parsing a flow sequence, did not find expected ',' or ']'",
        "p.yaml:11: GPUPolicy/third spec.prio: unknown field; did you mean priority?"]),
)  # fmt: skip
def test_everything_wrong_is_reported_with_its_place(tmp_path: Path, text: str, want: list[str]) -> None:
    write(tmp_path, p=text)

    assert problems_of(tmp_path) == want


PRINTED = """\
apiVersion: v1
items:
- apiVersion: gpu-admission.dev/v1alpha1
  kind: GPUPolicy
  metadata:
    annotations:
      kubectl.kubernetes.io/last-applied-configuration: |
        {}
    creationTimestamp: "2026-11-23T08:00:00Z"
    generation: 2
    managedFields: [{manager: kubectl, operation: Apply}]
    name: default
    resourceVersion: "41"
    uid: 6f1d
  spec: {priority: 3}
  status: {accepted: {priority: 3}, conditions: []}
- apiVersion: gpu-admission.dev/v1alpha1
  kind: GPUQuota
  metadata: {name: default, namespace: ml, uid: 7a2e}
  spec: {hard: {gpus: 8}}
  status: {used: {gpus: "2"}}
kind: List
metadata: {resourceVersion: ""}
"""
"""What `kubectl get gpup,gpuq -A -o yaml` prints."""


def test_a_file_of_what_kubectl_prints(tmp_path: Path) -> None:
    write(tmp_path, p=PRINTED)

    loaded = [load_directory(path) for path in (tmp_path, tmp_path / "p.yaml")]

    for each in loaded:
        assert [policy.spec.priority for policy in each.policies.policies] == [3]
        assert {name: spec.amounts for name, spec in each.quotas.items()} == {"ml": {"gpus": 8}}
    assert dict(loaded[0].places) == {
        ("GPUPolicy", "default"): "p.yaml:3",
        ("GPUQuota", "ml"): "p.yaml:17",
    }


def test_problems_in_a_list_have_their_line(tmp_path: Path) -> None:
    write(tmp_path, p=PRINTED.replace("priority: 3}", "prio: 3}").replace("uid: 6f1d", "uuid: 6f1d"))

    assert problems_of(tmp_path) == [
        "p.yaml:14: GPUPolicy/default metadata.uuid: unknown field: must be one of name, namespace, labels, annotations",
        "p.yaml:15: GPUPolicy/default spec.prio: unknown field; did you mean priority?",
    ]


@cases(
    ("text", "want"),
    a_class_beside_a_misspelt_option=(
        policy("{rules: {gpu-class: {default: nvidia-a10O, labelkey: x}}}"),
        [
            'spec.rules.gpu-class.default: must be a class or a family, not "nvidia-a10O": did you mean nvidia-a10?',
            "spec.rules.gpu-class.labelkey: unknown field; did you mean labelKey?",
        ],
    ),
    a_rule_of_options_beside_one_of_the_wrong_type=(
        policy("{rules: {gpu-requests: {gpusPerNode: 0, maxPerPod: many}}}"),
        [
            "spec.rules.gpu-requests.gpusPerNode: must be 1 or more, not 0",
            'spec.rules.gpu-requests.maxPerPod: must be a whole number or a map, not text "many"',
        ],
    ),
    an_option_of_earlier_versions_beside_a_wrong_one=(
        policy("{rules: {gpu-quota: {trustKueue: true, onExceeded: Wait}}}"),
        [
            'spec.rules.gpu-quota.onExceeded: Unsupported value: "Wait": must be one of Deny, Queue',
            "spec.rules.gpu-quota.trustKueue: must be removed, or replaced by kueue: respect: else what Kueue has admitted "
            "waits as any other pod",
        ],
    ),
    an_invalid_list_is_not_also_empty=(
        policy("{rules: {gpu-class: {allowed: nvidia-a100}}}"),
        ['spec.rules.gpu-class.allowed: must be a list, not text "nvidia-a100"'],
    ),
    an_unknown_class_in_a_quota_of_another_name=(
        f"{HEAD}kind: GPUQuota\nmetadata: {{name: mine, namespace: ml}}\n"
        "spec: {hard: {gpus: [], classes: {nvidia-a10O: 1}}}\n",
        [
            "metadata.name: must be default: a namespace has at most one GPUQuota",
            "spec.hard.classes.nvidia-a10O: must be a GPU class or family; did you mean nvidia-a10?",
            "spec.hard.gpus: must be a whole number or text, not a list",
        ],
    ),
    an_api_version_that_does_not_exist=(
        policy("{x: 1}").replace("v1alpha1", "v1"),
        [
            'apiVersion: Unsupported value: "gpu-admission.dev/v1": must be gpu-admission.dev/v1alpha1; did you mean '
            "gpu-admission.dev/v1alpha1?",
            "spec.x: unknown field: must be one of priority, match, pausedUntil, exemptions, templates, help, rules",
        ],
    ),
    a_class_that_an_invalid_document_may_define=(
        policy("{rules: {gpu-class: {default: own-card, allowed: [own-*, none-*]}}}")
        + "---\n"
        + gpu_class("{}"),
        ['spec.rules.gpu-class.allowed[1]: "none-*" matches no class', "spec.memoryGiB: Required value"],
    ),
)
def test_one_problem_hides_no_other(text: str, want: list[str], tmp_path: Path) -> None:
    write(tmp_path, a=text)

    assert sorted(each.partition(" ")[2].partition(" ")[2] for each in problems_of(tmp_path)) == sorted(want)


def test_problems_of_all_files_at_once(tmp_path: Path) -> None:
    write(tmp_path, b=policy("{x: 1}"), a=gpu_class("{}"))
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "d.yaml").mkdir()

    assert problems_of(tmp_path) == [
        "a.yaml:4: GPUClass/own-card spec.memoryGiB: Required value",
        "b.yaml:4: GPUPolicy/default spec.x: unknown field: must be one of priority, match, pausedUntil, exemptions, "
        "templates, help, rules",
        "c.yaml: must be UTF-8 text",
        "d.yaml: Is a directory",
    ]


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text("")
    os.truncate(path, 5 * 1024 * 1024)

    assert problems_of(tmp_path) == ["huge.yaml: must be at most 4 MiB"]


def test_no_directory(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "missing") == [f"{tmp_path}/missing: No such file or directory"]


def test_an_empty_directory_is_no_configuration(tmp_path: Path) -> None:
    assert problems_of(tmp_path) == [
        f"{tmp_path}: must contain a .yaml, .yml or .json file; the built-in defaults hold where no directory is named"
    ]


SHARES = "migProfiles: {1g.10gb: {sevenths: 1, memoryGiB: 10, perGPU: 1, weight: 1}}"
BYTES = "model-warming: {cacheSizeLimit: 214748364800, resources: {cpu: 2, memory: 2147483648}}"


@cases(
    "text",
    gpus=gpu_quota("{hard: {gpus: 16}}"),
    gpus_of_a_class=gpu_quota("{hard: {classes: {nvidia-t4: 2, nvidia-a100: 0}}}"),
    units_of_a_resource=gpu_quota("{hard: {resources: {nvidia.com/mig-1g.10gb: 14}}}"),
    shares_of_a_card=gpu_class(f"{{memoryGiB: 10, equivalents: {{nvidia.com/gpu: 1}}, {SHARES}}}"),
    quantities=policy(f"{{rules: {{shared-memory: {{sizeLimit: 17179869184}}, {BYTES}}}}}"),
)
def test_an_amount_may_be_a_number(tmp_path: Path, text: str) -> None:
    assert len(load_directory(write(tmp_path, p=text)).documents) == 1


SELECTOR = "namespaceSelector: {matchLabels: {team: ml}}"
TEAM = "namespaces: {names: [vision-*]}, hard: {gpus: 64}, guaranteed: {vision-a: {gpus: 8}}"
LABELS = "namespaceSelector: must be omitted with --standalone: a cluster has the labels of namespaces"


@cases(
    ("text", "is_read", "want"),
    a_selector=(
        policy(f"\n  match: {{{SELECTOR}}}\n  exemptions: [{{namespaces: ['*'], reason: ours, {SELECTOR}}}]"),
        lambda read: read.policies.has_selectors,
        [f"p.yaml:5: {DEFAULT} spec.match.{LABELS}", f"p.yaml:6: {DEFAULT} spec.exemptions[0].{LABELS}"],
    ),
    a_line=(
        policy("\n  rules: {gpu-quota: {onExceeded: Queue}}"),
        lambda read: read.policies.lets_pods_wait,
        [
            f"p.yaml:5: {DEFAULT} spec.rules.gpu-quota.onExceeded: must be Deny with --standalone: "
            "gpu-admission controller starts the pods that wait in line"
        ],
    ),
    a_team=(
        f"{HEAD}kind: ClusterGPUQuota\nmetadata: {{name: team-vision}}\nspec: {{{TEAM}}}\n",
        lambda read: read.teams["team-vision"].guarantees == {"vision-a": {"gpus": 8}},
        [
            "p.yaml:2: ClusterGPUQuota/team-vision kind: must be omitted with --standalone: "
            "a cluster has the namespaces of a team"
        ],
    ),
)
def test_what_needs_a_cluster(
    tmp_path: Path, text: str, is_read: Callable[[Configuration], bool], want: list[str]
) -> None:
    write(tmp_path, p=text)

    assert is_read(load_directory(tmp_path))
    assert problems_of(tmp_path, standalone=True) == want
