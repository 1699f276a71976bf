"""The chart: its values are documented and checked, presets say what they promise, and nothing in it holds a certificate."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.registry import RULES
from policies.rule import FETCHER_IMAGE
from tests.cases import cases
from tests.controlplane import helm
from tests.deploy.manifests import (
    CHART,
    IMAGE,
    README,
    RELEASE,
    ROOT,
    STATIC,
    WORKLOAD_RULES,
    arguments,
    chart_readme,
    of_kind,
    pods,
    rendered,
    roles,
    static,
    template,
    webhooks,
    workload_rules,
)
from webhook.commands.controller import controller
from webhook.commands.serve import serve
from webhook.configuration.advice import without_added_annotations
from webhook.configuration.loader import load_directory
from webhook.server.settings import ServerSettings

pytestmark = pytest.mark.usefixtures("rendering")
PRESETS = ("first-install", "production", "eks", "gke-private", "openshift")
SETS: dict[str, tuple[str | Path, ...]] = {
    "default": (),
    **{name: ("-f", CHART / f"values-{name}.yaml") for name in PRESETS},
    "cert-manager": ("--set", "certificates.certManager.enabled=true"),
    "measured": (
        "--set",
        "use.enabled=true,use.prometheus.url=https://prometheus:9090,use.prometheus.caSecret=ca",
    ),
    "known-callers": (
        "--set",
        "webhook.clientAuthentication.caConfigMap=callers,webhook.clientAuthentication.names={kube-apiserver}",
    ),
}
each_set = pytest.mark.parametrize("values", SETS.values(), ids=SETS)


@each_set
def test_lint_finds_nothing(values: tuple[str | Path, ...]) -> None:
    said = helm.run("lint", "--strict", CHART, "--set", f"image.repository={IMAGE}", *values)

    assert "[WARNING]" not in said
    assert "1 chart(s) linted, 0 chart(s) failed" in said


def test_static_manifests_are_what_the_chart_makes() -> None:
    wanted = static()

    assert {name: (STATIC / name).read_text() for name in wanted} == wanted, "run `make manifests`"


def test_without_an_image_nothing_is_rendered() -> None:
    with pytest.raises(
        helm.HelmFailed, match=r"image\.repository must be set: build the image with deploy/Dockerfile"
    ):
        helm.run("template", RELEASE, CHART)


def test_the_readme_has_every_value() -> None:
    text = README.read_text()

    assert text == chart_readme(), "run `make manifests`"
    schema = json.loads((CHART / "values.schema.json").read_text())
    shown = {tuple(path.split(".")) for path in re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE)}
    missing = {path for path in schema_paths(schema) if not any(each[: len(path)] == path for each in shown)}
    assert missing == {("global",)}
    assert "| `webhook.preStopSeconds` | `5` | Between a pod's deletion and SIGTERM" in text


def test_artifact_hub_reads_kinds_that_there_are_and_examples_that_load(tmp_path: Path) -> None:
    """Its own annotations, as its documentation has them ("Artifact Hub annotations in Helm Chart.yaml file")."""
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    listed = yaml.safe_load(annotations["artifacthub.io/crds"])
    examples = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    definitions = [yaml.safe_load(path.read_text()) for path in (CHART / "files" / "crds").iterdir()]
    (tmp_path / "documents.yaml").write_text(
        yaml.safe_dump_all(each for each in examples if each["kind"] != "GPUQuota")
    )

    assert {(each["name"], each["kind"], each["version"]) for each in listed} == {
        (each["metadata"]["name"], each["spec"]["names"]["kind"], each["spec"]["versions"][0]["name"])
        for each in definitions
    }
    written = [each["kind"] for each in listed if each["kind"] != "GPUQuotaLedger"]  # by people
    assert [each["kind"] for each in examples] == written
    assert {each.name for each in load_directory(tmp_path).policies.policies} == {"default"}
    assert annotations["artifacthub.io/category"] == "ai-machine-learning"


def test_rules_for_workloads_are_those_of_the_table() -> None:
    assert WORKLOAD_RULES.read_text() == workload_rules(), "run `make manifests`"


def test_kinds_of_ones_own_get_rules_like_the_built_in_ones() -> None:
    value = 'webhooks.extraWorkloads=[{"apiGroup": "example.com", "resources": ["trainingjobs", "sweeps"]}]'
    name = "custom-workloads.validate.gpu-admission.dev"
    (entry,) = (entry for entry in webhooks(rendered("--set-json", value)) if entry["name"] == name)

    *built_in, last = entry["rules"]
    assert built_in == yaml.safe_load(workload_rules())
    assert last == {**built_in[0], "apiGroups": ["example.com"], "resources": ["trainingjobs", "sweeps"]}


def test_annotations_of_ones_own_are_in_every_condition_on_annotations() -> None:
    own = ["example.com/gpu-part", "a"]
    documents = rendered("--set", f"webhooks.fractionAnnotations={{{','.join(own)}}}")
    conditions = [each for each in expressions(documents) if "gpu-fraction" in each]

    assert len(conditions) == 5
    assert all(f"'{key}'" in condition for key in own for condition in conditions)
    as_shipped = expressions(rendered())
    assert {without_added_annotations(each) for each in conditions} <= {
        "".join(each.split()) for each in as_shipped
    }


def expressions(documents: list[dict[str, Any]]) -> list[str]:
    conditions = (each for webhook in webhooks(documents) for each in webhook.get("matchConditions", ()))
    return [condition["expression"] for condition in conditions]


@cases(
    ("values", "want"),
    unknown=("replicas=3", "additional properties 'replicas' not allowed"),
    unknown_deeper=("webhook.replica=3", "additional properties 'replica' not allowed"),
    no_replica=("webhook.replicas=0", "minimum: got 0, want 1"),
    not_a_number=("webhook.replicas=many", "got string, want integer"),
    not_a_choice=("webhooks.failurePolicy=Maybe", "'Fail', 'Ignore'"),
    not_a_namespace=("webhooks.excludedNamespaces={Team_A}", "does not match pattern"),
    not_a_digest=("image.digest=latest", "does not match pattern"),
    not_an_api_group=(
        "webhooks.extraWorkloads[0].apiGroup=example.com/v1,webhooks.extraWorkloads[0].resources={jobs}",
        "does not match pattern",
    ),
    secret_of_the_authority=("certificates.secretName=gpu-admission-ca", "'not' failed"),
    not_an_image=("fetcher.image.name=f", "additional properties 'name' not allowed"),
    not_resources=("webhook.resources.limit.cpu=1", "additional properties 'limit'"),
    not_an_authority=("webhook.clientAuthentication.ca=x", "additional properties 'ca' not allowed"),
    empty_name=("webhook.clientAuthentication.names={}", "minLength: got 0, want 1"),
    a_quote_in_a_key=("webhooks.fractionAnnotations={it's}", "does not match pattern"),
    not_a_key=("webhooks.fractionAnnotations={a/b/c}", "does not match pattern"),
    policy_without_spec=("policies[0].name=default", "missing property 'spec'"),
    not_a_peer=("networkPolicy.webhookFrom[0].cidr=10.0.0.0/8", "additional properties 'cidr'"),
)
def test_the_schema_refuses(values: str, want: str) -> None:
    with pytest.raises(helm.HelmFailed, match=re.escape(want)):
        template("--set", values)


def test_every_value_is_in_the_schema_and_explained() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    lines = (CHART / "values.yaml").read_text().splitlines()

    assert set(paths(yaml.safe_load("\n".join(lines)), schema)) == set(schema_paths(schema)) - {("global",)}
    bare = [line for before, line in zip(["", *lines], lines, strict=False) if not explained(before, line)]
    assert not bare


def paths(values: dict[str, Any], schema: dict[str, Any], *at: str) -> Iterator[tuple[str, ...]]:
    """Yield where the leaves of `values` are: what the schema does not look into is one."""
    for key, value in values.items():
        inner = schema.get("properties", {}).get(key, {})
        if isinstance(value, dict) and "properties" in inner:
            yield from paths(value, inner, *at, key)
        else:
            yield (*at, key)


def schema_paths(schema: dict[str, Any], *at: str) -> Iterator[tuple[str, ...]]:
    for key, inner in schema["properties"].items():
        if "properties" in inner:
            assert inner["additionalProperties"] is False, (*at, key)
            yield from schema_paths(inner, *at, key)
        else:
            yield (*at, key)


# Kubernetes' own fields, which its documentation explains, and values that the comment on their group explains.
WELL_KNOWN = re.compile(
    r" *(#|$|\w+:$|pullPolicy|resources|requests|limits|podAnnotations|nodeSelector|tolerations|affinity"
    r"|enabled|labels|duration|interval|seconds|runAsNonRoot|seccompProfile|allowPrivilegeEscalation"
    r"|readOnlyRootFilesystem|capabilities|minReplicas|maxReplicas|extraVolume|hostNetwork|metricsPort)"
)


def explained(before: str, line: str) -> bool:
    return bool(WELL_KNOWN.match(line)) or before.lstrip().startswith("#")


@each_set
def test_no_manifest_holds_a_certificate(values: tuple[str | Path, ...]) -> None:
    text = template(*values)

    assert "caBundle:" not in text
    assert not of_kind("Secret", [document for document in yaml.safe_load_all(text) if document])


@each_set
def test_commands_know_what_they_are_told(values: tuple[str | Path, ...]) -> None:
    commands = {"serve": serve, "controller": controller}
    for component in ("webhook", "controller"):
        name, *options = arguments(rendered(*values), component)
        commands[name].make_context(name, options)  # raises on an unknown flag or a bad value


@pytest.mark.parametrize(("pre_stop", "drain"), [(5, 15), (0, 0), (30, 60)])
def test_a_pod_is_given_the_time_that_stopping_takes(pre_stop: int, drain: int) -> None:
    documents = rendered("--set", f"webhook.preStopSeconds={pre_stop},webhook.drainSeconds={drain}")
    graceful = ServerSettings(certificate=Path("x"), key=Path("x")).graceful_seconds

    assert pods(documents)["webhook"]["terminationGracePeriodSeconds"] >= pre_stop + drain + graceful + 5


def test_first_install_only_looks() -> None:
    documents = rendered("-f", CHART / "values-first-install.yaml")
    (policy,) = of_kind("GPUPolicy", documents)

    assert {rule: options["mode"] for rule, options in policy["spec"]["rules"].items()} == {
        rule.id: "disabled" if rule.id == "spot" else "audit" for rule in RULES
    }, "spot needs the labels of a pool, and those of one cloud would stay in the policies of others"
    assert {w["failurePolicy"] for w in webhooks(documents)} == {"Ignore"}


def test_only_what_concerns_gpu_pods_and_claims_can_be_refused_while_we_are_away() -> None:
    policies = {webhook["name"]: webhook["failurePolicy"] for webhook in webhooks(rendered())}

    assert {name for name, policy in policies.items() if policy == "Fail"} == {
        "pods.mutate.gpu-admission.dev",
        "pods.validate.gpu-admission.dev",
        "pod-placement.validate.gpu-admission.dev",
        "resourceclaims.validate.gpu-admission.dev",
        "resourceclaimtemplates.validate.gpu-admission.dev",
    }
    assert set(policies.values()) == {"Fail", "Ignore"}


@pytest.mark.parametrize("namespace", ["gpu-admission", "ml-platform"])
def test_namespaces_that_are_never_looked_at(namespace: str) -> None:
    documents = rendered("--set", "webhooks.excludedNamespaces={gpu-stack}", "--namespace", namespace)

    for webhook in webhooks(documents):
        (expression,) = webhook.get("namespaceSelector", {}).get("matchExpressions", [{}])
        if webhook["name"] == "documents.validate.gpu-admission.dev":
            assert not expression
        else:
            assert expression["values"] == ["kube-system", "kube-node-lease", namespace, "gpu-stack"]
        assert webhook["clientConfig"]["service"]["namespace"] == namespace


def test_with_cert_manager_nobody_else_writes_certificates() -> None:
    documents = rendered("--set", "certificates.certManager.enabled=true")
    rules = [rule for role in roles(documents) for rule in role["rules"]]

    assert not [rule for rule in rules if "secrets" in rule["resources"]]
    writers = [
        r for r in rules if "mutatingwebhookconfigurations" in r["resources"] and "patch" in r["verbs"]
    ]
    assert not writers
    assert "--certificate" not in str(pods(documents))
    assert {document["metadata"]["name"] for document in of_kind("Certificate", documents)} == {
        "gpu-admission",
        "gpu-admission-ca",
    }
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        (configuration,) = of_kind(kind, documents)
        inject = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
        assert inject == "gpu-admission/gpu-admission"


def test_an_uninstallation_first_starts_the_pods_that_wait() -> None:
    hooks = {
        each["kind"]: each
        for each in rendered()
        if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-delete"
    }
    assert hooks.keys() == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"}
    assert {each["metadata"]["name"] for each in hooks.values()} == {"gpu-admission-release"}
    weights = {
        kind: each["metadata"]["annotations"].get("helm.sh/hook-weight", "0") for kind, each in hooks.items()
    }
    assert {kind for kind, weight in weights.items() if int(weight) < 0} == hooks.keys() - {"Job"}
    pod = hooks["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == pods(rendered())["controller"]["containers"][0]["image"]
    assert container["args"] == ["release", "--all", "--uninstall"]
    assert pod["serviceAccountName"] == "gpu-admission-release"
    assert not [text for text in static().values() if "gpu-admission-release" in text], "it would run at once"


def test_tenants_need_not_read_policies() -> None:
    def groups(*values: str) -> set[str]:
        bindings = [each for each in rendered(*values) if each["kind"] == "ClusterRoleBinding"]
        return {
            subject["name"] for each in bindings for subject in each["subjects"] if subject["kind"] == "Group"
        }

    assert groups() == {"system:authenticated"}
    assert groups("--set", "tenants.readPolicies=false") == set()


@cases(
    ("values", "want"),
    default=("", f"{IMAGE}-fetcher:0.1.0"),
    beside_the_webhooks=(
        "image.repository=r.example/gpu-admission",
        "r.example/gpu-admission-fetcher:0.1.0",
    ),
    one_of_its_own=("fetcher.image.repository=r.example/f,fetcher.image.tag=v2", "r.example/f:v2"),
    digest=(f"fetcher.image.digest=sha256:{0:064}", f"{IMAGE}-fetcher@sha256:{0:064}"),
)
def test_which_fetcher_the_webhook_injects(values: str, want: str) -> None:
    assert f"--fetcher-image={want}" in arguments(rendered("--set", values), "webhook")


def test_the_image_has_the_version_of_the_project() -> None:
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert project is not None
    assert chart["version"] == chart["appVersion"] == project[1] == FETCHER_IMAGE.partition(":")[2]
