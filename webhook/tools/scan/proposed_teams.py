"""ClusterGPUQuotas for namespaces that hold GPUs and share a label that looks like the name of a team."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from math import ceil

import msgspec

from policies.pods.names import is_dns_label
from policies.policy import Labels
from policies.quota.amounts import GPUS, format_amount
from webhook.configuration.documents import TEAM, Document

TEAM_LABELS = frozenset(
    {
        "business-unit",
        "cost-center",
        "cost-centre",
        "costcenter",
        "department",
        "group",
        "owner",
        "projectid",  # field.cattle.io/projectId of Rancher
        "squad",
        "team",
        "tenant",  # capsule.clastix.io/tenant
    }
)
"""Last parts of keys, in lower case. A label of another name may be anything."""


class HeldGPUs(msgspec.Struct, frozen=True):
    """What a namespace holds, and its largest pod."""

    namespace: str
    gpus: Fraction
    largest: Fraction


def proposed_teams(holders: Iterable[HeldGPUs], labels: Mapping[str, Labels]) -> Iterator[Document]:
    """Yield a ClusterGPUQuota for each value of the label that most of the holders share, if two of them have it.

    It grants what they hold, rounded up, and the largest pod once more. A namespace belongs to one team, so one label decides.
    """
    by_label: dict[str, dict[str, list[HeldGPUs]]] = defaultdict(lambda: defaultdict(list))
    for holder in holders:
        for key, value in labels.get(holder.namespace, ()):
            if key.rpartition("/")[2].lower() in TEAM_LABELS:
                by_label[key][value].append(holder)
    shared = {
        key: {value: members for value, members in values.items() if len(members) > 1 and is_dns_label(value)}
        for key, values in by_label.items()
    }
    key = max(sorted(shared), key=lambda key: sum(map(len, shared[key].values())), default="")
    for value, members in sorted(shared.get(key, {}).items()):
        gpus = ceil(sum(member.gpus for member in members)) + ceil(max(member.largest for member in members))
        spec = {
            "namespaces": {"selector": {"matchLabels": {key: value}}},
            "hard": {GPUS: format_amount(Fraction(gpus))},
        }
        yield Document(TEAM, value, spec)
