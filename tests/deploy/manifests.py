"""The static manifests of deploy/static/: what the chart makes of values-first-install.yaml, for `kubectl apply` and kustomize.

`python -m tests.deploy.manifests` writes them, the chart's README, and before both the chart's rules for the built-in kinds of
workloads and for Prometheus, and what the CRD and the presets lack of new rules. With `--check` it only says whether they are up
to date.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import yaml

from tests.controlplane import ControlPlaneUnavailable, helm
from tests.deploy import rule_files
from tests.deploy.recording_rules import memory_expression, use_expression
from webhook.configuration.loader import load_directory
from webhook.prometheus import recorded_series

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
STATIC = ROOT / "deploy" / "static"
CRDS, POLICY, INSTALL = "crds/crds.yaml", "first-install/policy.yaml", "first-install/install.yaml"
IMAGE = "registry.invalid/gpu-admission"
"""Whoever applies the manifests names another; this one no registry can have (RFC 2606)."""
WORKLOAD_RULES = CHART / "files" / "workload-rules.yaml"
RECORDING_RULES = CHART / "files" / "recording-rules.yaml"
KUBERNETES = frozenset({"", "apps", "batch", "extensions"})
"""Groups that have rules of their own in the chart, or are gone."""
README = CHART / "README.md"
WRITTEN = "<!-- written by `make manifests` from values.yaml -->"
RELEASE = NAMESPACE = "gpu-admission"
HEADER = "# Rendered from deploy/chart by `make manifests`; change it there.\n"
# Helm says of every object that it manages it, and from which template it comes; of these neither is true, and without Helm a
# hook is an object as any other.
HELM_ONLY = (
    "app.kubernetes.io/managed-by: Helm",
    "# Source: ",
    "# A hook,",
    "annotations: {helm.sh/hook: post-install}",
)


@cache
def template(*arguments: str | Path) -> str:
    """Return what the chart makes of its values, an image and `arguments`. Raises HelmFailed."""
    image = ("--set", f"image.repository={IMAGE}")
    return helm.run("template", RELEASE, CHART, "--namespace", NAMESPACE, "--skip-tests", *image, *arguments)


def rendered(*arguments: str | Path) -> list[dict[str, Any]]:
    return [document for document in yaml.load_all(template(*arguments), Loader=yaml.CSafeLoader) if document]


def of_kind(kind: str, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def roles(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [*of_kind("Role", documents), *of_kind("ClusterRole", documents)]


def pods(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the pods of the Deployments run, by `webhook` and `controller`."""
    return {
        each["metadata"]["name"].removeprefix("gpu-admission-"): each["spec"]["template"]["spec"]
        for each in of_kind("Deployment", documents)
    }


def arguments(documents: list[dict[str, Any]], component: str) -> list[str]:
    (container,) = pods(documents)[component]["containers"]
    return list(container["args"])


def webhooks(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [webhook for document in documents for webhook in document.get("webhooks", ())]


def workload_rules() -> str:
    """Return a rule for each API group of the built-in kinds of workloads, installed or not."""
    resources: dict[str, list[str]] = defaultdict(list)
    for kind in load_directory(None).workload_kinds.values():
        if not kind.has_no_gpus and not kind.cluster_scoped and kind.group not in KUBERNETES:
            resources[kind.group].append(kind.plural)
    rule = '- {{apiGroups: [{}], apiVersions: ["*"], resources: [{}], operations: [CREATE, UPDATE], scope: Namespaced}}\n'
    rules = (rule.format(group, ", ".join(names)) for group, names in resources.items())
    return (
        "# Written by `make manifests` from webhook/configuration/builtin/workload-kinds.yaml.\n"
        + "".join(rules)
    )


def recording_rules() -> str:
    """Return the recording rules of the use of GPUs; the chart fills in the selector and the interval."""
    filled_in, hour = (
        ("${selector}", "${interval}"),
        "max_over_time({name}" + recorded_series.RECORDED_ONLY + "[1h])",
    )
    groups = {
        "gpu-admission-use": (
            "${interval}",
            {
                recorded_series.USE: use_expression(*filled_in),
                recorded_series.MEMORY: memory_expression(*filled_in),
            },
        ),
        "gpu-admission-use-by-hour": (
            "1h",
            {
                recorded_series.USE_BY_HOUR: hour.replace("{name}", recorded_series.USE),
                recorded_series.MEMORY_BY_HOUR: hour.replace("{name}", recorded_series.MEMORY),
            },
        ),
    }
    lines = ["# Written by `make manifests` from tests/deploy/recording_rules.py.", "groups:"]
    for name, (interval, rules) in groups.items():
        lines += [f"- name: {name}", f"  interval: {interval}", "  rules:"]
        for record, expression in rules.items():
            indented = expression.replace("\n", "\n      ")
            lines += [f"  - record: {record}", f"    expr: |-\n      {indented}"]
    return "\n".join(lines) + "\n"


def static() -> dict[str, str]:
    """Return the static manifests as they should be, by their paths in deploy/static."""
    rendered = template("--set", "namespace.create=true", "-f", CHART / "values-first-install.yaml")
    kept = [line.rstrip() for line in rendered.splitlines() if not line.strip().startswith(HELM_ONLY)]
    files = dict.fromkeys((CRDS, INSTALL, POLICY), HEADER)
    for document in "\n".join(line for line in kept if line).split("---\n")[1:]:
        if "helm.sh/hook: pre-delete" in document:
            continue  # without Helm it would run at once
        kind = yaml.safe_load(document)["kind"]
        path = {"CustomResourceDefinition": CRDS, "GPUPolicy": POLICY}.get(kind, INSTALL)
        files[path] += f"---\n{document.strip()}\n"
    return files


def chart_readme() -> str:
    """Return the chart's README with a row for each value: its default, and the comment that stands above it."""
    text = (CHART / "values.yaml").read_text()
    rows = [
        f"| {path} | {default} | {meaning} |"
        for path, default, meaning in _values(text, yaml.compose(text, yaml.SafeLoader))
    ]
    head = README.read_text().partition(WRITTEN)[0] + WRITTEN
    return "\n".join([head, "", "| value | default | meaning |", "|---|---|---|", *rows, ""])


def _values(text: str, group: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield path, default and comment of each value as Markdown; of a group that has a comment the same without a default."""
    for key, value in group.value if group else ():
        meaning = _comment(text.splitlines(), key.start_mark.line, key.start_mark.column)
        path = f"{prefix}{key.value}"
        if not isinstance(value, yaml.MappingNode) or value.flow_style:
            yield f"`{path}`", f"`{text[value.start_mark.index : value.end_mark.index]}`", meaning
            continue
        if meaning:
            yield f"`{path}`", "", meaning
        yield from _values(text, value, f"{path}.")


def _comment(lines: list[str], line: int, indent: int) -> str:
    """Return the comment that ends above a line, at its indentation."""
    start = line
    while start and lines[start - 1].startswith(" " * indent + "# "):
        start -= 1
    return " ".join(each.strip().removeprefix("# ") for each in lines[start:line]).replace("|", "\\|")


def main(arguments: list[str]) -> int:
    try:
        helm.build(sys.stdout)
    except ControlPlaneUnavailable as unavailable:
        click.echo(f"{STATIC.relative_to(ROOT)} is not checked: {unavailable}", err=True)
        return int(arguments != ["--check"] or os.environ.get("GPU_ADMISSION_REQUIRE_CLUSTER") == "1")
    is_checked = arguments == ["--check"]
    if not is_checked:
        WORKLOAD_RULES.write_text(workload_rules())
        RECORDING_RULES.write_text(recording_rules())
        for listing in rule_files.LISTINGS:
            listing.write_text(rule_files.with_every_rule(listing))
    elif WORKLOAD_RULES.read_text() != workload_rules():
        click.echo(
            f"{WORKLOAD_RULES.relative_to(ROOT)} lacks kinds of workloads: run `make manifests`", err=True
        )
        return 1
    elif RECORDING_RULES.read_text() != recording_rules():
        click.echo(f"{RECORDING_RULES.relative_to(ROOT)} lacks metrics: run `make manifests`", err=True)
        return 1
    written = {README: chart_readme(), **{STATIC / name: text for name, text in static().items()}}
    for path, wanted in written.items():
        if not is_checked:
            path.write_text(wanted)
        elif path.read_text() != wanted:
            click.echo(
                f"{path.relative_to(ROOT)} is not what the chart makes: run `make manifests`", err=True
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
