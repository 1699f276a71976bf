"""Resources of the pod as a whole hide nothing from host-resources: it denies a pod as written if and only if as stored.

Kubernetes 1.37 completes them after webhooks.
"""

from collections import Counter
from itertools import product
from typing import Any

import pytest

from policies.pods.patch import PodPatch
from policies.rules.host_resources import HostResourcesOptions, mutate
from tests.builders import JSON, context, pod, view
from tests.oracle import World, oracle
from tests.policies.rules.shares import A100, SHARES, sidecar, trainer

pytestmark = pytest.mark.processes


def is_denied(document: JSON) -> bool:
    return bool([*mutate(PodPatch(view(document)), HostResourcesOptions(), context(classes=SHARES))])


def amounts(**by_kind: str | None) -> dict[str, Any]:
    return {kind: {"cpu": amount} for kind, amount in by_kind.items() if amount}


def test_a_pod_is_denied_as_written_if_and_only_if_as_stored() -> None:
    seen: Counter[bool] = Counter()
    choices = ((None, "4", "13"), (None, "12", "26"), (None, "4", "13"), (None, "13"), (None, "2"))
    for of_pod, limit_of_pod, cpu, limit, beside in product(*choices):
        document = pod(
            trainer(
                **{key: of for key, of in {"cpu": cpu, "limit_cpu": limit, "memory": "1Gi"}.items() if of}
            ),
            sidecar(**amounts(requests=beside)),
            nodeSelector=A100,
            resources=amounts(requests=of_pod, limits=limit_of_pod),
        )
        stored = oracle().ask(World({**document, "metadata": {"name": "train"}})).pod
        if stored is not None:
            assert is_denied(document) == is_denied(stored), document
            seen[is_denied(document)] += 1

    assert min(seen[True], seen[False]) > 10, seen
