"""The init container that fetches a model, its volumes and its credentials; of an image, only the volume."""

from functools import cached_property

import msgspec
from msgspec.structs import replace

from policies.gpus.vendor import VOID
from policies.gpus.vendors import NVIDIA_VISIBLE_DEVICES
from policies.models.warming.model_uri import ModelURI
from policies.models.warming.options import SourceOptions
from policies.pods.pod import (
    Capabilities,
    Container,
    EmptyDir,
    EnvFromSource,
    EnvVar,
    ImageVolumeSource,
    PersistentVolumeClaimSource,
    Resources,
    SeccompProfile,
    SecretReference,
    SecretVolumeSource,
    SecurityContext,
    Volume,
    VolumeMount,
)

FETCH_CONTAINER = "gpu-admission-fetch-model"
CACHE_VOLUME = "gpu-admission-model"
SOURCE_VOLUME = "gpu-admission-model-source"
CREDENTIALS_VOLUME = "gpu-admission-model-credentials"

# Mount points inside the init container.
_CACHE_PATH = "/gpu-admission/models"
_SOURCE_PATH = "/gpu-admission/source"
_CREDENTIALS_PATH = "/gpu-admission/credentials"

_KEY_FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"
HF_TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable

_AWS_SECRET = "AWS_SECRET_ACCESS_KEY"  # noqa: S105 - likewise
_SECRET_VARIABLES = {
    "s3": (_AWS_SECRET,),
    "hf": (HF_TOKEN,),
    "models": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", _AWS_SECRET),
}
"""By scheme, the variables with a secret. Only a container that sets one has credentials in variables."""
_AWS_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
_FURTHER_VARIABLES = {"s3": _AWS_VARIABLES, "hf": (), "models": ("MLFLOW_TRACKING_USERNAME", *_AWS_VARIABLES)}
"""By scheme, what is copied beside them."""


class FetchCredentials(msgspec.Struct, frozen=True):
    """Credentials of the init container: variables, whole Secrets, and the mount of a key file."""

    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    mount: VolumeMount | None = None


class Warming(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One model to fetch, and its cache."""

    uri: ModelURI
    source: SourceOptions
    image: str
    claim: str | None
    """The claim of the cache. None: the cache is an emptyDir of `size_limit`."""
    size_limit: str
    resources: Resources | None
    run_as_user: int | None
    artifact_endpoints: tuple[str, ...] = ()
    """Of models, the servers of the stores where a registry may keep them: `s3=https://minio.example.com`."""
    exposes_key: bool = False
    """Of models, whether a store in gs is read over plain http. Then the fetcher gets no key file."""
    servers: tuple[Container, ...]
    """The pod's containers that serve the model. Their credentials are used if the policy names no Secret."""

    @property
    def is_fetched(self) -> bool:
        """Whether an init container copies it. False: the kubelet mounts it."""
        return self.uri.scheme != "oci"

    @property
    def volumes(self) -> tuple[Volume, ...]:
        if not self.is_fetched:
            image = ImageVolumeSource(reference=self.uri.text.removeprefix("oci://"))
            return (Volume(name=CACHE_VOLUME, image=image),)
        if self.claim:
            claim = PersistentVolumeClaimSource(claim_name=self.claim)
            volumes = [Volume(name=CACHE_VOLUME, persistent_volume_claim=claim)]
        else:
            volumes = [Volume(name=CACHE_VOLUME, empty_dir=EmptyDir(size_limit=self.size_limit))]
        if self.uri.scheme == "pvc":
            claim = PersistentVolumeClaimSource(claim_name=self.uri.host, read_only=True)
            volumes.append(Volume(name=SOURCE_VOLUME, persistent_volume_claim=claim))
        secret = self.source.secret_for(self.uri)
        if secret and self._key_file:
            volumes.append(Volume(name=CREDENTIALS_VOLUME, secret=SecretVolumeSource(secret_name=secret)))
        return tuple(volumes)

    @property
    def container(self) -> Container:
        return Container(
            name=FETCH_CONTAINER,
            image=self.image,
            command=("gpu-admission", "fetch-model"),
            args=self._args,
            env=self._env,
            env_from=self._credentials.env_from or None,
            resources=self.resources,
            volume_mounts=self._mounts,
            security_context=SecurityContext(
                allow_privilege_escalation=False,
                capabilities=Capabilities(drop=("ALL",)),
                read_only_root_filesystem=True,
                run_as_non_root=True,
                run_as_user=self.run_as_user,
                seccomp_profile=SeccompProfile(type="RuntimeDefault"),
            ),
        )

    def serving_mount(self, mount_path: str) -> VolumeMount:
        """Return the mount with the model's files directly below `mount_path`."""
        folder = self.uri.directory if self.is_fetched else None
        return VolumeMount(name=CACHE_VOLUME, mount_path=mount_path, sub_path=folder, read_only=True)

    @property
    def may_have_token(self) -> bool:
        """Whether the fetch has credentials for the source, or a Secret of a server may have them."""
        has_own = self.source.credentials_secret or HF_TOKEN in self.source.env
        return bool(has_own) or self._servers_credentials != FetchCredentials()

    @cached_property
    def _servers_credentials(self) -> FetchCredentials:
        """The credentials of the first server with credentials for the source.

        References are copied, never contents. The address of a server (AWS_ENDPOINT_URL, HF_ENDPOINT) is not copied.
        """
        scheme = self.uri.scheme
        credentials = (
            _server_credentials(scheme, server, exposes_key=self.exposes_key) for server in self.servers
        )
        return next(filter(None, credentials), FetchCredentials())

    @property
    def _key_file(self) -> str | None:
        """Return the key of the policy's Secret that Google's client reads as a file."""
        return None if self.exposes_key else self.source.key_file_for(self.uri.scheme)

    @cached_property
    def _credentials(self) -> FetchCredentials:
        """Credentials in the policy's Secret, or else of the servers, but never if the endpoint is plain http."""
        secret = self.source.secret_for(self.uri)
        if secret is None:
            is_exposed = self.source.exposes_token(self.uri.scheme)
            return FetchCredentials() if is_exposed else self._servers_credentials
        # Google's client reads a key file. The other clients read variables.
        variables = (EnvFromSource(secret_ref=SecretReference(name=secret)),)
        env_from = () if self.uri.scheme == "gs" else variables
        if self._key_file is None:
            return FetchCredentials(env_from=env_from)
        file = EnvVar(name=_KEY_FILE_VARIABLE, value=f"{_CREDENTIALS_PATH}/{self._key_file}")
        mount = VolumeMount(name=CREDENTIALS_VOLUME, mount_path=_CREDENTIALS_PATH, read_only=True)
        return FetchCredentials((file,), env_from, mount)

    @property
    def _args(self) -> tuple[str, ...]:
        args = [self.uri.text, f"{_CACHE_PATH}/{self.uri.directory}"]
        if self.source.endpoint:
            args.append(f"--endpoint={self.source.endpoint}")
        args += (f"--artifact-endpoint={endpoint}" for endpoint in self.artifact_endpoints)
        if self.uri.scheme == "pvc":
            args.append(f"--claim-mount={_SOURCE_PATH}")
        if self.claim is None:
            args.append(f"--size-limit={self.size_limit}")
        return tuple(args)

    @property
    def _env(self) -> tuple[EnvVar, ...]:
        # The init container requests no GPU, so it must not see one.
        void = EnvVar(name=NVIDIA_VISIBLE_DEVICES, value=VOID)
        own = (EnvVar(name=name, value=value) for name, value in sorted(self.source.env.items()))
        return tuple({env_var.name: env_var for env_var in (void, *self._credentials.env, *own)}.values())

    @property
    def _mounts(self) -> tuple[VolumeMount, ...]:
        mounts = [VolumeMount(name=CACHE_VOLUME, mount_path=_CACHE_PATH)]
        if self.uri.scheme == "pvc":
            mounts.append(VolumeMount(name=SOURCE_VOLUME, mount_path=_SOURCE_PATH, read_only=True))
        if self._credentials.mount:
            mounts.append(self._credentials.mount)
        return tuple(mounts)


def _server_credentials(scheme: str, server: Container, *, exposes_key: bool) -> FetchCredentials | None:
    """Return the credentials of a server for a source. None without any."""
    variables = _server_variables(scheme, server)
    key_file = _mounted_key_file(server) if scheme in {"gs", "models"} and not exposes_key else None
    if variables is None or key_file is None:
        return variables or key_file
    return replace(variables, env=(*variables.env, *key_file.env), mount=key_file.mount)


def _server_variables(scheme: str, server: Container) -> FetchCredentials | None:
    """Return the variables of a server with credentials, and the Secrets that may have them. None without any."""
    secret_names = _SECRET_VARIABLES.get(scheme, ())
    if not secret_names:
        return None
    names = (*secret_names, *_FURTHER_VARIABLES[scheme])
    # $(NAME) refers to other variables of the server.
    env = tuple(var for var in server.env or () if var.name in names and "$(" not in (var.value or ""))
    if any(env_var.name in secret_names for env_var in env):
        return FetchCredentials(env)
    # The content of Secrets is not known. The server may have its credentials from them.
    secrets = tuple(source for source in server.env_from or () if source.secret_ref)
    return FetchCredentials(env, secrets) if secrets else None


def _mounted_key_file(server: Container) -> FetchCredentials | None:
    """Return the key file that a server mounts, at the path of the init container. None without one."""
    path = next((var.value for var in server.env or () if var.name == _KEY_FILE_VARIABLE), None) or ""
    for mount in server.volume_mounts or ():
        folder = mount.mount_path.rstrip("/")
        if mount.sub_path_expr is None and (path == folder or path.startswith(f"{folder}/")):
            copy = replace(mount, mount_path=_CREDENTIALS_PATH, read_only=True)
            variable = EnvVar(name=_KEY_FILE_VARIABLE, value=_CREDENTIALS_PATH + path.removeprefix(folder))
            return FetchCredentials((variable,), mount=copy)
    return None
