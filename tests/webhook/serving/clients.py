"""Clients of the web application."""

from collections.abc import Callable

from tests.webhook.app_client import AppClient
from webhook.configuration.loader import load_directory
from webhook.evaluation.decision_cache import DecisionCache
from webhook.serving.audit import Recorder
from webhook.serving.dispatch import Admission
from webhook.serving.endpoints import create_app
from webhook.serving.metrics import Metrics


def client_of(
    metrics: Metrics,
    kind: type[Admission] = Admission,
    readiness: Callable[[], tuple[bool, dict[str, object]]] = lambda: (True, {}),
) -> AppClient:
    cache = DecisionCache(load_directory(None))
    return AppClient(create_app(kind(lambda: cache, Recorder(metrics)), metrics, readiness))
