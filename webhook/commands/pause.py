"""`gpu-admission config pause` and `resume`: break glass, on the GPUPolicies of a cluster.

Only the API server is needed: it works while our own webhook is down, and whatever is wrong with other documents. A pause ends
by itself. Who did it, when and why is written on the policy; the API server's audit log is the proof.
"""

import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from webhook.cluster import errors
from webhook.cluster.access import AccessError, load_access
from webhook.cluster.api import ApiClient
from webhook.commands.output import Screen
from webhook.commands.parameters import moment
from webhook.configuration.cluster_source import RESOURCES, path_of, record_decoder
from webhook.configuration.documents import GROUP, PAUSE, POLICY

LONGEST = timedelta(hours=24)
PAUSED_BY, PAUSED_AT, PAUSE_REASON = (
    f"{GROUP}/{name}" for name in ("paused-by", "paused-at", "pause-reason")
)
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
FAILED, BAD_INPUT = 1, 2
EVERYTHING = "*"

_DURATION = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)

_kubeconfig = click.option("--kubeconfig", help="Left out: what kubectl would use.")
_context = click.option("--context", "context_name", help="Context of the kubeconfig.")
_output = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)


class Found(msgspec.Struct, frozen=True):
    """A policy as it is stored."""

    uid: str
    name: str
    path: str
    namespaces: tuple[str, ...]
    paused_until: str | None
    namespace: str = ""


@click.command()
@click.argument("names", nargs=-1, metavar="[POLICY]...")
@click.option("--for", "duration", metavar="DURATION", help="Such as 30m or 1h30m; at most 24h.")
@click.option("--reason", help="Why, for whoever finds the pause.")
@_kubeconfig
@_context
@_output
def pause(
    *,
    names: tuple[str, ...],
    duration: str | None,
    reason: str | None,
    kubeconfig: str | None,
    context_name: str | None,
    output: str,
) -> None:
    """Let every rule of GPUPolicies only audit for a while; of all of them, if none is named."""
    now = datetime.now(UTC).replace(microsecond=0)
    problems = [*_duration_problems(duration), *_reason_problems(reason)]
    api, found = _policies(kubeconfig, context_name, problems)
    chosen = _chosen(found, names, problems)
    if api is not None and not found:
        problems.append(
            f"there is no {POLICY} in this cluster, so there is nothing to pause: the built-in defaults hold; "
            "apply a policy whose rules audit instead"
        )
    _end_with(problems, BAD_INPUT)
    until = moment(now + duration_of(duration or ""))
    who = _who(api) if api else ""
    change = {PAUSED_BY: who, PAUSED_AT: moment(now), PAUSE_REASON: reason}
    done = _patch(api, chosen, {"metadata": {"annotations": change}, "spec": {PAUSE: until}})
    if output == "json":
        told = [
            {
                "policy": p.name,
                "pausedUntil": until,
                "wasPausedUntil": p.paused_until,
                "by": who,
                "reason": reason,
            }
            for p in done
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))
    else:
        _print_pause(done, found, until, who)
    sys.exit(0 if len(done) == len(chosen) else FAILED)


@click.command()
@click.argument("names", nargs=-1, metavar="[POLICY]...")
@_kubeconfig
@_context
@_output
def resume(*, names: tuple[str, ...], kubeconfig: str | None, context_name: str | None, output: str) -> None:
    """End the pause of GPUPolicies; of all that are paused, if none is named."""
    problems: list[str] = []
    api, found = _policies(kubeconfig, context_name, problems)
    chosen = [policy for policy in _chosen(found, names, problems) if policy.paused_until is not None]
    _end_with(problems, BAD_INPUT)
    gone = dict.fromkeys((PAUSED_BY, PAUSED_AT, PAUSE_REASON))
    done = _patch(api, chosen, {"metadata": {"annotations": gone}, "spec": {PAUSE: None}})
    if output == "json":
        told = [{"policy": policy.name, "wasPausedUntil": policy.paused_until} for policy in done]
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))
    else:
        screen = Screen()
        for policy in done:
            screen.line(f"policy {policy.name} holds again; it was paused until {policy.paused_until}")
        if not chosen:
            screen.line("nothing is paused")
    sys.exit(0 if len(done) == len(chosen) else FAILED)


def duration_of(text: str) -> timedelta:
    """Read a duration such as 30m or 1h30m. Raises ValueError with a sentence."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f'"{text[:40]}" is no duration: write 30m or 1h30m')
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    duration = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if not timedelta() < duration <= LONGEST:
        raise ValueError(
            f'"{text[:40]}" is not more than nothing and at most 24h; pause again if it takes longer'
        )
    return duration


def _duration_problems(duration: str | None) -> Iterator[str]:
    if duration is None:
        yield "--for is missing: say how long, such as --for 30m"
        return
    try:
        duration_of(duration)
    except ValueError as error:
        yield f"--for: {error}"


def _reason_problems(reason: str | None) -> Iterator[str]:
    if reason is None or not reason.strip():
        yield "--reason is missing: say why, for whoever finds the pause"


def _policies(
    kubeconfig: str | None, context_name: str | None, problems: list[str]
) -> tuple[ApiClient | None, list[Found]]:
    """Return the policies that are stored; what went wrong becomes a problem."""
    try:
        api = ApiClient(load_access(kubeconfig, context_name))
        found = api.list(RESOURCES[POLICY].path(), _found).items
    except errors.NotFound:
        problems.append(f"this cluster has no {POLICY}: the kind is not installed")
    except (AccessError, errors.ApiError) as error:
        problems.append(f"the policies cannot be read: {error}")
    else:
        return api, sorted(found, key=lambda policy: policy.name)
    return None, []


def _found(raw: msgspec.Raw) -> Found:
    record = record_decoder(POLICY)(raw)
    document, match = record.document, record.document.spec.get("match")
    globs = match.get("namespaces", [EVERYTHING]) if isinstance(match, dict) else [EVERYTHING]
    until = document.spec.get(PAUSE)
    return Found(record.uid, document.name, path_of(document), tuple(map(str, globs)), until)


def _chosen(found: list[Found], names: tuple[str, ...], problems: list[str]) -> list[Found]:
    known = {policy.name: policy for policy in found}
    if found:
        problems.extend(
            f"there is no {POLICY} {name}; there are {', '.join(known)}"
            for name in names
            if name not in known
        )
    return [known[name] for name in dict.fromkeys(names) if name in known] if names else found


def _end_with(problems: list[str], status: int) -> None:
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    if problems:
        sys.exit(status)


def _who(api: ApiClient) -> str:
    """Return who the API server takes us for."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = msgspec.json.decode(api.post(REVIEWS, msgspec.json.encode(body)))
        return str(answer["status"]["userInfo"]["username"])
    except (errors.ApiError, msgspec.MsgspecError, KeyError, TypeError):
        return "unknown"


def _patch(api: ApiClient | None, chosen: list[Found], change: dict[str, Any]) -> list[Found]:
    """Return the policies that were changed; why others were not is told."""
    done = []
    for policy in chosen:
        try:
            if api is not None:
                api.patch(policy.path, msgspec.json.encode(change))
                done.append(policy)
        except errors.ApiError as error:
            click.echo(f"error: policy {policy.name}: {error}", err=True)
    return done


def _print_pause(done: list[Found], found: list[Found], until: str, who: str) -> None:
    screen = Screen()
    for policy in done:
        before = f" (it was until {policy.paused_until})" if policy.paused_until else ""
        where = ", ".join(policy.namespaces)
        screen.line(f"policy {policy.name}, which governs {where}, is paused until {until}{before}, by {who}")
    if not done:
        return
    screen.paragraph("What it would refuse or change is only logged. It ends by itself, or with:")
    screen.line(f"  gpu-admission config resume {' '.join(policy.name for policy in done)}")
    if len(done) == len(found) and not any(EVERYTHING in policy.namespaces for policy in done):
        screen.paragraph(
            "Namespaces that no policy matches are governed by the built-in defaults, which cannot be paused."
        )
