"""The rights by which the webhook reads what makes pods: those of the table of kinds, and none where the chart says so."""

import pytest

from tests.deploy.manifests import of_kind, rendered
from webhook.configuration.loader import load_directory

pytestmark = pytest.mark.usefixtures("rendering")
BUDGETS_CONFIG_MAP = ("list", "policy", "poddisruptionbudgets")
OWN = 'webhooks.extraWorkloads=[{"apiGroup": "example.com", "resources": ["trainingjobs"]}]'


def rights(*arguments: str) -> set[tuple[str, str, str]]:
    """Return verb, API group and resource of what the webhook may do in all namespaces."""
    roles = of_kind("ClusterRole", rendered(*arguments))
    (role,) = (each for each in roles if each["metadata"]["name"] == "gpu-admission-webhook")
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_webhook_reads_the_kinds_that_may_end_their_pods_and_no_others() -> None:
    kinds = load_directory(None).workload_kinds.values()
    of_the_table = {("get", each.group, each.plural) for each in kinds if each.ends_pods}

    assert rights() - rights("--set", "webhook.readOwners=false") == {*of_the_table, BUDGETS_CONFIG_MAP}


def test_kinds_of_the_administrator_are_read_as_well() -> None:
    assert rights("--set-json", OWN) - rights() == {("get", "example.com", "trainingjobs")}


def test_of_kueue_the_webhook_reads_nothing() -> None:
    assert not {each for each in rights() if "kueue" in each[1]}
