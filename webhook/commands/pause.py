"""`gpu-admission config pause` and `resume`: break glass, on the GPUPolicies of a cluster.

Only the API server is needed, so both work while our own webhook is down, and whether or not other documents are valid. A pause
ends by itself. Annotations on the policy name who paused it, when and why; the API server's audit log is the proof.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import msgspec

from webhook.cluster import errors
from webhook.cluster.access import AccessError
from webhook.cluster.api import ApiClient
from webhook.cluster.objects import timestamp
from webhook.commands.cluster_options import BAD_INPUT, ClusterChoice, cluster_options
from webhook.commands.output import Screen, print_errors, print_json
from webhook.commands.parameters import output_option
from webhook.configuration.cluster_source import RESOURCES, path_of, record_decoder
from webhook.configuration.documents import GROUP, PAUSE, POLICY
from webhook.serving.deadline import parse_duration

LONGEST = timedelta(hours=24)
PAUSED_BY, PAUSED_AT, PAUSE_REASON = (
    f"{GROUP}/{name}" for name in ("paused-by", "paused-at", "pause-reason")
)
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
FAILED = 1
EVERYTHING = "*"


class StoredPolicy(msgspec.Struct, frozen=True):
    """What pausing needs of a stored GPUPolicy."""

    uid: str
    name: str
    path: str
    namespaces: tuple[str, ...]
    paused_until: str | None
    namespace: str = ""


@click.command()
@click.argument("names", nargs=-1, metavar="[POLICY]...")
@click.option("--for", "duration", metavar="DURATION", help="Such as 30m or 1h30m; required, at most 24h.")
@click.option("--reason", help="Why, for the annotations of the policy; required.")
@cluster_options
@output_option("text", "json")
def pause(
    *,
    names: tuple[str, ...],
    duration: str | None,
    reason: str | None,
    cluster: ClusterChoice,
    output: str,
) -> None:
    """Pause GPUPolicies, all of them if none is named: their rules only audit for a while.

    Exit codes: 0 all are paused, 1 some could not be, 2 nothing was changed.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    problems = [*_duration_problems(duration), *_reason_problems(reason)]
    api, found = _policies(cluster, problems)
    chosen = _chosen(found, names, problems)
    if api is not None and not found:
        problems.append(
            f"the cluster has no {POLICY} to pause: the built-in defaults are in force; "
            "apply a policy whose rules audit instead"
        )
    _end_with(problems, BAD_INPUT)
    until = timestamp(now + pause_duration(duration or ""))
    who = _who(api) if api else ""
    change = {PAUSED_BY: who, PAUSED_AT: timestamp(now), PAUSE_REASON: reason}
    done = _patch(api, chosen, {"metadata": {"annotations": change}, "spec": {PAUSE: until}})
    if output == "json":
        common = {"pausedUntil": until, "by": who, "reason": reason}
        print_json([{"policy": p.name, "wasPausedUntil": p.paused_until, **common} for p in done])
    else:
        _print_pause(done, found, until, who)
    sys.exit(0 if len(done) == len(chosen) else FAILED)


@click.command()
@click.argument("names", nargs=-1, metavar="[POLICY]...")
@cluster_options
@output_option("text", "json")
def resume(*, names: tuple[str, ...], cluster: ClusterChoice, output: str) -> None:
    """End the pause of GPUPolicies, of all that are paused if none is named.

    Exit codes: 0 the pauses have ended, 1 some could not be ended, 2 nothing was changed.
    """
    problems: list[str] = []
    api, found = _policies(cluster, problems)
    chosen = [policy for policy in _chosen(found, names, problems) if policy.paused_until is not None]
    _end_with(problems, BAD_INPUT)
    gone = dict.fromkeys((PAUSED_BY, PAUSED_AT, PAUSE_REASON))
    done = _patch(api, chosen, {"metadata": {"annotations": gone}, "spec": {PAUSE: None}})
    if output == "json":
        print_json([{"policy": policy.name, "wasPausedUntil": policy.paused_until} for policy in done])
    else:
        screen = Screen()
        for policy in done:
            screen.line(f"policy {policy.name} resumed; it was paused until {policy.paused_until}")
        if not chosen:
            screen.line("no policy is paused")
    sys.exit(0 if len(done) == len(chosen) else FAILED)


def pause_duration(text: str) -> timedelta:
    """Parse the duration of a pause. Raises ValueError if it is not valid or out of bounds."""
    duration = parse_duration(text)
    if not timedelta() < duration <= LONGEST:
        raise ValueError(f'"{text[:40]}" must be more than 0 and at most 24h; a pause can be renewed')
    return duration


def _duration_problems(duration: str | None) -> Iterator[str]:
    if duration is None:
        yield "--for: Required value: how long, such as --for 30m"
        return
    try:
        pause_duration(duration)
    except ValueError as error:
        yield f"--for: {error}"


def _reason_problems(reason: str | None) -> Iterator[str]:
    if reason is None or not reason.strip():
        yield "--reason: Required value: why the policy is paused"


def _policies(cluster: ClusterChoice, problems: list[str]) -> tuple[ApiClient | None, list[StoredPolicy]]:
    """Return the stored policies, or None and [] after appending to `problems`."""
    try:
        api = ApiClient(cluster.access())
        found = api.list(RESOURCES[POLICY].path(), _found).items
    except errors.NotFound:
        problems.append(f"the kind {POLICY} is not installed in the cluster")
    except (AccessError, errors.ApiError) as error:
        problems.append(f"failed to list the policies: {error}")
    else:
        return api, sorted(found, key=lambda policy: policy.name)
    return None, []


def _found(raw: msgspec.Raw) -> StoredPolicy:
    record = record_decoder(POLICY)(raw)
    document, match = record.document, record.document.spec.get("match")
    globs = match.get("namespaces", [EVERYTHING]) if isinstance(match, dict) else [EVERYTHING]
    until = document.spec.get(PAUSE)
    return StoredPolicy(record.uid, document.name, path_of(document), tuple(map(str, globs)), until)


def _chosen(found: list[StoredPolicy], names: tuple[str, ...], problems: list[str]) -> list[StoredPolicy]:
    known = {policy.name: policy for policy in found}
    if found:
        problems.extend(
            f'{POLICY} not found: "{name}": must be one of {", ".join(known)}'
            for name in names
            if name not in known
        )
    return [known[name] for name in dict.fromkeys(names) if name in known] if names else found


def _end_with(problems: list[str], status: int) -> None:
    print_errors(problems)
    if problems:
        sys.exit(status)


def _who(api: ApiClient) -> str:
    """Return our user name according to the API server."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = msgspec.json.decode(api.post(REVIEWS, msgspec.json.encode(body)))
        return str(answer["status"]["userInfo"]["username"])
    except (errors.ApiError, msgspec.MsgspecError, KeyError, TypeError):
        return "unknown"


def _patch(api: ApiClient | None, chosen: list[StoredPolicy], change: dict[str, Any]) -> list[StoredPolicy]:
    """Return the policies that were changed; print why others were not."""
    done = []
    for policy in chosen:
        try:
            if api is not None:
                api.patch(policy.path, msgspec.json.encode(change))
                done.append(policy)
        except errors.ApiError as error:
            print_errors([f"policy {policy.name}: {error}"])
    return done


def _print_pause(done: list[StoredPolicy], found: list[StoredPolicy], until: str, who: str) -> None:
    screen = Screen()
    for policy in done:
        before = f" (it was until {policy.paused_until})" if policy.paused_until else ""
        where = ", ".join(policy.namespaces)
        screen.line(f"policy {policy.name}, which governs {where}, is paused until {until}{before}, by {who}")
    if not done:
        return
    screen.paragraph("Denials and changes are only logged. The pause ends by itself, or with:")
    screen.line(f"  gpu-admission config resume {' '.join(policy.name for policy in done)}")
    if len(done) == len(found) and not any(EVERYTHING in policy.namespaces for policy in done):
        screen.paragraph(
            "Namespaces that no policy matches are governed by the built-in defaults, which cannot be paused."
        )
