"""Prometheus metrics of the configuration in force, read at every scrape. Names of policies are the administrator's."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from policies.policy import still_paused
from webhook.configuration.source import Source


class ConfigurationCollector(Collector):
    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name nothing ahead: collecting is cheap, but the registry shall not do it while we are being made."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        state, unconfirmed = self._source.state, self._source.unconfirmed_seconds
        yield GaugeMetricFamily(
            "gpu_admission_config_loaded_timestamp_seconds",
            "When the configuration in force was loaded.",
            value=state.loaded_at,
        )
        yield GaugeMetricFamily(
            "gpu_admission_config_valid",
            "1 if the newest configuration is in force, 0 if it was refused or could not be read, and another one is.",
            value=float(state.read and not state.refused),
        )
        info = GaugeMetricFamily(
            "gpu_admission_config_info", "Version of the configuration in force.", labels=["version", "from"]
        )
        info.add_metric([state.version, self._source.origin if state.read else "built-in"], 1)
        yield info
        if unconfirmed is not None:
            yield GaugeMetricFamily(
                "gpu_admission_config_unconfirmed_seconds",
                "Since the API server was last heard about its documents; up to a minute is normal.",
                value=unconfirmed,
            )
        yield from self._pauses(datetime.now(UTC))

    def _pauses(self, now: datetime) -> Iterator[GaugeMetricFamily]:
        until = GaugeMetricFamily(
            "gpu_admission_policy_paused_until_timestamp_seconds",
            "When the pause of a policy ends; there only while it is paused.",
            labels=["policy"],
        )
        policies = self._source.configuration.policies.policies
        ends = {p.name: at.timestamp() for p in policies if (at := still_paused(p.spec.paused_until, now))}
        for name, end in ends.items():
            until.add_metric([name], end)
        yield GaugeMetricFamily("gpu_admission_policies_paused", "Policies that are paused.", value=len(ends))
        yield until
