"""`gpu-admission pause`: makes GPUPolicies only audit, in an emergency; and `gpu-admission resume`, which ends the pause.

Both commands need only the API server. They work while the webhook is down, and while other documents are invalid. A pause
expires by itself. Annotations on the policy say who paused it, when and why. They can be edited; the API server's audit log
is the evidence.
"""

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import click
import msgspec

from webhook.cluster import errors
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import timestamp
from webhook.commands import options
from webhook.commands.options import ClusterChoice
from webhook.commands.output import FAILED, Screen, fail, fail_with, print_as, print_errors
from webhook.configuration.cluster_source import RESOURCES, Record, decode_record, path_of
from webhook.configuration.documents import GROUP, PAUSE, POLICY
from webhook.tools.export.static import FILE, MOUNTED_AT

PAUSED_BY, PAUSED_AT, PAUSE_REASON = (
    f"{GROUP}/{name}" for name in ("paused-by", "paused-at", "pause-reason")
)
SELF_SUBJECT_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
EVERYTHING = "*"

_completed = options.completed_by(partial(options.object_names, path=RESOURCES[POLICY].path()))


@click.command()
@click.argument("names", nargs=-1, metavar="[POLICY]...", shell_complete=_completed)
@click.option(
    "--for",
    "duration",
    type=options.Parsed("DURATION", partial(options.duration, at_most="24h")),
    required=True,
    help="How long, such as 30m or 1h30m; at most 24h, and a pause can be renewed.",
)
@click.option("--reason", required=True, help="Why, written to an annotation of the policy.")
@options.cluster_options
@options.output_option()
def pause(
    *, names: tuple[str, ...], duration: timedelta, reason: str, cluster: ClusterChoice, output: str
) -> None:
    """Pause GPUPolicies: their rules only audit for a while.

    Without a POLICY, pauses all.

    Exit codes: 0 all are paused, 1 some could not be paused, 2 nothing was changed.
    """
    if not reason.strip():
        raise click.BadParameter("must say why the policy is paused", param_hint="--reason")
    now = datetime.now(UTC).replace(microsecond=0)
    with cluster.client() as api:
        policies, chosen = _all_and_chosen(api, names)
        if not policies:
            message = "the built-in defaults are in force; apply a policy whose rules audit instead"
            fail(f"the cluster has no {POLICY} to pause: {message}")
        until, who = timestamp(now + duration), _user_name(api)
        change = {PAUSED_BY: who, PAUSED_AT: timestamp(now), PAUSE_REASON: reason}
        paused = change_policies(api, chosen, {"metadata": {"annotations": change}, "spec": {PAUSE: until}})
    common = {"pausedUntil": until, "by": who, "reason": reason}
    shown = [{**before_change(policy), **common} for policy in paused]
    print_as(output, shown, lambda screen: _print_pause(screen, paused, policies, until, who))
    sys.exit(0 if len(paused) == len(chosen) else FAILED)


@click.command()
@click.argument("names", nargs=-1, metavar="[POLICY]...", shell_complete=_completed)
@options.cluster_options
@options.output_option()
def resume(*, names: tuple[str, ...], cluster: ClusterChoice, output: str) -> None:
    """End the pause of GPUPolicies.

    Without a POLICY, resumes all paused ones.

    Exit codes: 0 the pauses have ended, 1 some could not be ended, 2 nothing was changed.
    """
    removed = dict.fromkeys((PAUSED_BY, PAUSED_AT, PAUSE_REASON))
    with cluster.client() as api:
        _, chosen = _all_and_chosen(api, names)
        chosen = [policy for policy in chosen if paused_until(policy) is not None]
        resumed = change_policies(api, chosen, {"metadata": {"annotations": removed}, "spec": {PAUSE: None}})
    print_as(output, list(map(before_change, resumed)), lambda screen: _print_resume(screen, resumed, chosen))
    sys.exit(0 if len(resumed) == len(chosen) else FAILED)


def _all_and_chosen(api: ApiClient, names: tuple[str, ...]) -> tuple[list[Record], list[Record]]:
    """Return all GPUPolicies of the cluster, and the named ones, or all. If one is not there, the command ends."""
    try:
        policies = api.list(RESOURCES[POLICY].path(), partial(decode_record, POLICY)).items
    except errors.NotFound:
        fail(f"the kind {POLICY} is not installed in the cluster")
    known = {each.document.name: each for each in sorted(policies, key=lambda policy: policy.document.name)}
    message = f"must be one of {', '.join(known)}"
    unknown = [f'{POLICY} not found: "{name}": {message}' for name in names if name not in known]
    if known and unknown:
        fail_with(unknown)
    return list(known.values()), [known[name] for name in dict.fromkeys(names or known) if name in known]


def before_change(policy: Record) -> dict[str, str | None]:
    return {"policy": policy.document.name, "wasPausedUntil": paused_until(policy)}


def paused_until(policy: Record) -> str | None:
    until: str | None = policy.document.spec.get(PAUSE)
    return until


def _namespaces(policy: Record) -> list[str]:
    match = policy.document.spec.get("match")
    globs = match.get("namespaces", [EVERYTHING]) if isinstance(match, dict) else [EVERYTHING]
    return list(map(str, globs))


def _user_name(api: ApiClient) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = msgspec.json.decode(api.post(SELF_SUBJECT_REVIEWS, msgspec.json.encode(body)))
        return str(answer["status"]["userInfo"]["username"])
    except (errors.ApiError, msgspec.MsgspecError, KeyError, TypeError):
        return "unknown"


def change_policies(api: ApiClient, chosen: list[Record], change: dict[str, Any]) -> list[Record]:
    """Patch the policies. Return the patched ones; print the errors of the others."""
    changed = []
    for policy in chosen:
        try:
            api.patch(path_of(policy.document), msgspec.json.encode(change))
            changed.append(policy)
        except errors.ApiError as error:
            print_errors([f"policy {policy.document.name}: {error}"])
    return changed


def _print_resume(screen: Screen, resumed: list[Record], chosen: list[Record]) -> None:
    for policy in resumed:
        screen.line(f"policy {policy.document.name} resumed; it was paused until {paused_until(policy)}")
    if not chosen:
        screen.line("no policy is paused")


def _print_pause(screen: Screen, paused: list[Record], policies: list[Record], until: str, who: str) -> None:
    names = [policy.document.name for policy in paused]
    for policy, name in zip(paused, names, strict=True):
        before = f" (it was until {paused_until(policy)})" if paused_until(policy) else ""
        where = ", ".join(_namespaces(policy))
        screen.line(f"policy {name}, which governs {where}, is paused until {until}{before}, by {who}")
    if not paused:
        return
    screen.paragraph("Denials and changes are only logged. The pause ends by itself, or with:")
    screen.line(f"  gpu-admission resume {' '.join(names)}")
    screen.paragraph(
        "Files of API servers, if there are some (export --static), stay in force: export them again now, and after the pause. "
        f"Or move {MOUNTED_AT}/validating/{FILE} away on each control plane node."
    )
    if len(paused) == len(policies) and not any(EVERYTHING in _namespaces(policy) for policy in paused):
        screen.paragraph(
            "Namespaces that no policy matches are governed by the built-in defaults, which cannot be paused."
        )
