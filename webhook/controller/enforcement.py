"""Whether the rule gpu-quota denies anything in a namespace, by the policy that its labels select."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

from policies.registry import QUOTA_RULE
from policies.rule import Mode
from webhook.cluster.namespaces import Namespaces, NamespaceUnknown
from webhook.configuration.loader import Configuration

log = logging.getLogger("gpu_admission.controller")

LABELS_SECONDS = 2.0
"""Within these seconds the labels of a namespace must be read."""


@dataclass(eq=False)
class Enforcement:
    """Answers by the configuration in force. While the labels of a namespace cannot be read, its quota counts as enforced."""

    configuration: Callable[[], Configuration]
    namespaces: Namespaces

    def enforces_quota(self, namespace: str) -> bool:
        """Whether the mode of the rule is enforce there, also while the policy is paused. Else nobody waits in line."""
        return self._enforces(namespace, must_queue=False)

    def lets_wait(self, namespace: str) -> bool:
        """Whether its mode is enforce, and pods that exceed the quota wait in line."""
        return self._enforces(namespace, must_queue=True)

    def respects_kueue(self, namespace: str) -> bool:
        """Whether pods that Kueue has admitted start also beyond the quota. False while that cannot be read."""
        return self._enforces(namespace, must_queue=True, must_respect=True, unknown=False)

    def _enforces(
        self, namespace: str, *, must_queue: bool, must_respect: bool = False, unknown: bool = True
    ) -> bool:
        policies = self.configuration().policies
        try:
            deadline = monotonic() + LABELS_SECONDS
            labels = (
                self.namespaces.labels_of(namespace, deadline)
                if policies.depends_on_labels(namespace)
                else ()
            )
        except NamespaceUnknown as error:
            log.warning("%s: its labels, which select its policy: %s", namespace, error)
            return unknown
        rule = policies.for_namespace(namespace, labels).in_force(QUOTA_RULE.id, datetime.now(UTC))
        if rule is None:
            return False
        options = rule[0].options
        meets = (options.queues or not must_queue) and (options.respects_kueue or not must_respect)
        return options.mode is Mode.ENFORCE and meets
