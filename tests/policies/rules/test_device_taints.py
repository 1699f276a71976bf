"""gpu-toleration: claims that only tainted devices can serve, and the pods that name them."""

from typing import Any

import msgspec

from policies.gpus.claimed_devices import decode_claim
from policies.gpus.device_slices import type_key
from policies.gpus.device_types import DeviceTypeTaints
from policies.pods.patch import PodPatch
from policies.pods.pod import Toleration
from policies.rules.gpu_toleration import GPUTolerationOptions, check_claim, mutate
from tests.builders import JSON, container, context, pod, view
from tests.cases import cases
from tests.policies.quota.claims import GPU, H100, claim, devices, exactly
from tests.policies.quota.known_device_types import CATALOGUE, KINDS, product, selected

SICK = Toleration(key="example.com/sick", effect="NoExecute")
TEAM = Toleration(key="example.com/team", value="ml", effect="NoSchedule")
TOLERATES_SICK: JSON = {"tolerations": [{"key": "example.com/sick", "operator": "Exists"}]}


def tainted(**kinds: tuple[Toleration, ...]) -> DeviceTypeTaints:
    """Return the taints of kinds by their index: `k0`."""
    return {type_key(KINDS[int(name[1:])]): taints for name, taints in kinds.items()}


REQUEST = "spec.devices.requests[0]"
OF_SICK = "{key: example.com/sick, operator: Exists, effect: NoExecute}"
OF_TEAM = "{key: example.com/team, operator: Equal, value: ml, effect: NoSchedule}"
MUST = "each device for it has a taint that it does not tolerate, such as {}, so its pods stay pending"
SENTENCE = f"{REQUEST}.exactly.tolerations: add {OF_SICK} if pods may use them; {MUST.format('example.com/sick:NoExecute')}"
H100S = tainted(k0=(SICK,), k1=(SICK,))


@cases(
    ("request_", "taints", "want"),
    no_device_is_tainted=(exactly(H100), {}, []),
    all_are=(exactly(H100), H100S, [SENTENCE]),
    all_that_it_selects=({"exactly": selected(GPU, product("H100"))}, H100S, [SENTENCE]),
    others_can_serve_it=(exactly(GPU), H100S, []),
    a_slice_is_not_tainted=(exactly(H100), tainted(k0=(SICK,)), []),
    it_tolerates_them=(exactly(H100, **TOLERATES_SICK), H100S, []),
    it_tolerates_one_of_two=(
        exactly(H100, **TOLERATES_SICK), tainted(k0=(SICK, TEAM), k1=(SICK, TEAM)),
        [f"{REQUEST}.exactly.tolerations: add {OF_TEAM} if pods may use them; {MUST.format('example.com/team=ml:NoSchedule')}"],
    ),
    each_kind_has_its_own=(
        exactly(H100), tainted(k0=(SICK,), k1=(TEAM,)),
        [SENTENCE.replace(OF_SICK, f"{OF_SICK} and {OF_TEAM}")],
    ),
    no_alternative_is_free=(
        {"firstAvailable": [devices(H100), devices(GPU, selectors=[{"cel": {"expression": product("H100")}}])]}, H100S,
        [SENTENCE.replace("exactly", "firstAvailable[0]")],
    ),
    an_alternative_is=({"firstAvailable": [devices(H100), devices(GPU)]}, H100S, []),
    no_device_exists=(exactly("empty.example.com"), H100S, []),
    a_request_of_v1beta1=(devices(H100), H100S, [SENTENCE.replace(".exactly", "")]),
)  # fmt: skip
def test_requests_of_claims(request_: JSON, taints: DeviceTypeTaints, want: list[str]) -> None:
    spec = decode_claim(msgspec.json.encode(claim(request_))).spec
    given = context(
        classes=CATALOGUE.classes, resource_mapping=CATALOGUE.resource_mapping, device_taints=taints
    )

    found = list(check_claim(spec, "spec", GPUTolerationOptions(), given))

    assert [each.sentence() for each in found] == want


def naming(**claim: Any) -> JSON:
    return pod(container(resources={"claims": [{"name": "gpu"}]}), resourceClaims=[{"name": "gpu", **claim}])


POD = "spec.resourceClaims[0]: name a {} whose requests have tolerations {} if the pod may use them; each device for it has a "
POD += "taint that it does not tolerate, such as example.com/sick:NoExecute, so the pod stays pending"
TEMPLATE: JSON = {"resourceClaimTemplateName": "one"}


@cases(
    ("document", "taints", "want"),
    of_a_template=(naming(**TEMPLATE), (SICK,), [POD.format("ResourceClaimTemplate", OF_SICK)]),
    a_claim=(naming(resourceClaimName="one"), (SICK,), [POD.format("ResourceClaim", OF_SICK)]),
    on_its_node=(naming(**TEMPLATE) | {"spec": naming(**TEMPLATE)["spec"] | {"nodeName": "n"}}, (SICK,), []),
    others_can_serve_it=(naming(**TEMPLATE), (), []),
)  # fmt: skip
def test_pods_that_name_claims(document: JSON, taints: tuple[Toleration, ...], want: list[str]) -> None:
    given = context(claim_taints={"gpu": taints} if taints else {})

    assert [
        each.sentence() for each in mutate(PodPatch(view(document)), GPUTolerationOptions(), given)
    ] == want
