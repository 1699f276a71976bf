"""What `check` prints of fixes, quotas and changes, and of what it may not read or leaves to others: whole outputs."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.cases import cases
from tests.webhook.cluster.apiserver import ApiServer, answering
from tests.webhook.commands.checked_cluster import FORBIDDEN, POLICIES, cluster
from tests.webhook.commands.checking import DEPLOYMENT, GOOD, HALF
from webhook.commands import main

DEPLOYED = DEPLOYMENT.replace("COUNT", "1")
NEGATIVE = HALF.replace("500m", "-1")
QUOTA = """\
apiVersion: gpu-admission.dev/v1alpha1
kind: GPUQuota
metadata: {name: default, namespace: ml}
spec: {hard: {gpus: x}}
"""
KUSTOMIZATION = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [pod.yaml]\n"


def check(*arguments: str, stdin: str | None = None) -> Result:
    """Run `check` as in a pipe: a line for each sentence."""
    return CliRunner(env={"COLUMNS": None}).invoke(main, ["check", *arguments], input=stdin)


FIXED = (
    'fix: a.yaml:9: spec.containers[0].resources.limits[amd.com/gpu] (container "main") = "500m" (0.5): '
    "set amd.com/gpu: 1 [gpu-requests]\n"
    "1 finding can be fixed in 1 file, 0 denials left\n"
)

UNREAD = """\
apiVersion: v1
kind: Pod
metadata:
  name: a
  annotations:
    gpu-admission.dev/model-hed-size: 140GB
    gpu-admission.dev/skip: "true"
    gpu-admission.dev/gpu-memory: 40Gi
    gpu-admission.dev/fabric: fast
spec:
  containers:
  - {name: main, image: trainer, resources: {limits: {nvidia.com/gpu: 1}}}
"""
GIVING = """\
apiVersion: v1
kind: LimitRange
metadata: {name: gpus}
spec:
  limits:
  - {type: Container, default: {nvidia.com/gpu: "1"}}
"""


@cases(
    ("text", "arguments", "code", "said"),
    lines_of_the_file_as_it_is=(
        UNREAD,
        (),
        0,
        "".join(
            f"fix: a.yaml:{line}: metadata.annotations[gpu-admission.dev/{key}]: remove gpu-admission.dev/{key} "
            "[ineffective-fields]\n"
            for line, key in ((7, "skip"), (8, "gpu-memory"), (9, "fabric"))
        )
        + "left: a.yaml:6: its edit would be denied (metadata.annotations[gpu-admission.dev/model-head-size] = "
        '"140GB": must be a head size, a whole number from 1 to 1000000000, not "140GB" [gpu-class]): '
        "metadata.annotations[gpu-admission.dev/model-hed-size]: did you mean gpu-admission.dev/model-head-size? No rule "
        "reads an annotation of this name [ineffective-fields]\n"
        "3 findings can be fixed in 1 file, 0 denials left\nnothing is written: add --yes\n",
    ),
    a_warning_for_its_author=(
        GIVING,
        (),
        0,
        'left: a.yaml:6: for you to decide: spec.limits[0].default[nvidia.com/gpu] = "1": set '
        "default[nvidia.com/gpu] and defaultRequest[nvidia.com/gpu] to 0; each container that requests none gets it, "
        "also sidecars and init containers [limit-range]\nnothing to fix, 0 denials left\n",
    ),
    shown=(HALF, (), 1, FIXED + "nothing is written: add --yes\n"),
    written=(HALF, ("--yes",), 0, FIXED + "1 file written\n"),
    nothing_to_fix=(GOOD, ("--yes",), 0, "nothing to fix, 0 denials left\n"),
    left=(
        NEGATIVE,
        ("--yes",),
        1,
        "left: a.yaml:9: choose: spec.containers[0].resources.limits[amd.com/gpu] "
        '(container "main") = "-1": set amd.com/gpu: 1, or remove amd.com/gpu; must not be negative [gpu-requests]\n'
        "  --fix=1:1  set amd.com/gpu: 1\n  --fix=1:2  remove amd.com/gpu\n"
        "nothing to fix, 1 denial left\n",
    ),
)
def test_what_is_said_of_fixes(
    text: str,
    arguments: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(text)

    result = check("--fix", *arguments, "a.yaml")

    assert (result.exit_code, result.stderr) == (code, said)


@cases(
    ("text", "code", "shown"),
    a_change_of_a_template=(
        DEPLOYED,
        0,
        "changed  stdin:1  Deployment ml/serve\n"
        "         pods of spec.template would get:\n"
        "           gpu-toleration: toleration nvidia.com/gpu:NoSchedule\n\n"
        "1 object: 0 denied, 1 would change, 0 ok\n",
    ),
    a_quota_that_the_api_server_rejects=(
        QUOTA,
        1,
        "denied   stdin:1  GPUQuota ml/default\n"
        '         stdin:4: spec.hard.gpus: must be an amount such as 16, "0.5" or "2/7", not "x" [configuration]\n'
        "         the API server rejects the GPUQuota: by its schema, or because the webhook denies it\n\n"
        "1 object: 1 denied, 0 would change, 0 ok\n",
    ),
)
def test_what_is_said_of_an_object(text: str, code: int, shown: str) -> None:
    result = check("-f", "-", stdin=text)

    assert (result.exit_code, result.output) == (code, shown)


def test_the_diff_of_a_pod_is_as_admitted() -> None:
    result = check("-f", "-", "-o", "diff", stdin=GOOD)

    assert result.stdout.splitlines()[:2] == [
        "--- stdin:1 Pod default/train",
        "+++ stdin:1 Pod default/train (as admitted)",
    ]


def test_what_is_to_be_rendered_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k").mkdir()
    Path("k/kustomization.yaml").write_text(KUSTOMIZATION)

    assert check("-o", "lines", "k").output == (
        "k:1: note: kustomization: kustomize build DIRECTORY | gpu-admission check -f -\n"
    )


@cases(
    ("path", "code", "said"),
    nodes=("/api/v1/nodes", 0, "note: you may not list nodes: what depends on it is not evaluated\n"),
    policies=(
        POLICIES,
        2,
        "error: use --config, or ask the platform team for the chart's tenants.readPolicies: you may not list "
        "gpupolicies.gpu-admission.dev, by which manifests are evaluated\n",
    ),
)
def test_what_may_not_be_read_of_a_cluster(path: str, code: int, said: str, tmp_path: Path) -> None:
    with ApiServer(tmp_path, answering({**cluster(), path: FORBIDDEN})) as server:
        result = check("-f", "-", "--kubeconfig", str(server.kubeconfig()), stdin=GOOD)

    assert (result.exit_code, result.stderr) == (code, said)
