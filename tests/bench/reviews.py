"""Reviews to replay: what the API server really sends for the pods of tests.bench.pods, and what we answer."""

import json
import ssl
import urllib.request
from contextlib import ExitStack

import yaml

from tests.bench.admissions import NAMESPACE, PODS
from tests.bench.noop import UID
from tests.bench.pods import model_server
from tests.controlplane import ControlPlane
from tests.controlplane.fake_webhook import Call, FakeWebhook, Reply
from tests.controlplane.webhook import Webhook

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


def answers(webhook: Webhook, reviews: dict[str, str]) -> dict[str, str]:
    """Return what the webhook answers to the reviews, by path, with UID in place of each one's uid."""
    context = ssl.create_default_context(cafile=webhook.certificates / "ca.crt")
    found = {}
    for path, review in reviews.items():
        request = urllib.request.Request(
            f"https://{webhook.address}{path}", review.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:  # noqa: S310 - https, to us
            found[path] = answer.read().decode().replace(json.loads(review)["request"]["uid"], UID)
    return found
