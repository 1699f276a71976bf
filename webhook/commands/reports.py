"""What `gpu-admission check` prints: text for people, a diff, YAML for kubectl, JSON for programs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from typing import Any

import click
import msgspec

from policies.finding import Finding
from policies.pods.field_paths import path_parts
from policies.policy import TemplateMode
from webhook.commands.output import Screen, counted
from webhook.configuration.yaml_documents import dump_document
from webhook.serving.engine import EvaluatedFinding, Outcome
from webhook.serving.review import plain_operations
from webhook.tools.check.manifests import Manifest, ManifestProblem
from webhook.tools.check.offline import Answer, PodAnswer, Verdict

STYLES = {
    Verdict.REFUSED: "bold red",
    Verdict.CHANGED: "bold cyan",
    Verdict.ACCEPTED: "green",
    Verdict.SKIPPED: "dim",
}
OUTCOME_STYLES = {Outcome.DENIED: "red", Outcome.WARNED: "yellow", Outcome.AUDITED: "dim"}
PREFIXES = {Outcome.DENIED: "", Outcome.WARNED: "warning: ", Outcome.AUDITED: "audit only: "}
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
COLUMN = max(len(verdict.value) for verdict in Verdict) + 2


def print_text(answers: Sequence[Answer], problems: Sequence[ManifestProblem]) -> None:
    screen = Screen()
    for answer in answers:
        _object_text(screen, answer)
    if answers:
        screen.line()
    print_problems(problems)
    screen.paragraph(summary(answers, problems), hanging=0, style="bold")


def _object_text(screen: Screen, answer: Answer) -> None:
    manifest, verdict = answer.manifest, answer.verdict
    screen.line(f"{verdict.value:<{COLUMN}}{place(manifest)}  {title(manifest)}", STYLES[verdict])
    for judged in answer.findings():
        line = f"{place(manifest, judged)}: {PREFIXES[judged.outcome]}{judged.finding.sentence()}"
        screen.paragraph(line, indent=COLUMN, style=OUTCOME_STYLES[judged.outcome])
    for warning in answer.warnings:
        line = (
            f"{manifest.file}:{_line_in(manifest, warning)}: {PREFIXES[Outcome.WARNED]}{warning.sentence()}"
        )
        screen.paragraph(line, indent=COLUMN, style=OUTCOME_STYLES[Outcome.WARNED])
    if verdict is Verdict.REFUSED and not manifest.is_pod:
        screen.paragraph(refusal_of_workload(answer), indent=COLUMN)
    for pod in answer.pods:
        if pod.exemption is not None:
            screen.paragraph(f"exempted by policy {pod.policy.name}: {pod.exemption.reason}", indent=COLUMN)
        if pod.changes and not pod.refused:
            if not manifest.is_pod:
                screen.line(" " * COLUMN + f"pods of {pod.source.path} would get:")
            for rule, whats in changes_by_rule(pod).items():
                screen.paragraph(f"{rule}: {'; '.join(whats)}", indent=COLUMN + 2)


def refusal_of_workload(answer: Answer) -> str:
    """Return what happens to a workload whose pods would be refused: that is for the policy to say."""
    if any(pod.refused and pod.policy.templates is TemplateMode.ENFORCE for pod in answer.pods):
        return f"the {answer.manifest.kind} itself is refused (policy: templates: enforce)"
    return f"the {answer.manifest.kind} itself is let in with a warning; its pods are refused"


def changes_by_rule(pod: PodAnswer) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for change in pod.changes:
        found.setdefault(change.rule, []).append(change.change.what)
    return found


def summary(answers: Sequence[Answer], problems: Sequence[ManifestProblem]) -> str:
    """Return the last line, e.g. `12 objects: 2 refused, 5 would change, 4 accepted, 1 skipped (Service)`."""
    number = Counter(answer.verdict for answer in answers)
    parts = [
        f"{number[Verdict.REFUSED]} refused",
        f"{number[Verdict.CHANGED]} would change",
        f"{number[Verdict.ACCEPTED]} ok",
    ]
    if number[Verdict.SKIPPED]:
        kinds = ", ".join(f"{kind} ×{count}" if count > 1 else kind for kind, count in skipped_kinds(answers))
        parts.append(f"{number[Verdict.SKIPPED]} skipped (not known to have pods: {kinds})")
    text = f"{counted(len(answers), 'object')}: {', '.join(parts)}"
    return f"{text}; {counted(len(problems), 'problem')} in the input" if problems else text


def skipped_kinds(answers: Sequence[Answer]) -> list[tuple[str, int]]:
    """Return the kinds, named as kubectl names them (`Job.batch.volcano.sh`), and how often each was there."""
    skipped = (answer.manifest for answer in answers if answer.verdict is Verdict.SKIPPED)
    return sorted(Counter(".".join(filter(None, (each.kind, each.group))) for each in skipped).items())


def print_problems(problems: Sequence[ManifestProblem]) -> None:
    screen = Screen(stderr=True)
    for problem in problems:
        screen.paragraph(f"error: {problem}", style="red")


def print_diff(answers: Sequence[Answer], problems: Sequence[ManifestProblem]) -> None:
    screen = Screen()
    for answer in answers:
        if answer.verdict is Verdict.CHANGED:
            for line in diff_lines(answer):
                screen.line(line, DIFF_STYLES.get(line[:1], ""))
    _tell_refused(answers)
    print_problems(problems)


def diff_lines(answer: Answer) -> Iterator[str]:
    """Yield a unified diff of the object as /mutate sees it and as it (or its pods) would be admitted."""
    manifest = answer.manifest
    before = dump_document(answer.submitted()).splitlines()
    after = dump_document(answer.admitted()).splitlines()
    told = "as admitted" if manifest.is_pod else "as its pods would be; the object itself is not changed"
    name = f"{place(manifest)} {title(manifest)}"
    yield from unified_diff(before, after, name, f"{name} ({told})", lineterm="")


def print_yaml(answers: Sequence[Answer], problems: Sequence[ManifestProblem]) -> None:
    for answer in answers:
        if answer.verdict is Verdict.REFUSED:
            continue
        click.echo("---")
        if answer.verdict is Verdict.CHANGED and not answer.manifest.is_pod:
            click.echo("# The pod template is shown as its pods would be; the object itself is not changed.")
        click.echo(dump_document(answer.admitted()), nl=False)
    _tell_refused(answers)
    print_problems(problems)


def _tell_refused(answers: Sequence[Answer]) -> None:
    screen = Screen(stderr=True)
    for answer in answers:
        if answer.verdict is Verdict.REFUSED:
            screen.line(f"refused: {place(answer.manifest)} {title(answer.manifest)}", "red")
            for judged in answer.findings():
                if judged.outcome is Outcome.DENIED:
                    sentence = judged.finding.sentence()
                    screen.paragraph(f"{place(answer.manifest, judged)}: {sentence}", indent=2)


def print_json(answers: Sequence[Answer], problems: Sequence[ManifestProblem]) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document(answers, problems)), indent=2))


def document(answers: Sequence[Answer], problems: Sequence[ManifestProblem]) -> dict[str, Any]:
    """Return what `-o json` prints.

    - `objects[]`: file, line, apiVersion, kind, namespace, name, verdict (refused, changed, ok, skipped), `findings[]`
      about the object itself (a ResourceQuota's keys, a ResourceClaimTemplate that never fits), and `pods[]`, one for a Pod and
      one per pod template of a workload;
    - a pod: path ("" or "spec.template"), policy, exemption, `findings[]` (outcome denied, warned or logged; rule, path
      from the object, line, container, value, message, remedy), `changes[]` (rule, what, operations as in RFC 6902,
      relative to the pod);
    - `problems[]`: file, line (0: the whole file), path, message; `summary` counts all of it.
    """
    number = Counter(answer.verdict for answer in answers)
    return {
        "objects": [_object_document(answer) for answer in answers],
        "problems": [
            {"file": p.file, "line": p.line, "path": p.path, "message": p.message} for p in problems
        ],
        "summary": {
            "objects": len(answers),
            **{verdict.value: number[verdict] for verdict in Verdict},
            "problems": len(problems),
            "skippedKinds": dict(skipped_kinds(answers)),
        },
    }


def _object_document(answer: Answer) -> dict[str, Any]:
    manifest = answer.manifest
    return {
        "file": manifest.file,
        "line": manifest.line_of(),
        "apiVersion": manifest.api_version,
        "kind": manifest.kind,
        "namespace": manifest.namespace,
        "name": manifest.name,
        "verdict": answer.verdict.value,
        "findings": [
            {
                "outcome": Outcome.WARNED.value,
                "rule": warning.rule,
                "path": warning.path,
                "line": _line_in(manifest, warning),
                "message": warning.message,
                "remedy": warning.remedy,
            }
            for warning in answer.warnings
        ],
        "pods": [_pod_document(manifest, pod) for pod in answer.pods],
    }


def _pod_document(manifest: Manifest, pod: PodAnswer) -> dict[str, Any]:
    policy = pod.policy
    return {
        "path": pod.source.path,
        "policy": {
            "name": policy.name,
            "version": policy.version,
            "why": policy.why,
            "templates": policy.templates.value,
        },
        "exemption": pod.exemption and {"reason": pod.exemption.reason, "until": pod.exemption.until},
        "findings": [
            {
                "outcome": judged.outcome.value,
                "rule": judged.finding.rule,
                "path": judged.finding.path,
                "line": _line_in(manifest, judged.finding),
                "container": judged.finding.container,
                "value": judged.finding.value,
                "message": judged.finding.message,
                "remedy": judged.finding.remedy,
            }
            for judged in pod.judged
        ],
        "changes": [
            {
                "rule": change.rule,
                "what": change.change.what,
                "operations": plain_operations(list(change.change.operations)),
            }
            for change in pod.changes
        ],
    }


def _line_in(manifest: Manifest, finding: Finding) -> int:
    return manifest.line_of(path_parts(finding.path))


def place(manifest: Manifest, judged: EvaluatedFinding | None = None) -> str:
    line = manifest.line_of() if judged is None else _line_in(manifest, judged.finding)
    return f"{manifest.file}:{line}"


def title(manifest: Manifest) -> str:
    name = manifest.name or "(no name)"
    # Of other kinds it is not known whether they are in a namespace at all.
    return f"{manifest.kind} {manifest.namespace}/{name}" if manifest.is_known else f"{manifest.kind} {name}"
