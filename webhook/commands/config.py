"""`gpu-admission config`: validation of documents, and the policy of each namespace."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from policies.gpus.mapping_spec import ResourceMappingSpec
from policies.policy import (
    BUILT_IN,
    BUILT_IN_POLICY,
    BoundRule,
    EffectivePolicy,
    Exemption,
    Labels,
    Policy,
    end_of_pause,
)
from policies.quota.spec import LimitsSpec
from policies.quota.team_spec import TeamMatch, limits_warnings
from policies.registry import RULES
from policies.rule import Mode
from policies.times import utc
from webhook.cluster.api import api_path
from webhook.cluster.objects import NAMESPACE, decode_metadata
from webhook.commands.options import (
    ClusterChoice,
    cluster_options,
    namespace_option,
    now_option,
    output_option,
)
from webhook.commands.output import Screen, as_yaml, fail_with, print_as
from webhook.configuration.cluster_source import read_documents_in_force, read_path_problems
from webhook.configuration.documents import (
    CLASS,
    CLUSTER_QUOTA,
    POLICY,
    QUOTA,
    RESOURCE_MAPPING,
    LocatedProblem,
)
from webhook.configuration.loader import Configuration, ConfigurationError, load_directory
from webhook.tools.check.run_context import default_labels


@click.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@cluster_options
@namespace_option(
    "Show the modes of all rules in this namespace, which has no labels unless they are read from a cluster.",
    several=True,
)
@output_option()
@now_option("Show the modes at this time")
def config(
    *, directory: Path | None, cluster: ClusterChoice, namespaces: tuple[str, ...], output: str, now: datetime
) -> None:
    """Validate documents, and show which policy governs where.

    The documents are those in DIRECTORY, or of a cluster.

    Exit codes: 0 the documents are valid, 2 they are not, or could not be read. Of a cluster it still prints what is in force.
    """
    if directory is not None and cluster.is_named:
        raise click.UsageError("DIRECTORY must not be combined with --kubeconfig or --context")
    labels: dict[str, Labels] = {name: default_labels(name) for name in namespaces}
    problems: tuple[LocatedProblem, ...] = ()
    path_problems: tuple[LocatedProblem, ...] = ()
    try:
        if directory is not None:
            configuration = load_directory(directory)
        else:
            with cluster.client() as api:
                chosen = read_documents_in_force(api, NAMESPACE)
                path_problems = tuple(read_path_problems(api, chosen.configuration))
                paths = {name: api_path("/api/v1", "namespaces", name) for name in namespaces}
                labels = {name: decode_metadata(api.get(path)).sorted_labels for name, path in paths.items()}
            configuration, problems = chosen.configuration, chosen.problems
    except ConfigurationError as error:
        print_as(output, _without_configuration(error.problems), lambda _screen: None)
        fail_with(error.problems, "; the configuration is not valid")
    content = report(configuration, labels, now, (*problems, *path_problems))
    print_as(output, content, lambda screen: _print_report(screen, content))
    if path_problems:
        fail_with([*problems, *path_problems], "; pods at these paths of workload kinds are not seen")
    if problems:
        fail_with(problems, "; the stored documents are not in force; the last valid ones are shown")


# ---- plain data, from which the text is printed


def report(
    configuration: Configuration,
    labels: Mapping[str, Labels],
    now: datetime,
    problems: Iterable[LocatedProblem],
) -> dict[str, Any]:
    """Return the content of `-o json`.

    `policies[]` in the order of precedence, the built-in policy last if it governs anything; the requested `namespaces[]` with
    the mode of each rule at `now`; `classes[]` and `resourceMappings[]` that documents add or replace; `warnings[]` about
    valid documents; `problems[]` that keep newer documents of a cluster out of force.
    """
    built_in, places = load_directory(None).classes, configuration.places
    return {
        "version": configuration.version,
        "policies": list(_policy_entries(configuration, now)),
        "namespaces": [_namespace_entry(configuration, name, found, now) for name, found in labels.items()],
        "classes": [
            {"name": name, "from": place, "replacesBuiltIn": built_in.get(name) is not None}
            for (kind, name), place in places.items()
            if kind == CLASS
        ],
        "resourceMappings": [
            {
                "name": name,
                "from": places[RESOURCE_MAPPING, name],
                **_every_field(spec),
                "workloadKinds": msgspec.to_builtins(configuration.own_workload_kinds[name]),
            }
            for name, spec in configuration.resource_mappings.items()
        ],
        "warnings": list(_quota_warnings(configuration)),
        "problems": [str(problem) for problem in problems],
    }


def _without_configuration(problems: Iterable[LocatedProblem]) -> dict[str, Any]:
    """Return the content of `-o json` for documents that are not valid."""
    lists = ("policies", "namespaces", "classes", "resourceMappings", "warnings")
    return {
        "version": None,
        **{name: [] for name in lists},
        "problems": [str(problem) for problem in problems],
    }


def _quota_warnings(configuration: Configuration) -> Iterator[str]:
    teams = [TeamMatch(name, team.namespaces) for name, team in configuration.teams.items()]
    specs: dict[str, Mapping[str, LimitsSpec]] = {
        QUOTA: configuration.quotas,
        CLUSTER_QUOTA: configuration.teams,
    }
    for kind, of_kind in specs.items():
        for name, spec in sorted(of_kind.items()):
            for path, warning in limits_warnings(name, spec, teams):
                yield f"{configuration.places[kind, name]}: spec.{path}: {warning}"


def _every_field(spec: ResourceMappingSpec) -> dict[str, Any]:
    fields = msgspec.structs.fields(spec)
    return {field.encode_name: msgspec.to_builtins(getattr(spec, field.name)) for field in fields}


def _policy_entries(configuration: Configuration, now: datetime) -> Iterator[dict[str, Any]]:
    shadowed_by = None
    for policy in configuration.policies.policies:
        place = configuration.places[POLICY, policy.name]
        yield {
            **_policy_entry(configuration, policy, now),
            "from": place,
            "neverReachedBecauseOf": shadowed_by,
        }
        if policy.spec.match.matches_all:
            shadowed_by = shadowed_by or policy.name
    if shadowed_by is None:
        built_in = _policy_entry(configuration, BUILT_IN_POLICY, now)
        yield {**built_in, "from": BUILT_IN, "neverReachedBecauseOf": None}


def _policy_entry(configuration: Configuration, policy: Policy, now: datetime) -> dict[str, Any]:
    spec = policy.spec
    return {
        "name": policy.name,
        "version": policy.version,
        "priority": spec.priority,
        "namespaces": spec.match.namespaces,
        "namespaceSelector": spec.match.namespace_selector and str(spec.match.namespace_selector),
        "pausedUntil": spec.paused_until,
        "paused": end_of_pause(spec.paused_until, now) is not None,
        "templates": spec.templates.value,
        "help": spec.help,
        "exemptions": [_exemption_entry(exemption, now) for exemption in spec.exemptions],
        "rules": [_rule_entry(configuration.policies.bound(rule, policy)) for rule in RULES],
    }


def _exemption_entry(exemption: Exemption, now: datetime) -> dict[str, Any]:
    return {
        "namespaces": exemption.namespaces,
        "namespaceSelector": exemption.namespace_selector and str(exemption.namespace_selector),
        "rules": exemption.rules,
        "reason": exemption.reason,
        "until": exemption.until,
        "expired": not exemption.is_in_force(now),
    }


def _rule_entry(bound: BoundRule) -> dict[str, Any]:
    defaults = msgspec.to_builtins(bound.rule.options())
    options = msgspec.to_builtins(bound.options)
    mode = options.pop("mode")
    changed = [name for name, value in options.items() if value != defaults[name]]
    return {"id": bound.rule.id, "mode": mode, "from": bound.source, "options": options, "changed": changed}


def _namespace_entry(
    configuration: Configuration, namespace: str, labels: Labels, now: datetime
) -> dict[str, Any]:
    effective = configuration.policies.for_namespace(namespace, labels)
    bound_rules = {bound.rule.id: bound for bound in effective.bound_rules}
    return {
        "namespace": namespace,
        "policy": effective.name,
        "why": effective.why,
        "rules": [_mode_entry(effective, bound_rules.get(rule.id), rule.id, now) for rule in RULES],
    }


def _mode_entry(
    effective: EffectivePolicy, bound: BoundRule | None, rule_id: str, now: datetime
) -> dict[str, Any]:
    if bound is None:
        return {"id": rule_id, "mode": Mode.DISABLED.value, "because": None}
    exemption, paused = effective.exemption(rule_id, now), effective.paused_until_at(now)
    because = f"paused until {utc(paused)}" if paused else None
    if exemption is not None:
        because = f"exempted: {exemption.reason}"
    return {"id": rule_id, "mode": effective.mode(bound, now).value, "because": because}


def _print_report(screen: Screen, content: dict[str, Any]) -> None:
    for policy in content["policies"]:
        _print_policy(screen, policy)
        screen.line()
    for namespace in content["namespaces"]:
        screen.line(f"namespace {namespace['namespace']}", "bold")
        screen.paragraph(f"policy {namespace['policy']}: {namespace['why']}", indent=2)
        rules = namespace["rules"]
        because = [f" ({rule['because']})" if rule["because"] else "" for rule in rules]
        rows = [(rule["id"], rule["mode"] + why) for rule, why in zip(rules, because, strict=True)]
        screen.table(rows)
        screen.line()
    for gpu_class in content["classes"]:
        what = "replaces the built-in class" if gpu_class["replacesBuiltIn"] else "added"
        screen.paragraph(f"class {gpu_class['name']} ({gpu_class['from']}): {what}")
    for mapping in content["resourceMappings"]:
        names = [f"{r['pattern']} ({r['measure']})" for r in mapping["resources"]]
        names += [f"annotation {a['key']} ({a['measure']})" for a in mapping["fractionAnnotations"]]
        names += [
            f"device class {d['pattern']} ({d.get('measure', 'devices')})" for d in mapping["deviceClasses"]
        ]
        if unknown := mapping["unknownDeviceClasses"]:
            names.append(f"unknown device classes ({unknown})")
        names += [f"fraction scheduler {name}" for name in mapping["fractionSchedulers"]]
        names += [f"scheduler {scheduler['schedulerName']}" for scheduler in mapping["otherSchedulers"]]
        names += [f"workload kind {k['kind']} ({k['group'] or 'core'})" for k in mapping["workloadKinds"]]
        added = ", ".join(names) or "nothing"
        screen.paragraph(f"resource mapping {mapping['name']} ({mapping['from']}) adds {added}")
    for warning in content["warnings"]:
        screen.paragraph(f"warning: {warning}", style="yellow")
    validity, style = ("in force:", "yellow") if content["problems"] else ("valid,", "green")
    screen.line(f"{validity} version {content['version']}", style)


def _print_policy(screen: Screen, policy: dict[str, Any]) -> None:
    title, where = "built-in defaults", "every namespace that no policy matches"
    if policy["from"] != BUILT_IN:
        title = f"policy {policy['name']} ({policy['from']})"
        where = f"{_namespaces_text(policy)} with priority {policy['priority']}"
    screen.line(title, "bold")
    if policy["neverReachedBecauseOf"]:
        message = f"never reached: {policy['neverReachedBecauseOf']} comes first and matches every namespace"
        screen.paragraph(message, indent=2, style="yellow")
    screen.paragraph(f"governs {where}", indent=2)
    if policy["pausedUntil"] is not None:
        until = utc(policy["pausedUntil"])
        if policy["paused"]:
            screen.paragraph(f"paused until {until}: every rule only audits", indent=2, style="yellow")
        else:
            screen.paragraph(f"pause until {until} has ended", indent=2, style="dim")
    screen.paragraph(f"templates of workloads: {policy['templates']}", indent=2)
    if policy["help"]:
        screen.paragraph(f"help: {policy['help']}", indent=2)
    for exemption in policy["exemptions"]:
        screen.paragraph(_exemption_text(exemption), indent=2, style="dim" if exemption["expired"] else "")
    screen.table([(rule["id"], _rule_text(rule)) for rule in policy["rules"]])


def _namespaces_text(match: dict[str, Any]) -> str:
    labelled = f" labelled {match['namespaceSelector']}" if match["namespaceSelector"] is not None else ""
    return ", ".join(match["namespaces"]) + labelled


def _exemption_text(exemption: dict[str, Any]) -> str:
    rules = ", ".join(exemption["rules"]) if exemption["rules"] else "all rules"
    until = f" until the end of {exemption['until'].isoformat()}" if exemption["until"] else ""
    text = f"exempt {_namespaces_text(exemption)} from {rules}{until}: {exemption['reason']}"
    return f"EXPIRED: {text}" if exemption["expired"] else text


def _rule_text(rule: dict[str, Any]) -> str:
    source = "built-in" if rule["from"] == BUILT_IN else f"from {rule['from']}"
    text = f"{rule['mode']}, {source}"
    changed = [f"{name}: {as_yaml(rule['options'][name])}" for name in rule["changed"]]
    return f"{text}; {'; '.join(changed)}" if changed else text
