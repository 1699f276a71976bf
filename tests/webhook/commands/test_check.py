import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.commands.checking import (
    DEPLOYMENT,
    GOOD,
    GPU_POD,
    HALF,
    HEAD,
    check,
    configuration,
    document,
    stream,
    words,
)
from webhook.commands import main
from webhook.configuration.yaml_documents import YamlDocument, load_documents

TOLERANT = GOOD + "  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]\n"
MISSPELT = GPU_POD.replace("{nvidia.com/gpu: COUNT}", "{nvidia/gpu: 1}")
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: front}\n"


@cases(
    ("text", "want", "summary"),
    ok=(TOLERANT, 0, "1 object: 0 denied, 0 would change, 1 ok"),
    changed=(GOOD, 0, "1 object: 0 denied, 1 would change, 0 ok"),
    refused=(HALF, 1, "1 object: 1 denied, 0 would change, 0 ok"),
    only_warned_about=(MISSPELT, 0, "1 object: 0 denied, 0 would change, 0 ok, 1 warned about; 1 warning"),
    changed_and_warned_about=(MISSPELT.replace("{nvidia/gpu: 1}", "{nvidia.com/gpu: 1, nvidia/gpu: 1}"),
        0,
        "1 object: 0 denied, 1 would change, 0 ok; 1 warning"),
    skipped=(SERVICE,
        0,
        "1 object: 0 denied, 0 would change, 0 ok, 1 skipped (not known to have pods: Service)"),
    bad_input=("a: [", 2, "0 objects: 0 denied, 0 would change, 0 ok; 1 problem in the input"),
    bad_input_beside_a_refusal=(stream(HALF, "a: ["),
        2,
        "1 object: 1 denied, 0 would change, 0 ok; 1 problem in the input"),
)  # fmt: skip
def test_exit_status_and_summary(text: str, want: int, summary: str) -> None:
    result = check("-f", "-", stdin=text)

    codes = [check("-f", "-", "-o", output, stdin=text).exit_code for output in ("yaml", "json", "diff")]
    assert [result.exit_code, *codes] == [want] * 4
    assert words(result).endswith(summary)


def test_what_is_skipped_has_a_line_and_a_problem_is_an_error() -> None:
    """The other lines of the text are in the documentation, whose output is held to what is printed."""
    result = check("-f", "-", stdin=stream(GOOD, SERVICE, "kind: X\n"))

    assert result.stdout.splitlines()[2:] == [
        "skipped  stdin:11  Service front",
        "",
        "2 objects: 0 denied, 1 would change, 0 ok, 1 skipped (not known to have pods:",
        "Service); 1 problem in the input",
    ]
    assert result.stderr.splitlines() == ["error: stdin:15: apiVersion: Required value"]


def test_what_a_rule_only_audits_is_reported_as_that(tmp_path: Path) -> None:
    audited = configuration(tmp_path, "{rules: {gpu-requests: {mode: audit}}}")

    assert "stdin:9: audit only: spec.containers[0]" in words(
        check("-f", "-", "--config", audited, stdin=HALF)
    )


CPU = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: web}]}\n"
VOID = "env NVIDIA_VISIBLE_DEVICES=void"
BESIDE = ", {name: side, resources: {limits: {nvidia.com/gpu: 1}}}]}"


@cases(
    ("text", "is_isolated"),
    no_gpu=(CPU, False),
    in_a_template=(DEPLOYMENT.replace("nvidia.com/gpu: COUNT", "cpu: 1"), False),
    beside_a_gpu=(CPU.replace("]}", BESIDE), True),
    a_network_card=(CPU.replace("image: web", "resources: {limits: {example.com/nic: 1}}"), True),
    our_annotation=(CPU.replace("{name: web}", "{name: web, annotations: {gpu-admission.dev/gpu-class: nvidia-a10}}"), True),
    a_fraction=(CPU.replace("{name: web}", "{name: web, annotations: {gpu-fraction: '0.5'}}"), True),
    a_claim=(CPU.replace("spec: {", "spec: {resourceClaims: [{name: gpu, resourceClaimName: gpu}], "), True),
    our_gate=(CPU.replace("spec: {", "spec: {schedulingGates: [{name: gpu-admission.dev/quota}], "), True),
)  # fmt: skip
def test_a_pod_that_the_api_server_does_not_send_gets_nothing(
    tmp_path: Path, text: str, is_isolated: bool
) -> None:
    enforced = configuration(tmp_path, "{rules: {gpu-isolation: {mode: enforce}}}")

    assert (VOID in words(check("-f", "-", stdin=text))) is is_isolated
    assert (VOID in words(check("-f", "-", "--config", enforced, stdin=text))) is is_isolated


def test_our_gate_goes_where_pods_do_not_wait() -> None:
    gated = GOOD.replace(
        "spec:\n", "spec:\n  schedulingGates: [{name: other}, {name: gpu-admission.dev/quota}]\n", 1
    )

    assert (
        'warning: spec.schedulingGates = "gpu-admission.dev/quota": is removed: pods of this namespace do not wait in line '
        "for quota [gpu-quota]"
    ) in words(check("-f", "-", stdin=gated))
    (pod,) = yaml.safe_load_all(check("-f", "-", "-o", "yaml", stdin=gated).stdout)
    assert pod["spec"]["schedulingGates"] == [{"name": "other"}]


@cases(
    ("templates", "gpus", "want"),
    warn=("warn", "2", "the Deployment itself is admitted with a warning; its pods are denied"),
    enforce=("enforce", "2", "the Deployment itself is denied (policy: templates: enforce)"),
    what_validation_refuses=("warn", "0.5", "the API server rejects the Deployment itself, in its own words"),
)
def test_a_workload_whose_pods_would_be_refused(tmp_path: Path, templates: str, gpus: str, want: str) -> None:
    rules = "rules: {gpu-requests: {maxPerContainer: 1}}"
    config = configuration(tmp_path, f"{{templates: {templates}, {rules}}}")

    result = check("-f", "-", "--config", config, stdin=DEPLOYMENT.replace("COUNT", gpus))

    assert result.exit_code == 1
    assert "stdin:12: containers[0].resources.limits[nvidia.com/gpu]" in words(result)
    assert want in words(result)


def test_claims_of_other_classes_are_denied_and_fixed(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    config = configuration(folder, "{rules: {gpu-class: {allowed: [nvidia-a100]}}}")
    cluster = Path("examples/dra/cluster.yaml").read_text(encoding="utf-8")
    other = cluster.replace("gpu-node-1", "gpu-node-2").replace("H100 80GB HBM3", "A100-SXM4-80GB")
    claims = Path("examples/dra/claims.yaml").read_text(encoding="utf-8")
    manifests = tmp_path / "claims.yaml"
    manifests.write_text(claims.replace("gpus: 1", "gpus: 2"), encoding="utf-8")
    for name, text in (
        ("cluster.yaml", cluster),
        ("other.yaml", other.partition("---\n")[2].partition("---\n")[2]),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")

    result = check("-f", str(tmp_path), "--config", config)

    assert result.exit_code == 1
    assert words(result).count("the ResourceClaim itself is denied") == 3
    fixed = check(
        "--fix",
        "--yes",
        str(manifests),
        str(tmp_path / "cluster.yaml"),
        str(tmp_path / "other.yaml"),
        "--config",
        config,
    )
    assert "4 findings can be fixed in 1 file, 0 denials left" in fixed.stderr
    assert manifests.read_text(encoding="utf-8").count(".productName == 'NVIDIA A100-SXM4-80GB'") == 4


def test_what_the_claims_of_the_example_count() -> None:
    """A seventh, and the larger of two alternatives: 9/14 of a card."""
    assert "requested 1 GPU, 0.64 of 1 used" in words(check("-f", "examples/dra"))


def test_of_what_is_refused_there_is_no_diff() -> None:
    result = check("-f", "-", "-o", "diff", stdin=stream(HALF, SERVICE))

    assert result.stdout == ""
    assert result.stderr.startswith("denied: stdin:1 Pod default/train\n  stdin:9: spec.containers[0]")


def test_diff_of_a_workload_says_whose_it_is() -> None:
    lines = check("-f", "-", "-o", "diff", stdin=DEPLOYMENT.replace("COUNT", "1")).stdout.splitlines()

    assert (
        lines[1] == "+++ stdin:1 Deployment ml/serve (as its pods would be; the object itself is not changed)"
    )
    assert [line for line in lines[2:] if line.startswith("+")] == [
        "+      tolerations:",
        "+      - key: nvidia.com/gpu",
        "+        operator: Exists",
        "+        effect: NoSchedule",
    ]


def test_yaml_holds_what_would_be_admitted() -> None:
    result = check(
        "-f", "-", "-o", "yaml", stdin=stream(HALF, GOOD, DEPLOYMENT.replace("COUNT", "1"), SERVICE)
    )

    admitted = [item.data for item in load_documents(result.stdout) if isinstance(item, YamlDocument)]
    assert [each["kind"] for each in admitted] == ["Pod", "Deployment", "Service"]
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert admitted[0]["spec"]["tolerations"] == tolerations
    assert list(admitted[0]) == ["apiVersion", "kind", "metadata", "spec"]
    assert admitted[1]["spec"]["template"]["spec"]["tolerations"] == tolerations
    assert admitted[1]["spec"]["replicas"] == 2
    assert (
        "# The pod template is shown as its pods would be; the object itself is not changed." in result.stdout
    )
    assert result.stderr.startswith("denied: stdin:1 Pod default/train\n")


def test_yaml_holds_definitions_whole() -> None:
    text = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nspec:\n  group: b.c\n"

    (shown,) = load_documents(check("-f", "-", "-o", "yaml", stdin=text).stdout)

    assert isinstance(shown, YamlDocument)
    assert shown.data["spec"] == {"group": "b.c"}


def test_what_was_admitted_once_needs_nothing_more() -> None:
    once = check("-f", "-", "-o", "yaml", stdin=stream(GOOD, DEPLOYMENT.replace("COUNT", "1"))).stdout

    summary = document(stdin=once)["summary"]
    verdicts = ("denied", "changed", "warned", "unknown", "skipped")
    nothing = dict.fromkeys((*verdicts, "warnings", "problems", "otherDocuments"), 0)
    assert summary == {**nothing, "objects": 2, "ok": 2, "skippedKinds": {}}


def test_json_of_a_change_and_a_refusal() -> None:
    shown = document("-n", "ml-a", stdin=stream(GOOD, HALF, "kind: X\n", SERVICE))
    changed, refused, _ = shown["objects"]

    assert (changed["line"], changed["namespace"], changed["verdict"]) == (1, "ml-a", "changed")
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert changed["pods"] == [
        {
            "path": "",
            "count": 1,
            "policy": {
                "name": "built-in",
                "version": "built-in",
                "why": "no policy matches this namespace",
                "templates": "warn",
            },
            "exemption": None,
            "findings": [],
            "changes": [
                {
                    "rule": "gpu-toleration",
                    "what": "toleration nvidia.com/gpu:NoSchedule",
                    "operations": [{"op": "add", "path": "/spec/tolerations", "value": [toleration]}],
                }
            ],
        }
    ]
    (finding,) = refused["pods"][0]["findings"]
    path = "spec.containers[0].resources.limits[amd.com/gpu]"
    assert (finding["path"], finding["line"], finding["column"]) == (path, 19, 16)
    assert (finding["container"], finding["value"], finding["outcome"]) == ("main", "500m", "denied")
    assert (finding["reason"], finding["fix"]) == ("FractionalGPU", [{"path": path, "value": 1}])
    problem = {"file": "stdin", "line": 21, "column": 1, "path": "apiVersion", "message": "Required value"}
    assert (shown["problems"], shown["summary"]["skippedKinds"]) == ([problem], {"Service": 1})


def test_exemptions_end_with_the_time_that_is_asked_about(tmp_path: Path) -> None:
    config = configuration(
        tmp_path, "{exemptions: [{namespaces: [old], reason: migration, until: 2027-01-31}]}"
    )
    arguments = ["-f", "-", "-n", "old", "--config", config, "--now"]

    before = check(*arguments, "2027-01-31T23:59:59Z", stdin=HALF)
    after = check(*arguments, "2027-02-01T00:00:00Z", stdin=HALF)

    assert (before.exit_code, after.exit_code) == (0, 1)
    assert "exempted by policy default: migration" in before.stdout


def test_daemonsets_are_not_pinned_to_a_class(tmp_path: Path) -> None:
    config = configuration(tmp_path, "{rules: {gpu-class: {default: nvidia-t4}}}")
    workload = DEPLOYMENT.replace("COUNT", "1")

    def injected(text: str) -> set[str]:
        shown = document("--config", config, stdin=text)
        return {change["what"] for change in shown["objects"][0]["pods"][0]["changes"]}

    pin = "nodeSelector accelerator=nvidia-t4"
    assert pin in injected(workload)
    assert pin not in injected(workload.replace("Deployment", "DaemonSet"))


def test_a_bad_configuration_checks_nothing(tmp_path: Path) -> None:
    config = configuration(tmp_path, "{rules: {gpu-requests: {mode: off}}, x: 1}")

    result = check("-f", "-", "--config", config, stdin=GOOD)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert [line.split(": must")[0].split(": unknown")[0] for line in result.stderr.splitlines()] == [
        "error: policy.yaml:4: GPUPolicy/default spec.rules.gpu-requests.mode",
        "error: policy.yaml:4: GPUPolicy/default spec.x",
        "2 problems; nothing was done",
    ]


@cases(("text", "path"), pod=(GPU_POD, "spec.containers[0]"), template=(DEPLOYMENT, "containers[0]"))
@pytest.mark.parametrize("mode", ["enforce", "disabled"])
def test_what_exceeds_a_limit_is_refused_whatever_the_mode(
    tmp_path: Path, text: str, path: str, mode: str
) -> None:
    names = ", ".join(f"nvidia.com/mig-{number}g.5gb: 1" for number in range(33))
    long = text.replace("nvidia.com/gpu: COUNT", names)
    config = configuration(tmp_path, f"{{rules: {{gpu-requests: {{mode: {mode}}}}}}}")
    result = check("-f", "-", "--config", config, stdin=long)

    assert result.exit_code == 1
    assert path in result.stdout
    assert "must name at most 16 GPU resources in all containers" in words(result)


def test_labels_are_those_of_the_namespaces_that_are_checked(tmp_path: Path) -> None:
    spec = "{match: {namespaceSelector: {matchLabels: {gpus: none}}}, rules: {gpu-requests: {maxPerPod: 0}}}"
    (tmp_path / "policy.yaml").write_text(f"{HEAD.replace('default', 'none')}spec: {spec}\n")
    namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: {gpus: VALUE}}\n"
    manifests = (stream(namespace.replace("VALUE", value), GOOD) for value in ("none", "all"))

    codes = [
        check("-f", "-", "--config", str(tmp_path), "-n", "team", stdin=text).exit_code
        for text in (*manifests, GOOD)
    ]

    assert codes == [1, 0, 0]


KIND = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUResourceMapping
metadata: {name: ours}
spec:
  workloadKinds:
  - {group: example.com, kind: TrainingJob, pods: [{path: spec.podTemplate, replicas: [spec.size]}]}
"""
JOB = {"apiVersion": "example.com/v1", "kind": "TrainingJob", "metadata": {"name": "train"}}


@cases(
    ("size", "count", "want"),
    as_written=(3, 3, "3 pods at spec.podTemplate"),
    one=(1, 1, "1 pod at spec.podTemplate"),
    by_a_parameter=("{{size}}", None, "an unknown number of pods at spec.podTemplate"),
)
def test_how_many_pods_are_counted_of_a_kind_of_ones_own(
    size: object, count: int | None, want: str, tmp_path: Path
) -> None:
    (tmp_path / "kinds.yaml").write_text(KIND)
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    job = json.dumps({**JOB, "spec": {"size": size, "podTemplate": template}})
    arguments = ["check", "-f", "-", "--config", str(tmp_path)]

    (shown,) = json.loads(CliRunner().invoke(main, [*arguments, "-o", "json"], input=job).stdout)["objects"]

    assert [(pods["path"], pods["count"]) for pods in shown["pods"]] == [("spec.podTemplate", count)]
    assert want in [
        line.strip() for line in CliRunner().invoke(main, arguments, input=job).stdout.splitlines()
    ]
