"""What is spent of the budgets of deleted GPUQuotas: a ConfigMap, one key for each namespace.

A controller notes it before it deletes a ledger. When the namespace gets a budget again, the sum goes on from there. So nobody
gains anything by deleting a quota.
"""

import logging

import msgspec
from msgspec.structs import replace

from policies.quota.budget import Spending
from webhook.cluster import errors
from webhook.cluster.api import MERGE_PATCH, ApiClient, api_path
from webhook.cluster.objects import BUDGETS, decode_config_map

log = logging.getLogger("gpu_admission.quota")

ATTEMPTS = 5
_SECONDS = 5.0

_SPENDING = msgspec.json.Decoder(Spending)


class BudgetNotes:
    """The ConfigMap of one installation. Thread-safe."""

    def __init__(self, api: ApiClient, namespace: str) -> None:
        self._api = api
        self._path = api_path("/api/v1", "namespaces", namespace, "configmaps", BUDGETS)

    def get(self, namespace: str) -> Spending | None:
        """Return the note about a namespace, or None. Raises `errors.ApiError` if another attempt may succeed."""
        try:
            return _read(self._data()[1].get(namespace, ""))
        except (errors.NotFound, errors.Forbidden) as error:
            log.warning("%s: whether its budget was spent before cannot be read: %s", namespace, error)
            return None

    def put(self, namespace: str, spending: Spending) -> None:
        """Note it unless later counts are noted, and remove the notes of ended periods. Raises as `get` does.

        If it cannot be noted, it is lost: else a quota could not be deleted.
        """
        for _ in range(ATTEMPTS):
            try:
                version, data = self._data()
                noted = _read(data.get(namespace, ""))
                if noted is not None and noted.until >= spending.until:
                    return
                changes: dict[str, str | None] = {
                    key: None for key, text in data.items() if _has_ended(text, spending.until)
                }
                changes[namespace] = msgspec.json.encode(_without_zeros(spending)).decode()
                body = msgspec.json.encode({"metadata": {"resourceVersion": version}, "data": changes})
                self._api.patch(self._path, body, content_type=MERGE_PATCH, timeout=_SECONDS)
            except errors.Conflict:
                continue
            except (errors.Unreachable, errors.Unavailable):
                raise
            except errors.ApiError as error:
                log.error("%s: what is spent of its budget is lost: %s", namespace, error)  # noqa: TRY400
            return
        raise errors.Conflict(f"others kept writing to {BUDGETS}")

    def _data(self) -> tuple[str, dict[str, str]]:
        try:
            config_map = decode_config_map(self._api.get(self._path, timeout=_SECONDS))
        except msgspec.MsgspecError as error:
            raise errors.ApiError(f"the ConfigMap {BUDGETS} cannot be read: {error}") from None
        return config_map.metadata.resource_version, config_map.data or {}


def _read(text: str) -> Spending | None:
    try:
        return _SPENDING.decode(text)
    except msgspec.MsgspecError:
        return None


def _without_zeros(spending: Spending) -> Spending:
    """Return a shorter note: a ConfigMap takes 1 MiB."""
    return replace(
        spending,
        spent={key: amount for key, amount in spending.spent.items() if amount},
        unknown={key: amount for key, amount in spending.unknown.items() if amount},
    )


def _has_ended(text: str, now: int) -> bool:
    noted = _read(text)
    return noted is None or noted.end <= now
