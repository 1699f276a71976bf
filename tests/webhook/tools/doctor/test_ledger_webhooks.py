"""Webhooks of others that review the ledgers of quotas."""

from pathlib import Path

from tests.builders import JSON
from tests.cases import cases
from tests.webhook.tools.doctor.objects import ADMISSION, MUTATING, NAMESPACES, engine, namespace
from tests.webhook.tools.installed_clusters import assert_found
from webhook.cluster.objects import WEBHOOK

VALIDATING = f"{ADMISSION}/validatingwebhookconfigurations"
MESSAGE = (
    "x.example.com may deny GPUQuotaLedgers in gpu-admission, or not answer: then GPU pods are denied, since each review of one "
    "writes the ledger of its quota\n"
    "exclude namespace gpu-admission in its namespaceSelector, or in the settings of what writes that"
)
DENIES = [f"ledger-webhook: ValidatingWebhookConfiguration/engine {MESSAGE}"]
LEDGERS = {"apiGroups": ["gpu-admission.dev"], "resources": ["gpuquotaledgers"], "operations": ["UPDATE"]}


def engine_if(expression: str) -> list[JSON]:
    """Return the webhook for everything, with a condition."""
    [document] = engine()
    document["webhooks"][0]["matchConditions"] = [{"name": "one", "expression": expression}]
    return [document]


@cases(
    ("engines", "want"),
    everything=(engine(), DENIES),
    ledgers=(engine("", **LEDGERS), DENIES),
    ledgers_of_our_namespace=(engine("In", **LEDGERS), DENIES),
    everything_in_other_namespaces=(engine("NotIn"), []),
    deletions=(engine(operations=["DELETE"]), []),
    other_objects_of_ours=(engine("", **{**LEDGERS, "resources": ["gpupolicies"]}), []),
    objects_of_others=(engine(apiGroups=[""]), []),
    a_condition_that_leaves_out_our_namespace=(
        engine_if("!(request.namespace in ['gpu-admission'])"),
        [],
    ),
    a_condition_that_leaves_out_our_account=(
        engine_if(f"request.userInfo.username != 'system:serviceaccount:gpu-admission:{WEBHOOK}'"),
        [],
    ),
    a_condition_of_other_kinds=(engine_if("request.kind.kind == 'Pod'"), []),
    a_condition_of_deletions=(engine_if("request.operation == 'DELETE'"), []),
    a_condition_of_creations=(engine_if("request.operation == 'CREATE'"), DENIES),
    a_condition_of_other_namespaces=(engine_if("request.namespace != 'kube-system'"), DENIES),
    a_condition_on_what_the_ledger_has=(engine_if("object.metadata.name == 'x'"), DENIES),
    a_condition_on_what_its_author_may=(
        engine_if("!authorizer.group('').resource('pods').check('x').allowed()"),
        DENIES,
    ),
)
def test_webhooks_that_review_ledgers(engines: list[JSON], want: list[str], tmp_path: Path) -> None:
    objects = {VALIDATING: engines, NAMESPACES: [namespace("gpu-admission")]}
    assert_found("ledger-webhooks", objects, want, tmp_path)


def test_mutating_webhooks_too(tmp_path: Path) -> None:
    objects = {MUTATING: engine(), NAMESPACES: [namespace("gpu-admission")]}
    assert_found(
        "ledger-webhooks",
        objects,
        [f"ledger-webhook: MutatingWebhookConfiguration/engine {MESSAGE}"],
        tmp_path,
    )
