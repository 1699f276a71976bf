"""A ResourceQuota at /validate: always let in, with a warning for every key that limits nothing."""

from time import monotonic
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.builders import uid
from webhook.configuration.loader import load_directory
from webhook.serving import review
from webhook.serving.admission import Admission
from webhook.serving.audit import Recorder
from webhook.serving.engine import Engine
from webhook.serving.metrics import Metrics

KIND = {"group": "", "version": "v1", "kind": "ResourceQuota"}
SILENT = {"spec": {"hard": {"nvidia.com/gpu": "4"}}}
WARNING = (
    "spec.hard[nvidia.com/gpu]: set requests.nvidia.com/gpu; has no effect: a ResourceQuota counts only requests "
    "of extended resources [resource-quota]"
)


@pytest.mark.parametrize(
    ("document", "tweaks", "want"),
    [
        pytest.param(SILENT, {}, (WARNING,), id="created"),
        pytest.param(SILENT, {"operation": "UPDATE"}, (WARNING,), id="applied-again"),
        pytest.param(SILENT, {"subResource": "status"}, None, id="its-status-is-the-controllers"),
        pytest.param({"spec": {"hard": {"requests.nvidia.com/gpu": "4"}}}, {}, None, id="enforced"),
        pytest.param({"spec": None}, {}, None, id="empty"),
        pytest.param({"spec": {"hard": 3}}, {}, None, id="unreadable-is-the-api-servers-to-refuse"),
    ],
)
def test_warnings(document: Any, tweaks: dict[str, Any], want: tuple[str, ...] | None) -> None:
    engine = Engine(load_directory(None))
    fields = {
        "uid": uid("review"),
        "kind": KIND,
        "operation": "CREATE",
        "namespace": "team",
        "object": document,
        **tweaks,
    }
    envelope = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": fields}
    request = review.decode_request(msgspec.json.encode(envelope))

    response = Admission(lambda: engine, Recorder(Metrics(CollectorRegistry()))).validate(
        request, deadline=monotonic() + 20
    )

    assert (response.allowed, response.warnings) == (True, want)
