"""Whether the rule gpu-quota denies anything in a namespace, by the policy that its labels select."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

import msgspec

from policies.registry import QUOTA_RULE
from policies.rule import Mode, RuleOptions
from webhook.cluster.namespaces import Namespaces, NamespaceUnknown
from webhook.configuration.loader import Configuration

log = logging.getLogger("gpu_admission.controller")

LABELS_SECONDS = 2.0
"""Within these seconds the labels of a namespace must be read."""
_OPTIONS_IF_UNKNOWN = msgspec.convert({"onExceeded": "Queue"}, QUOTA_RULE.options)


@dataclass(eq=False)
class Enforcement:
    """Answers by the configuration in force. While the labels of a namespace cannot be read, its quota counts as enforced."""

    configuration: Callable[[], Configuration]
    namespaces: Namespaces

    def enforces_quota(self, namespace: str) -> bool:
        """Whether the mode of the rule is enforce there, also while the policy is paused. Else nobody waits in line."""
        return self._enforced_options(namespace) is not None

    def lets_wait(self, namespace: str) -> bool:
        """Whether its mode is enforce, and pods that exceed the quota wait in line."""
        options = self._enforced_options(namespace)
        return options is not None and options.queues_pods

    def respects_kueue(self, namespace: str) -> bool:
        """Whether pods that Kueue has admitted start also beyond the quota. False while that cannot be read."""
        options = self._enforced_options(namespace)
        return options is not None and options.respects_kueue

    def _enforced_options(self, namespace: str) -> RuleOptions | None:
        """Return the options of the rule in a namespace; None if its mode is not enforce."""
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
            return _OPTIONS_IF_UNKNOWN
        rule = policies.for_namespace(namespace, labels).in_force(QUOTA_RULE.id, datetime.now(UTC))
        return rule[0].options if rule is not None and rule[0].options.mode is Mode.ENFORCE else None
