"""How a command ends that cannot use a cluster, documents or Prometheus: a line on each problem, and exit code 2."""

from webhook.cluster.errors import ApiError
from webhook.commands.output import fail, fail_with
from webhook.configuration.loader import ConfigurationError
from webhook.prometheus.client import PrometheusError


def exit_if_expected(error: Exception) -> None:
    """End the process if the error is one of these."""
    if isinstance(error, ConfigurationError):
        fail_with(error.problems, "; nothing was done")
    if isinstance(error, ApiError | PrometheusError):
        fail(error)
