"""The denial of an unpinned pod that counts for every class names a class on which it fits, through all the rules."""

from datetime import UTC, datetime
from fractions import Fraction

import msgspec

from policies.finding import Edit
from policies.pods.annotations import GPU_CLASS
from policies.pods.field_paths import annotation_path, path_parts, with_edit
from policies.quota.amounts import CLASSES, GPUS
from policies.quota.demand import UnclassifiedPods
from policies.quota.quota_request import QuotaGrant
from tests.builders import gpu_container, pod
from webhook.configuration.loader import load_directory
from webhook.serving.engine import Engine, Outcome
from webhook.serving.evaluation import Evaluation, UnusedQuota, evaluate
from webhook.serving.evaluator import Evaluator

CONFIGURATION = load_directory(None)
GRANT = QuotaGrant({GPUS: Fraction(8), CLASSES + "nvidia-a100": Fraction(2)}, UnclassifiedPods.MOST_EXPENSIVE)
BY = Evaluator(
    engine=Engine(CONFIGURATION),
    now=datetime(2026, 11, 21, 12, tzinfo=UTC),
    quota_of=lambda _namespace: UnusedQuota(GRANT, CONFIGURATION),
)


def evaluated(document: object) -> Evaluation:
    return evaluate("", "Pod", "team", msgspec.json.encode(document), BY)


def test_three_gpus_where_a_class_grants_two() -> None:
    document = pod(gpu_container(3))
    (denied,) = (each for each in evaluated(document).findings() if each.outcome is Outcome.DENIED)

    (edit,) = denied.finding.fix
    assert edit == Edit(annotation_path(GPU_CLASS), "nvidia-a10"), denied.finding.sentence()
    fixed = with_edit(document, path_parts(edit.path), edit.value)
    assert not list(evaluated(fixed).findings()), "the class that is named takes the pod"
