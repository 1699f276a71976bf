"""The stores, each with an administrator."""

import msgspec

from policies.policy import PolicySet
from policies.quota.amounts import CLASSES as CLASSES_PREFIX
from policies.quota.amounts import GPUS, Amounts, Hard
from policies.quota.catalogue import CatalogueVersion, PublishedCatalogue, catalogue_digest
from policies.quota.demand import UnclassifiedPods
from policies.quota.spec import QuotaSpec
from tests.builders import CLASSES, RESOURCE_MAPPING
from tests.webhook.quota.world import NAMESPACE
from webhook.configuration.loader import Configuration
from webhook.quota.store import MemoryStore


def hard_texts(hard: Amounts) -> dict[str, object]:
    classes = {
        key.removeprefix(CLASSES_PREFIX): str(amount)
        for key, amount in hard.items()
        if key.startswith(CLASSES_PREFIX)
    }
    return {"gpus": str(hard[GPUS]) if GPUS in hard else None, "classes": classes}


def configuration(**quotas: QuotaSpec) -> Configuration:
    return Configuration(
        policies=PolicySet([]),
        classes=CLASSES,
        resource_mapping=RESOURCE_MAPPING,
        version="test",
        quotas=quotas,
    )


def spec(hard: Amounts, unclassified_pods: UnclassifiedPods = UnclassifiedPods.TOTAL_ONLY) -> QuotaSpec:
    return QuotaSpec(hard=msgspec.convert(hard_texts(hard), Hard), stated_unclassified_pods=unclassified_pods)


class MemoryLedger:
    """A MemoryStore whose configuration is loaded again at every grant."""

    catalogue = str(
        CatalogueVersion(
            catalogue_digest(PublishedCatalogue(CLASSES, RESOURCE_MAPPING)), UnclassifiedPods.TOTAL_ONLY
        )
    )

    unclassified_pods = UnclassifiedPods.TOTAL_ONLY

    def __init__(self, hard: Amounts) -> None:
        self.grant(hard)
        self.store = MemoryStore(lambda: self.configuration)

    def grant(self, hard: Amounts) -> None:
        self.configuration = configuration(**{NAMESPACE: spec(hard, self.unclassified_pods)})

    def replace(self, hard: Amounts) -> None:  # noqa: ARG002 - the signature of a ledger
        raise AssertionError("in memory there is nothing to replace")
