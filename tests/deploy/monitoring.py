"""The alert rules of the chart, and their thresholds."""

from tests.deploy.manifests import CHART
from tests.yaml_files import load_yaml

RULES = CHART / "files" / "alerts.yaml"
THRESHOLDS = load_yaml(CHART / "values.yaml")["monitoring"]["prometheusRule"]["thresholds"]
