"""A hub of JupyterHub that starts one server by KubeSpawner, as its User.spawn does: `hub.py NAMESPACE SECONDS`.

Writes the server's address. What has not started within so many seconds is stopped, and the exit status is 1.
"""

import asyncio
import sys

from jupyterhub.objects import Hub, Server
from kubespawner import KubeSpawner


class User:
    def __init__(self) -> None:
        self.id, self.name, self.url = 1, "ada", "/user/ada/"
        self.server = Server()
        self.settings: dict[str, object] = {}


async def main(namespace: str, seconds: int) -> None:
    spawner = KubeSpawner(
        user=User(),
        hub=Hub(),
        api_token="unused",
        oauth_client_id="unused",
        _mock=True,
        namespace=namespace,
        start_timeout=seconds,
        extra_resource_limits={"nvidia.com/gpu": "1"},
    )
    try:
        sys.stdout.write(await asyncio.wait_for(spawner.start(), timeout=seconds))
    except Exception as error:  # noqa: BLE001 - as the hub
        await spawner.stop(now=True)
        sys.exit(f"{type(error).__name__}: {error}")


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
