"""Reviews to replay: what the API server really sends for the pods of tests.bench.pods, and what it sends of them in the end."""

from contextlib import ExitStack

import yaml

from tests.bench.admissions import NAMESPACE, PODS
from tests.bench.pods import model_server
from tests.controlplane import ControlPlane
from tests.controlplane.fake_webhook import Call, FakeWebhook, Reply

MUTATE, VALIDATE = "/mutate", "/validate"


def capture(plane: ControlPlane) -> dict[str, str]:
    """Create a GPU pod by kubectl and return the review of each phase by its path, as it came over the wire.

    What is registered besides stays in force: the first review is of the pod as it arrives, the second of the final one.
    """
    bodies: dict[str, str] = {}

    def record(call: Call) -> Reply:
        bodies[call.path.partition("?")[0]] = call.body
        return Reply()

    with FakeWebhook(plane, "capture", record, host=40) as recorder, ExitStack() as registrations:
        for kind, path in (("mutating", MUTATE), ("validating", VALIDATE)):
            entry = recorder.entry("capture.example.com", "pods", path=path)
            # Its name: called before any other.
            registrations.enter_context(recorder.registered(kind, "aa-bench-capture", entry))
        for attempt in range(100):  # until the configurations are in force, some 100 ms
            pod = yaml.safe_dump(model_server(f"captured-{attempt}", gpus=1))
            plane.kubectl("create", "--namespace", NAMESPACE, "-f", "-", stdin=pod)
            if set(bodies) == {MUTATE, VALIDATE}:
                break
    plane.client().delete(PODS, {"gracePeriodSeconds": 0})
    return {path: bodies[path] for path in (MUTATE, VALIDATE)}
