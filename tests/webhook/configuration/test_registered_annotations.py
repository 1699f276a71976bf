"""The match conditions of both webhook configurations, as a document review reads them."""

from pathlib import Path

from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, answering, status
from webhook.configuration.registered_annotations import registered_conditions

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
ENTRY = {"matchConditions": [{"name": "a", "expression": "x"}, {"name": "b", "expression": "y"}]}


@cases(
    ("validating", "want"),
    both=({"webhooks": [{"matchConditions": [{"name": "c", "expression": "z"}]}, {}]}, {"x", "y", "z"}),
    without_webhooks=({}, {"x", "y"}),
    one_is_forbidden=(status(403, "no", "Forbidden"), set()),
    one_is_unreadable=(Answer(b"no JSON"), set()),
)
def test_registered_conditions(tmp_path: Path, validating: object, want: set[str]) -> None:
    objects = {
        f"{ADMISSION}/mutatingwebhookconfigurations/zz-gpu-admission": {"webhooks": [ENTRY]},
        f"{ADMISSION}/validatingwebhookconfigurations/zz-gpu-admission": validating,
    }
    with ApiServer(tmp_path, answering(objects)) as server:
        assert set(registered_conditions(server.client())) == want
