"""The facts of a cluster that evaluations need besides the objects. Kinds that the caller may not list are left out.

Each fact is read when it is first needed, and kept: for one scan, not for a long-lived process.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property

import msgspec

from policies.gpus.claims import ClaimName, DeviceClassNames
from policies.policy import Labels
from policies.quota.quota_request import QuotaGrant
from policies.quota.spec import QuotaSpec
from webhook.cluster import errors
from webhook.cluster.api import METADATA, METADATA_LIST, api_path
from webhook.cluster.objects import decode_metadata
from webhook.configuration.documents import GROUP
from webhook.configuration.dynamic_resources import read_claims
from webhook.configuration.loader import Configuration
from webhook.controller.records import QUOTAS
from webhook.quota.documents import PLURAL, decode_quota
from webhook.quota.enforcer import NamespaceQuota
from webhook.serving.engine import Engine
from webhook.serving.evaluation import UnusedQuota
from webhook.serving.evaluator import Evaluator
from webhook.tools.check.run_context import grants
from webhook.tools.status.permitted import Permitted

NAMESPACES = "/api/v1/namespaces"


class ClusterFacts:
    """Facts of a cluster, or of one namespace. Raises `errors.ApiError` for everything but a lack of rights."""

    def __init__(self, reader: Permitted, namespace: str) -> None:
        self._reader, self._namespace = reader, namespace
        self._api, self._attempt = reader.api, reader.attempt

    @cached_property
    def labels(self) -> dict[str, Labels]:
        """The labels of the namespaces that may be read."""
        found: dict[str, Labels] = {}

        def read(raw: bytes | msgspec.Raw) -> None:
            metadata = decode_metadata(raw)
            found[metadata.name] = metadata.sorted_labels

        if self._namespace:
            path = api_path("/api/v1", "namespaces", self._namespace)
            right = f"get namespaces/{self._namespace}"
            self._attempt(right, lambda: read(self._api.get(path, accept=METADATA)))
        else:
            self._attempt("list namespaces", lambda: self._api.list(NAMESPACES, read, accept=METADATA_LIST))
        return found

    @cached_property
    def claims(self) -> Mapping[ClaimName, DeviceClassNames | None]:
        return read_claims(self._api)

    @cached_property
    def quotas(self) -> dict[str, QuotaGrant] | None:
        """What the GPUQuotas of the cluster grant, by namespace; None where they may not be read."""
        found: dict[str, QuotaSpec] = {}

        def read(raw: msgspec.Raw) -> None:
            record = decode_quota(raw)
            if record is not None and record.spec is not None:
                found[record.namespace] = record.spec

        try:
            path = QUOTAS.path(self._namespace)
            is_read = self._attempt(f"list {PLURAL}.{GROUP}", lambda: bool(self._api.list(path, read)))
        except errors.NotFound:  # their kind is not installed
            return {}
        return grants(found) if is_read else None

    def evaluator(self, configuration: Configuration, now: datetime) -> Evaluator:
        labels = self.labels if configuration.policies.has_selectors else {}
        facts, index = self._reader.nodes(configuration)
        return Evaluator(
            engine=Engine(configuration),
            now=now,
            labels_of=lambda namespace: labels.get(namespace, ()),
            nodes=lambda: facts,
            named_nodes=lambda: index,
            claims=self.claims.get,
            quota_of=self._quota_of(configuration),
        )

    def _quota_of(self, configuration: Configuration) -> Callable[[str], NamespaceQuota | None]:
        if self.quotas is None:
            return lambda _namespace: None
        granted = grants(configuration.quotas) | self.quotas
        return lambda namespace: UnusedQuota(granted.get(namespace), configuration)
