"""The credentials of a pod's servers. The fetcher gets them if the policy names no Secret.

References are copied, never contents. Variables with the address of a server (AWS_ENDPOINT_URL, HF_ENDPOINT) are not copied.
"""

import msgspec
from msgspec.structs import replace

from policies.pods.pod import Container, EnvFromSource, EnvVar, VolumeMount

KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
HF_TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable

# The variables of each source. Without the first, the others are not credentials.
_AWS = ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
_VARIABLES = {"s3": _AWS, "hf": (HF_TOKEN,)}


class ServerCredentials(msgspec.Struct, frozen=True):
    """Variables, whole Secrets, and the mount of a key file."""

    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    mount: VolumeMount | None = None


def server_credentials(scheme: str, servers: list[Container], mount_path: str) -> ServerCredentials:
    """Return the credentials of the first server that has some for the source. A key file is mounted at `mount_path`."""
    for server in servers:
        found = _key_file(server, mount_path) if scheme == "gs" else _variables(scheme, server)
        if found:
            return found
    return ServerCredentials()


def _variables(scheme: str, server: Container) -> ServerCredentials | None:
    names = _VARIABLES.get(scheme, ())
    # $(NAME) refers to other variables of the server.
    env = tuple(each for each in server.env or () if each.name in names and "$(" not in (each.value or ""))
    if names and names[0] in {each.name for each in env}:
        return ServerCredentials(env)
    # The content of Secrets is not known. The server may have its credentials from them.
    secrets = tuple(each for each in server.env_from or () if each.secret_ref) if names else ()
    return ServerCredentials(env, secrets) if secrets else None


def _key_file(server: Container, mount_path: str) -> ServerCredentials | None:
    path = next((each.value for each in server.env or () if each.name == KEY_FILE), None) or ""
    for mount in server.volume_mounts or ():
        folder = mount.mount_path.rstrip("/")
        if mount.sub_path_expr is None and (path == folder or path.startswith(f"{folder}/")):
            copy = replace(mount, mount_path=mount_path, read_only=True)
            variable = EnvVar(name=KEY_FILE, value=mount_path + path.removeprefix(folder))
            return ServerCredentials((variable,), mount=copy)
    return None
