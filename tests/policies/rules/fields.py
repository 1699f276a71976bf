"""What ineffective-fields finds in a pod."""

from policies.finding import Severity
from policies.rules.ineffective_fields import RULE, check
from tests.builders import JSON, context, view
from webhook.configuration.loader import load_objects

BUILT_IN = load_objects([]).resource_mapping
OPTIONS = RULE.options()
USING = {"claims": [{"name": "gpu"}]}
"""Resources of a container that uses claim gpu."""


def findings(document: JSON) -> list[tuple[Severity, str]]:
    found = check(
        view(document), OPTIONS, context(resource_mapping=BUILT_IN, options_of=lambda _rule: OPTIONS)
    )
    return [(finding.severity, finding.sentence()) for finding in found]
