"""`gpu-admission release`: starts the pods that wait in line for quota, in an emergency and before an uninstallation.

It needs only the API server. Where the webhook enforces the quota, it puts the gate back: pause the policies first, or delete the
webhook configurations, as an uninstallation does.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import partial
from time import monotonic, sleep

import click
import msgspec

from policies.quota.waiting import GATE
from webhook.cluster import errors
from webhook.cluster.api import JSON_PATCH, ApiClient, api_path
from webhook.cluster.objects import (
    WEBHOOK_CONFIGURATION,
    WEBHOOK_CONFIGURATION_KINDS,
    decode_metadata,
    webhook_configuration_path,
)
from webhook.commands.options import ClusterChoice, cluster_options, namespace_options, output_option
from webhook.commands.output import FAILED, Screen, counted, print_as, progress
from webhook.tools.stored_pod import StoredPod, decode_stored

TRY_SECONDS = 30.0
"""How long the removal of a gate is tried again: a replica of the webhook may not know yet that its policy is paused."""
PAUSE_SECONDS = 1.0
THREADS = 16
PAUSE_FIRST = "pause the policies first: gpu-admission pause --for 1h --reason 'release the pods that wait'"


class _Result(Enum):
    RELEASED = "released"
    PUT_BACK = "the webhook put the gate back"
    DENIED = "denied"


@click.command()
@namespace_options("none: name one, or -A", "--all")
@click.option(
    "--uninstall",
    is_flag=True,
    help=f"Delete the webhook configurations {WEBHOOK_CONFIGURATION} first: from then on nothing is reviewed.",
)
@cluster_options
@output_option()
def release(
    *, namespace: str | None, all_namespaces: bool, uninstall: bool, cluster: ClusterChoice, output: str
) -> None:
    """Start all pods that wait in line for quota.

    It removes their scheduling gate, so they start although they exceed the quota. While policies enforce it, the webhook puts
    it back: pause them first. For an uninstallation, --uninstall takes the webhook away instead; `helm uninstall` does that.

    Exit codes: 0 no pod waits any more, 1 some still wait, 2 it could not try.
    """
    if not all_namespaces and namespace is None:
        raise click.UsageError("name the pods to release: -n NAMESPACE, or -A")
    if uninstall and not all_namespaces:
        raise click.UsageError("--uninstall requires -A")
    path = api_path("/api/v1", "namespaces", namespace, "pods") if namespace else "/api/v1/pods"
    with cluster.client() as api:
        for kind in WEBHOOK_CONFIGURATION_KINDS if uninstall else ():
            _delete_if_there(api, webhook_configuration_path(kind))
        waiting = [pod for pod in api.list(path, decode_stored).items if GATE in pod.gates]
        until = monotonic() + TRY_SECONDS
        with progress("removing the scheduling gates"), ThreadPoolExecutor(THREADS) as threads:
            results = list(threads.map(partial(_release_until, until, api), waiting))
    shown = [{"pod": pod.title, "result": result.value, "message": text} for pod, result, text in results]
    print_as(output, shown, lambda screen: _print_results(screen, results))
    sys.exit(0 if all(result is _Result.RELEASED for _, result, _ in results) else FAILED)


def _delete_if_there(api: ApiClient, path: str) -> None:
    """Delete the object, unless it is gone."""
    try:
        api.delete(path, version=decode_metadata(api.get(path)).resource_version)
    except errors.NotFound:
        return


def _release_until(until: float, api: ApiClient, pod: StoredPod) -> tuple[StoredPod, _Result, str]:
    """Try until then to remove the gate, while the webhook puts it back."""
    result, text = _release(api, pod)
    while result is _Result.PUT_BACK and monotonic() < until:
        sleep(PAUSE_SECONDS)
        result, text = _release(api, pod)
    return pod, result, text


def _release(api: ApiClient, pod: StoredPod) -> tuple[_Result, str]:
    """Remove the gate from the pod as it is stored now. A pod that is gone, or has no gate any more, is released."""
    path = api_path("/api/v1", "namespaces", pod.metadata.namespace, "pods", pod.metadata.name)
    try:
        stored = decode_stored(api.get(path))
        if GATE not in stored.gates or stored.metadata.uid != pod.metadata.uid:
            return _Result.RELEASED, ""
        at = f"/spec/schedulingGates/{stored.gates.index(GATE)}"
        test = {"op": "test", "path": f"{at}/name", "value": GATE}
        patch = msgspec.json.encode([test, {"op": "remove", "path": at}])
        changed = decode_stored(api.patch(path, patch, content_type=JSON_PATCH))
    except errors.NotFound:
        return _Result.RELEASED, ""
    except errors.ApiError as error:
        return _Result.DENIED, str(error)
    return (_Result.RELEASED, "") if GATE not in changed.gates else (_Result.PUT_BACK, PAUSE_FIRST)


def _print_results(screen: Screen, results: list[tuple[StoredPod, _Result, str]]) -> None:
    released = sum(result is _Result.RELEASED for _, result, _ in results)
    for pod, result, text in results:
        if result is not _Result.RELEASED:
            screen.line(f"{pod.title}: {result.value}: {text}")
    screen.line(f"released {counted(released, 'pod')}" if results else "no pod waits in line for quota")
