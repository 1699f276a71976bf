"""Informers for the parts of a controller that are tested alone: nothing is listed, and nothing starts."""

from types import SimpleNamespace
from typing import Any

from webhook.configuration.loader import load_directory
from webhook.controller.observed_ledgers import ObservedLedgers
from webhook.controller.shared_informers import SharedInformers


def unstarted(observed: ObservedLedgers | None = None) -> SharedInformers:
    """Return informers of an API server that is never called, and does not serve ResourceClaims."""
    api: Any = SimpleNamespace(served_version=lambda *_: None)
    return SharedInformers(api, load_directory(None), "default", observed or ObservedLedgers(), lambda: 0)
