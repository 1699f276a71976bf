"""The static manifests of deploy/static/: what the chart makes of its default values, for `kubectl apply` and kustomize.

`python -m tests.deploy.manifests` writes them, and before that the chart's rules for the built-in kinds of workloads; with
`--check` it only says whether they are up to date.
"""

import os
import sys
from collections import defaultdict
from pathlib import Path

import click

from tests.controlplane import ControlPlaneUnavailable, helm
from webhook.configuration.loader import load_directory

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
STATIC = ROOT / "deploy" / "static" / "install.yaml"
WORKLOAD_RULES = CHART / "files" / "workload-rules.yaml"
KUBERNETES = frozenset({"", "apps", "batch", "extensions"})
"""Groups that have rules of their own in the chart, or are gone."""
RELEASE = NAMESPACE = "gpu-admission"
HEADER = "# Rendered from deploy/chart by `make manifests`; change it there.\n"
# Helm says of every object that it manages it, and from which template it comes; of these neither is true.
HELM_ONLY = ("app.kubernetes.io/managed-by: Helm", "# Source: ")


def template(*arguments: str | Path) -> str:
    """Return what the chart makes of its values and `arguments`. Raises HelmFailed."""
    return helm.run("template", RELEASE, CHART, "--namespace", NAMESPACE, *arguments)


def workload_rules() -> str:
    """Return a rule for each API group of the built-in kinds of workloads, installed or not."""
    resources: dict[str, list[str]] = defaultdict(list)
    for kind in load_directory(None).workload_kinds.values():
        if kind.pods and not kind.cluster_scoped and kind.group not in KUBERNETES:
            resources[kind.group].append(kind.plural)
    rule = '- {{apiGroups: [{}], apiVersions: ["*"], resources: [{}], operations: [CREATE, UPDATE], scope: Namespaced}}\n'
    rules = (rule.format(group, ", ".join(names)) for group, names in resources.items())
    return (
        "# Written by `make manifests` from webhook/configuration/builtin/workload-kinds.yaml.\n"
        + "".join(rules)
    )


def static() -> str:
    """Return the static manifests as they should be."""
    rendered = template("--set", "namespace.create=true")
    kept = [line.rstrip() for line in rendered.splitlines() if not line.strip().startswith(HELM_ONLY)]
    return HEADER + "\n".join(line for line in kept if line) + "\n"


def main(arguments: list[str]) -> int:
    try:
        helm.build(sys.stdout)
    except ControlPlaneUnavailable as unavailable:
        click.echo(f"{STATIC.relative_to(ROOT)} is not checked: {unavailable}", err=True)
        return int(arguments != ["--check"] or os.environ.get("GPU_ADMISSION_REQUIRE_CLUSTER") == "1")
    is_checked = arguments == ["--check"]
    if not is_checked:
        WORKLOAD_RULES.write_text(workload_rules())
    elif WORKLOAD_RULES.read_text() != workload_rules():
        click.echo(
            f"{WORKLOAD_RULES.relative_to(ROOT)} lacks kinds of workloads: run `make manifests`", err=True
        )
        return 1
    wanted = static()
    if not is_checked:
        STATIC.write_text(wanted)
    elif STATIC.read_text() != wanted:
        click.echo(f"{STATIC.relative_to(ROOT)} is not what the chart makes: run `make manifests`", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
