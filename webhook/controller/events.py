"""Events on GPUQuotas, for what an administrator should read in `kubectl describe` and no condition says any more."""

import logging
from datetime import UTC, datetime

import msgspec

from policies.quota.spec import NAME
from webhook.cluster import errors
from webhook.cluster.api import ApiClient, api_path
from webhook.cluster.objects import CONTROLLER, timestamp
from webhook.quota.documents import GROUP, KIND, VERSION

log = logging.getLogger("gpu_admission.controller")


class QuotaEvents:
    """Writes events. One that cannot be written is logged: nothing depends on it."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    def warn(self, namespace: str, quota_uid: str, reason: str, message: str) -> None:
        now = timestamp(datetime.now(UTC))
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{NAME}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "namespace": namespace,
                "name": NAME,
                "uid": quota_uid,
            },
            "type": "Warning",
            "reason": reason,
            "message": message,
            "source": {"component": CONTROLLER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._api.post(api_path("/api/v1", "namespaces", namespace, "events"), msgspec.json.encode(event))
        except errors.ApiError as error:
            log.warning("%s: the event %s was not written: %s", namespace, reason, error)
