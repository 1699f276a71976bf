"""The match conditions of both webhook configurations, as a document review reads them."""

from pathlib import Path

from policies.gpus.mapping_spec import AnnotationKey, Measure, ResourceMappingSpec
from tests.cases import cases
from tests.webhook.cluster.apiserver import Answer, ApiServer, answering, status
from webhook.configuration.advice import (
    REMEDY,
    UNREVIEWED_KIND,
    registered_conditions,
    unregistered_annotations,
)

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


UNKNOWN = (
    "is not known to the registered webhooks: its pods are counted, and neither they nor changes of it are reviewed; "
    "add it to webhooks.fractionAnnotations of the chart"
)
ON_ANNOTATIONS = "object.metadata.annotations.exists(k, k in ['gpu-fraction', 'gpu-memory'"


@cases(
    ("conditions", "want"),
    registered=([f"{ON_ANNOTATIONS}, 'acme.io/part'])"], []),
    not_registered=([f"{ON_ANNOTATIONS}])"], [f"spec.fractionAnnotations[1].key acme.io/part {UNKNOWN}"]),
    no_condition_is_on_annotations=(["x"], []),
)
def test_annotations_that_are_not_registered(conditions: list[str], want: list[str]) -> None:
    spec = ResourceMappingSpec(
        fraction_annotations=(
            AnnotationKey(key="gpu-fraction", measure=Measure.FRACTION),
            AnnotationKey(key="acme.io/part", measure=Measure.FRACTION),
        )
    )

    found = unregistered_annotations(spec, conditions)

    assert [f"{path} {key} {UNREVIEWED_KIND}; {REMEDY}" for path, key in found] == want
