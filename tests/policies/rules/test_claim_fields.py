"""ineffective-fields on the ResourceClaims of a pod: what is no claim, and what no container uses."""

from policies.finding import Severity
from tests.builders import JSON, container, pod
from tests.cases import cases
from tests.policies.rules.fields import USING, findings

CLAIMS = [{"name": "gpu", "resourceClaimName": "gpu"}]


def test_a_claim_without_a_name() -> None:
    named = {"name": "gpu", "resourceClaimTemplateName": "gpu"}
    using = {"claims": [{"name": "gpu"}, {"name": "old"}]}
    document = pod(
        container(resources=using),
        resourceClaims=[named, {"name": "old", "source": {"resourceClaimName": "gpu"}}],
    )
    ((severity, said),) = findings(document)
    assert (severity, said) == (
        Severity.DENIAL,
        "spec.resourceClaims[1]: must have resourceClaimName or resourceClaimTemplateName, and not below source "
        "since Kubernetes 1.31",
    )


@cases(
    "document",
    a_container=pod(container(resources=USING), container("side"), resourceClaims=CLAIMS),
    one_request_of_it=pod(
        container(resources={"claims": [{"name": "gpu", "request": "small"}]}), resourceClaims=CLAIMS
    ),
    an_init_container=pod(
        container(), initContainers=[container("load", resources=USING)], resourceClaims=CLAIMS
    ),
)
def test_a_claim_that_a_container_uses(document: JSON) -> None:
    assert findings(document) == []


def test_a_claim_in_two_items() -> None:
    items = [{"name": each, "resourceClaimName": "gpu"} for each in ("gpu", "again")]
    document = pod(
        container(resources={"claims": [{"name": "gpu"}, {"name": "again"}]}), resourceClaims=items
    )

    assert findings(document) == [
        (
            Severity.WARNING,
            'spec.resourceClaims[1].resourceClaimName = "gpu": use the name of one item in all containers; must not be in '
            "two items: the scheduler cannot reserve a claim twice for a pod, which stays pending",
        )
    ]


@cases(
    ("containers", "choices"),
    one=([container()], "add {name: gpu} to spec.containers[0].resources.claims"),
    two=(
        [container(), container("side", resources={"claims": [{"name": "nic"}]})],
        "add {name: gpu} to spec.containers[0].resources.claims, or add {name: gpu} to spec.containers[1].resources.claims",
    ),
)
def test_a_claim_that_no_container_uses(containers: list[JSON], choices: str) -> None:
    assert findings(pod(*containers, resourceClaims=CLAIMS)) == [
        (
            Severity.WARNING,
            f'spec.resourceClaims[0].name = "gpu": {choices}; must be in resources.claims of a container: its devices '
            "are allocated, and no container gets them",
        )
    ]
