"""A webhook of somebody else, registered under a name that decides when it is called."""

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jsonpatch

from tests.builders import JSON, pod
from tests.controlplane import ControlPlane
from tests.controlplane.fake_webhook import Call, FakeWebhook, Reply

Change = Callable[[JSON], None]
HOST = 32


class OtherWebhook(FakeWebhook):
    """A mutating webhook: changes each new pod of the namespace by `change`, and counts how often it is called."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        super().__init__(plane, "another", self._patch, host=HOST)
        self._plane = plane
        self._namespace = namespace
        self.change: Change
        self.calls = self._registered = 0

    @contextmanager
    def in_force(
        self,
        change: Change,
        *,
        name: str = "zzz-another",
        reinvocation: str = "Never",
        failure_policy: str = "Fail",
        operations: tuple[str, ...] = ("CREATE",),
    ) -> Iterator[None]:
        """Register it; configurations are called in the order of their names, and ours is zz-gpu-admission."""
        self.change, self.calls = change, 0
        self._registered += 1
        entry = self.entry(
            "pods.another.example.com",
            "pods",
            path=self._path,
            reinvocationPolicy=reinvocation,
            failurePolicy=failure_policy,
            rules=[
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": operations}
            ],
            namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
        )
        with self.registered("mutating", name, entry):
            self._wait_until_called()
            yield

    @property
    def _path(self) -> str:
        return f"/mutate/{self._registered}"

    def _patch(self, call: Call) -> Reply:
        before = call.request["object"]
        changed = json.loads(json.dumps(before))
        # The API server hears a moment late that an earlier configuration has gone, too.
        self.calls += call.path.partition("?")[0] == self._path
        self.change(changed)
        patch = jsonpatch.make_patch(before, changed).to_string().encode()
        return Reply({"patchType": "JSONPatch", "patch": b64encode(patch).decode()})

    def _wait_until_called(self) -> None:
        """Return once the API server has taken the configuration over, which it does a moment after storing it."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        deadline = time.monotonic() + 60
        while not self.calls:
            assert time.monotonic() < deadline, "the API server does not call it"
            self._plane.client().post(path, {**pod(), "metadata": {"name": "probe"}}, {"dryRun": "All"})
        self.calls = 0
