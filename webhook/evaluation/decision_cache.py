"""A configuration, with the decisions and demands that were computed under it, for equal pods."""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from policies.placement.nodes import NodeFacts
from policies.placement.pinning import named_nodes
from policies.pods.fingerprint import TOKEN_VOLUME
from policies.pods.pod import Pod
from policies.policy import EffectivePolicy
from policies.quota.catalogue import CatalogueVersion
from policies.quota.demand import Demand
from policies.quota.quota_request import demand_input
from policies.registry import RULES, fingerprints
from policies.rule import FETCHER_IMAGE
from webhook.configuration.loader import Configuration
from webhook.evaluation.decision import Decision

MAX_DECISIONS, MAX_DECISION_LENGTH = 256, 16 * 1024
"""Cached decisions, and bytes of each as JSON: 4 MiB in all."""

MAX_DEMANDS, MAX_INPUT_LENGTH = 1_024, 2 * 1024
"""Keys of cached demands, and bytes of a `demand_input`. The second also limits the denials that a demand contains."""


class DecisionCache:
    """A configuration, with a cache of decisions and demands under it."""

    def __init__(self, configuration: Configuration, fetcher_image: str = FETCHER_IMAGE) -> None:
        self.configuration = configuration
        self.fetcher_image = fetcher_image
        self.decisions: dict[tuple[object, ...], tuple[Decision, NodeFacts | None]] = {}
        self.fingerprints = fingerprints(RULES, configuration.resource_mapping)
        self._demands: dict[bytes, dict[CatalogueVersion, Demand]] = {}

    def demands(self, pod: Pod, fingerprint: bytes | None) -> dict[CatalogueVersion, Demand]:
        """Return the cached demands of pods with an equal `demand_input`, for the caller to add to: one takes 0.1 ms to compute.

        A pod that names nodes gets a new dict, because its demand depends on the nodes.
        """
        demands = self._demands.get(fingerprint or b"")
        if demands is not None:
            return demands
        if named_nodes(pod):
            return {}
        text = demand_input(self.fingerprints.reduced(pod))
        demands = self._demands.get(text, {})
        if len(text) <= MAX_INPUT_LENGTH:
            if len(self._demands) >= MAX_DEMANDS:
                self._demands.clear()
            self._demands |= {key: demands for key in (text, fingerprint) if key}
        return demands

    def cached_decision(
        self, key: tuple[object, ...], policy: EffectivePolicy, nodes: NodeFacts | None
    ) -> Decision | None:
        """Return the cached decision on an equal pod, without the pod, if policy and nodes are the same."""
        cached = self.decisions.get(key)
        return cached[0] if cached and cached[0].policy is policy and cached[1] is nodes else None

    def cache_decision(self, key: tuple[object, ...], decision: Decision, nodes: NodeFacts | None) -> None:
        """Cache the decision for equal pods, unless it is long, or quotes the name of a token volume: that name differs."""
        text = msgspec.json.encode((decision.violations, decision.changes))
        if len(text) > MAX_DECISION_LENGTH or TOKEN_VOLUME.encode() in text:
            return
        if len(self.decisions) >= MAX_DECISIONS:
            self.decisions.clear()
        self.decisions[key] = replace(decision, pod=None), nodes


def cache_source(
    source: Callable[[], Configuration], fetcher_image: str = FETCHER_IMAGE
) -> Callable[[], DecisionCache]:
    """Return a function that returns the cache of the configuration in force, built once for each configuration."""
    cache = DecisionCache(source(), fetcher_image)

    def in_force() -> DecisionCache:
        nonlocal cache
        configuration = source()
        if cache.configuration is not configuration:
            cache = DecisionCache(configuration, fetcher_image)
        return cache

    return in_force
