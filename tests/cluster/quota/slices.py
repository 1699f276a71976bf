"""ResourceSlices in a control plane, as a DRA driver writes them."""

from tests.builders import JSON
from tests.controlplane import CLAIMS_API, accepted
from tests.controlplane.client import Client

SLICES = f"{CLAIMS_API}/resourceslices"


def put_slices(client: Client, slices: list[JSON]) -> None:
    for each in slices:
        path = f"{SLICES}/{each['metadata']['name']}"
        status, stored = client.get(path)
        if status == 200:
            version = stored["metadata"]["resourceVersion"]
            accepted(client.put(path, {**each, "metadata": {**each["metadata"], "resourceVersion": version}}))
        else:
            accepted(client.post(SLICES, each))
