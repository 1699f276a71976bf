"""`gpu-admission classes` without a cluster; with one: tests/cluster/test_classes_command.py."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from policies.gpus.classes import HostShare
from tests.cases import cases
from webhook.cluster.capacity import NO_CAPACITY, ClassCapacity
from webhook.commands import main
from webhook.commands.classes import show
from webhook.commands.output import Screen
from webhook.tools.classes import ClassListing, ListedClass

HEAD = "apiVersion: gpu-admission.dev/v1alpha1\n"
ONLY_T4 = "{allowed: [nvidia-t4]}"
GRANTS = "rule gpu-class of policy default allows nvidia-t4"


def run(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "p.yaml").write_text(text)
    return CliRunner().invoke(main, ["classes", "--standalone", "--config", str(folder), *arguments])


def policy(options: str, more: str = "") -> str:
    return f"{HEAD}kind: GPUPolicy\nmetadata: {{name: default}}\nspec: {{rules: {{gpu-class: {options}}}{more}}}\n"


@cases(
    ("text", "allowed", "because"),
    nothing_is_restricted=(policy("{}"), True, ""),
    not_named=(policy(ONLY_T4), False, GRANTS),
    by_its_family=(policy("{allowed: [nvidia-a100]}"), True, ""),
    audited=(policy("{mode: audit, allowed: [nvidia-t4]}"), True, f"{GRANTS}; it is in mode audit here"),
    exempt=(
        policy(ONLY_T4, ", exemptions: [{namespaces: [team], reason: pilot}]"),
        True,
        f"{GRANTS}; it is in mode disabled here",
    ),
    none_of_its_family=(
        f"{HEAD}kind: GPUQuota\nmetadata: {{name: default, namespace: team}}\n"
        "spec: {hard: {classes: {nvidia-a100: 0}}}\n",
        False,
        "the GPUQuota grants 0 of classes/nvidia-a100",
    ),
)
def test_what_a_namespace_may_use(tmp_path: Path, text: str, allowed: bool, because: str) -> None:
    shown = run(tmp_path, text, "-n", "team", "-o", "json")
    (found,) = (each for each in json.loads(shown.stdout)["classes"] if each["name"] == "nvidia-a100-80gb")

    assert (found["allowed"], found["because"]) == (allowed, because)


def test_the_catalogue_as_text(tmp_path: Path) -> None:
    share = "{cpu: 12, memory: 120Gi}"
    spec = f"{{memoryGiB: 12, family: own, perGPU: {share}}}"
    own = f"{HEAD}kind: GPUClass\nmetadata: {{name: own-card}}\nspec: {spec}\n---\n"
    lines = run(tmp_path, own + policy(ONLY_T4)).stdout.splitlines()

    assert lines[:4] == [
        "namespace default",
        "  policy default: matches * with priority 0",
        "",
        f"{'CLASS':<20} {'FAMILY':<20} {'GIB':>4}  ALLOWED",
    ]
    assert f"{'nvidia-t4':<20} {'nvidia-t4':<20} {16:>4}  yes" in lines
    at = lines.index(f"{'own-card':<20} {'own':<20} {12:>4}  no")
    assert lines[at + 1] == "  perGPU 12 CPUs and 120Gi of memory"
    assert f"{'own-card':<20} {'own':<20} {12:>4}  no" in lines
    assert "  MIG 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb" in lines
    assert lines[-2:] == ["", GRANTS]
    assert max(len(line) for line in lines if not line.startswith("  ")) <= 80


def test_documents_that_are_not_valid_end_it(tmp_path: Path) -> None:
    result = run(tmp_path, policy("{alowed: []}"))

    assert result.exit_code == 2
    assert result.stderr == (
        "error: p.yaml:4: GPUPolicy/default spec.rules.gpu-class.alowed: unknown field; did you mean allowed?\n"
        "1 problem; nothing was done\n"
    )


def listed(name: str, **given: Any) -> ListedClass:
    return ListedClass(
        **{
            "name": name,
            "family": "own",
            "memory_gib": 24,
            "resource": "nvidia.com/gpu",
            "built_in": False,
            "allowed": True,
            **given,
        }
    )


def listing(*classes: ListedClass, **given: Any) -> ClassListing:
    return ClassListing(
        **{"namespace": "team", "policy": "", "classes": classes, "unclassified": {}, **given}
    )


HEADER = f"{'CLASS':<20} {'FAMILY':<20} {'GIB':>4}  ALLOWED"
WITH_NODES = f"{HEADER}  NODES   GPUS   FREE"


@cases(
    ("found", "want"),
    with_nodes=(
        listing(
            listed(
                "own-large",
                allocatable_per_gpu=HostShare(cpu="12", memory="120Gi"),
                capacity=ClassCapacity(
                    nodes=3,
                    nodes_taking_pods=2,
                    gpus=Fraction(24),
                    free=Fraction(5),
                    blocked=Fraction(6, 7),
                    resources={
                        "nvidia.com/gpu": (Fraction(24), Fraction(5)),
                        "nvidia.com/mig-1g.10gb": (Fraction(7), None),
                    },
                ),
            ),
            listed("own-made", allowed=None, because="a pool", can_be_made=True, capacity=NO_CAPACITY),
            listed("own-none", allowed=False, because="nobody", capacity=NO_CAPACITY),
            policy="default: matches *",
            unclassified={
                "nvidia-a100": ClassCapacity(nodes=1, nodes_taking_pods=1, gpus=Fraction(8), free=None),
                "": ClassCapacity(nodes=2, nodes_taking_pods=2, gpus=Fraction(16), free=Fraction(1, 2)),
            },
            omitted=("list pods",),
            nodes_from="nodes are those that the controller published",
        ),
        [
            "namespace team",
            "  policy default: matches *",
            "",
            WITH_NODES,
            f"{'own-large':<20} {'own':<20}   24  yes          3     24      5",
            "  perGPU not set; nodes have 12 CPUs and 120Gi of memory",
            "  nvidia.com/mig-1g.10gb: ? of 7 free",
            "  0.86 blocked: no device fits that claims can get",
            "  1 node not Ready or cordoned",
            f"{'own-made':<20} {'own':<20}   24  ?            0      0      0",
            "  nodes are made when pods need them",
            f"{'family nvidia-a100':<46}               1      8      ?",
            f"{'of no known class':<46}               2     16    0.5",
            "and 1 class without nodes; --all lists them",
            "",
            "a pool",
            "",
            "nodes are those that the controller published",
            "",
            "you may not list pods: what depends on it is not shown",
        ],
    ),
    where_nodes_cannot_be_read=(
        listing(listed("own-named", named=True), listed("own-a"), listed("own-b")),
        [
            "namespace team",
            "",
            HEADER,
            f"{'own-named':<20} {'own':<20}   24  yes",
            "and 2 classes that neither quota, policy nor document names; --all lists them",
        ],
    ),
)
def test_the_classes_of_a_cluster_as_text(
    found: ClassListing, want: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    show(Screen(), found, shows_all=False)

    assert capsys.readouterr().out.splitlines() == want
