"""ResourceClaimTemplates (DRA): the claims of one are made later, by a controller whose refusals its author does not see."""

import msgspec

from policies.finding import Finding
from policies.quota.amounts import Vector
from policies.quota.charge import Unpinned
from policies.quota.claims import decode_claim_template, template_findings
from webhook.configuration.loader import Configuration


def is_claim_template(group: str, kind: str) -> bool:
    return (group, kind) == ("resource.k8s.io", "ResourceClaimTemplate")


def findings(
    document: bytes | msgspec.Raw, hard: Vector, unpinned: Unpinned, configuration: Configuration
) -> tuple[Finding, ...]:
    """Return why no claim could ever be made from a template in JSON, in a namespace whose quota grants `hard`.

    A template that cannot be read is the API server's to refuse.
    """
    try:
        template = decode_claim_template(document)
    except msgspec.ValidationError:
        return ()
    return tuple(
        template_findings(
            template,
            hard,
            classes=configuration.classes,
            resource_mapping=configuration.resource_mapping,
            unpinned=unpinned,
        )
    )
