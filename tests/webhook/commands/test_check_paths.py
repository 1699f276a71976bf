"""Paths of workload kinds in `check` and `config`, by CustomResourceDefinitions among the manifests, else by the cluster's."""

from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, GROUP, cluster
from tests.webhook.commands.checking import GOOD, check, stream
from webhook.commands import main

DEFINITION = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: trainingjobs.example.com}
spec:
  group: example.com
  names: {kind: TrainingJob, plural: trainingjobs}
  versions:
  - name: v1
    schema:
      openAPIV3Schema:
        properties:
          spec: {properties: {FIELD: {type: array, items: {type: object}}}}
"""
IN_CLUSTER = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.example.com"
MAPPING = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUResourceMapping
metadata: {name: ours}
spec:
  workloadKinds:
  - group: example.com
    kind: TrainingJob
    pods: [{path: "spec.workers[].template"}]
"""
WORKERS, GROUPS = (DEFINITION.replace("FIELD", field) for field in ("workers", "groups"))
PATH = "spec.workloadKinds[0].pods[0].path"
WRONG = f"{PATH}: must be a path of the CustomResourceDefinition: spec has no field workers: must be groups"


@cases(
    ("manifests", "config", "want"),
    right=(stream(WORKERS, GOOD), True, []),
    wrong=(stream(GOOD, GROUPS), True, [f"policy.yaml:1: {WRONG}"]),
    document_beside_the_definition=(stream(GOOD, MAPPING, GROUPS), False, [f"stdin:18: {WRONG}"]),
    no_definition=(stream(GOOD, MAPPING), True, []),
    another_kind=(stream(GROUPS.replace("trainingjobs.example", "jobs.example"), GOOD), True, []),
)
def test_definitions_among_the_manifests(
    manifests: str, config: bool, want: list[str], tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(MAPPING)
    arguments = ["-f", "-", *(("--config", str(tmp_path)) if config else ())]

    result = check(*arguments, stdin=manifests)

    assert result.exit_code == 0
    assert " ".join(result.stderr.split()) == " ".join(f"warning: {each}" for each in want)
    assert check(*arguments, "--strict", stdin=manifests).exit_code == bool(want)


@cases(
    ("definition", "manifests", "want"),
    right=(yaml.safe_load(WORKERS), GOOD, []),
    wrong=(yaml.safe_load(GROUPS), GOOD, [f"GPUResourceMapping/ours: {WRONG}"]),
    may_not_be_read=(FORBIDDEN, GOOD, []),
    not_installed=(None, GOOD, []),
    the_manifest_comes_first=(yaml.safe_load(GROUPS), stream(GOOD, WORKERS), []),
)
def test_definitions_of_the_cluster(definition: Any, manifests: str, want: list[str], tmp_path: Path) -> None:
    mapping = yaml.safe_load(MAPPING.replace("ours}", "ours, uid: '1'}"))
    objects = cluster() | {f"{GROUP}/gpuresourcemappings": [mapping]}
    with ApiServer(tmp_path, answering(objects | ({IN_CLUSTER: definition} if definition else {}))) as server:
        result = check("-f", "-", "--kubeconfig", str(server.kubeconfig()), stdin=manifests)

    assert result.exit_code == 0
    assert " ".join(result.stderr.split()) == " ".join(f"warning: {each}" for each in want)


def test_config_ends_with_a_wrong_path(tmp_path: Path) -> None:
    mapping = yaml.safe_load(MAPPING.replace("ours}", "ours, uid: '1'}"))
    objects = cluster() | {f"{GROUP}/gpuresourcemappings": [mapping], IN_CLUSTER: yaml.safe_load(GROUPS)}
    with ApiServer(tmp_path, answering(objects)) as server:
        result = CliRunner().invoke(main, ["config", "--kubeconfig", str(server.kubeconfig())])

    assert (result.exit_code, result.stderr) == (
        2,
        f"error: GPUResourceMapping/ours {WRONG}\n1 problem; pods at these paths of workload kinds are not seen\n",
    )
