"""The alert rules of the chart, and their thresholds."""

import yaml

from tests.deploy.manifests import CHART

RULES = CHART / "files" / "alerts.yaml"
THRESHOLDS = yaml.safe_load((CHART / "values.yaml").read_text())["monitoring"]["prometheusRule"]["thresholds"]
