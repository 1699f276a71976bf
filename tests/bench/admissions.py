"""The ways to admit a pod that are compared: on one API server at once, each in force in a namespace of its own.

So nothing has to be registered between blocks, and what an API server spends on all of them is alike: webhooks whose selector
does not match cost it microseconds.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from policies.pods.label_selector import LabelSelector, Requirement
from tests.bench.before import Version
from tests.bench.pods import JSON, is_placed, model_server
from tests.controlplane import ControlPlane
from tests.controlplane.webhook import Webhook, apply_all, manifests
from webhook.configuration.loader import load_directory
from webhook.tools.export.admission_policies import ExportOptions, export_policies
from webhook.tools.export.static import ADMISSION, MOUNTED_AT, static_files, write

FOLDER = Path(__file__).parent
NAMESPACE = "bench"
LIMIT = 8  # GPUs of a container, in policy/ as in cel.yaml
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
IN_FORCE_WITHIN = 30
OUR_CALLS = frozenset({"pods.mutate.gpu-admission.dev", "pods.validate.gpu-admission.dev"})

_CALLED = re.compile(r'^apiserver_admission_webhook_request_total\{.*name="([^"]+)".*\} (\d+)', re.MULTILINE)


class State(NamedTuple):
    """What can be seen of an admission from outside: webhooks called, a pod with nine GPUs refused, one with one placed."""

    calls: frozenset[str] = frozenset()
    refuses: bool = False
    places: bool = False


class Admission(NamedTuple):
    """What pods of `namespace` are admitted by. `servers`: the processes of ours whose CPU counts, by server."""

    name: str
    namespace: str
    servers: Mapping[str, Sequence[int]] = {}
    in_force: State = State()

    def await_force(self, plane: ControlPlane) -> None:
        """Return as soon as this admission does what it should; RuntimeError: it never does."""
        deadline = time.monotonic() + IN_FORCE_WITHIN
        while (state := self._state(plane)) != self.in_force:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not in force after {IN_FORCE_WITHIN} s: {state}")
            time.sleep(0.1)

    def _state(self, plane: ControlPlane) -> State:
        before = _calls_of(plane)
        refused, _ = self._probe(plane, gpus=LIMIT + 1)
        _, placed = self._probe(plane, gpus=1)
        return State(
            calls=frozenset(_calls_of(plane) - before),
            refuses=refused >= 400,
            places="spec" in placed and is_placed(placed),
        )

    def _probe(self, plane: ControlPlane, *, gpus: int) -> tuple[int, JSON]:
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return plane.client().post(path, model_server("probe", gpus=gpus), {"dryRun": "All"})


def _calls_of(plane: ControlPlane) -> Counter[str]:
    calls: Counter[str] = Counter()
    for name, count in _CALLED.findall(plane.client().get("/metrics")[1]):
        calls[name] += int(count)
    return calls


def serve(stack: ExitStack, plane: ControlPlane, version: Version, host: int) -> Webhook:
    """Have `serve` alone run until the stack is left, with all rules, their built-in defaults and a default class."""
    config = version.source / "tests" / "bench" / "policy"
    return stack.enter_context(Webhook(plane, config=config, host=host, source=version.source))


def register(
    plane: ControlPlane,
    version: Version,
    address: str,
    authority: Path,
    *namespaces: str,
    has_conditions: bool = True,
) -> None:
    """Register the server at `address` as deploy/ does, for pods of these namespaces; without conditions as with `never`."""
    for document in manifests(address, authority, version.source):
        if "webhooks" in document:
            document["metadata"]["name"] += f"-{namespaces[0]}"
            for webhook in document["webhooks"]:
                _direct(webhook, address, namespaces)
                if not has_conditions and webhook["name"] in OUR_CALLS:
                    del webhook["matchConditions"]
            apply_all(plane, [document])


def static_policies(folder: Path, policy: Path, *namespaces: str) -> tuple[str, ...]:
    """Write what this tree exports for pods of these namespaces, and return the API server's arguments to read it from files."""
    chosen = Requirement("kubernetes.io/metadata.name", "In", namespaces)
    options = ExportOptions(now=datetime.now(UTC), selector=LabelSelector(match_expressions=(chosen,)))
    exported = export_policies(load_directory(policy), options)
    write(folder, static_files(exported.objects, exported.version))
    admission = folder / ADMISSION
    admission.write_text(admission.read_text().replace(MOUNTED_AT, str(folder)))
    return (f"--admission-control-config-file={admission}",)


def _direct(webhook: dict[str, Any], address: str, namespaces: Sequence[str]) -> None:
    """Have a webhook called at `address`, for these namespaces. One Service would have one address for all registrations."""
    client = webhook["clientConfig"]
    client["url"] = f"https://{address}{client.pop('service')['path']}"
    selector = webhook.setdefault("namespaceSelector", {})
    chosen = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    selector["matchExpressions"] = [*selector.get("matchExpressions", ()), chosen]
