"""Options of a policy for fetching models: image, server and credentials of each source, resources of the init container."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from policies.gpus.vendors import NVIDIA_VISIBLE_DEVICES
from policies.models.warming.model_uri import FETCHED, WITH_DIGEST, ModelURI
from policies.pods.names import cleaned_path, is_data_key, is_dns_subdomain, is_variable_name
from policies.pods.quantity import QuantityError, parse_quantity

SYSTEM_FOLDERS = frozenset({"dev", "proc", "sys"})

_ENDPOINT_VARIABLE = re.compile(
    r"AWS_ENDPOINT_URL\w*|HF_ENDPOINT|STORAGE_EMULATOR_HOST|API_ENDPOINT_OVERRIDE|MLFLOW_(TRACKING|REGISTRY)_URI"
)
_HOST = r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
_ENDPOINT = re.compile(rf"https?://{_HOST}(/[a-z0-9._~/-]*)?", re.IGNORECASE)
_PLAIN_HTTP = re.compile("http:", re.IGNORECASE)

_SENSITIVE_VARIABLE = re.compile(
    r"token|secret|passw|credential|(access|account|api|private)_?key", re.IGNORECASE
)
_PASSWORD_OF_URL = re.compile(r"://[^/@:]*:[^/@]+@")
_HARMLESS_VALUE = re.compile(r"[/$].*|.{0,7}", re.DOTALL)
"""Values that cannot be secrets: paths, references to other variables, and short values such as switches and numbers."""

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_HOST_PATTERN = re.compile(_HOST, re.IGNORECASE)
_SCHEMES_WITH_SECRET = ("s3", "gs", "hf", "https", "models")
KEY_FILE = "key.json"
_URL = "URL such as https://storage.example.com"


class _Field(NamedTuple):
    attribute: str
    name: str
    is_valid: Callable[[str], object]
    noun: str
    schemes: tuple[str, ...]


def _is_anything(_value: object) -> bool:
    return True


_OPTION_FIELDS = (
    _Field("image", "image", _IMAGE.fullmatch, "image name", FETCHED),
    _Field("endpoint", "endpoint", _ENDPOINT.fullmatch, _URL, ("s3", "gs", "hf", "models")),
    _Field("credentials_secret", "credentialsSecret", is_dns_subdomain, "Secret name", _SCHEMES_WITH_SECRET),
    _Field("credentials_key", "credentialsKey", is_data_key, "key of a Secret", ("gs", "models")),
    _Field("hosts", "hosts", _HOST_PATTERN.fullmatch, "host such as models.example.com", ("https",)),
    _Field("env", "env", _is_anything, "", FETCHED),
    _Field("require_digest", "requireDigest", _is_anything, "", WITH_DIGEST),
    _Field("image_volumes", "imageVolumes", _is_anything, "", ("oci",)),
)
_RESERVED = {
    NVIDIA_VISIBLE_DEVICES: "is set by this rule itself",
    "MODEL_HTTP_AUTHORIZATION": "would be sent to any host; put it into credentialsSecret and name hosts",
}
"""Variables that a source must not set."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    image: str | None = None
    """Any image that has `gpu-admission fetch-model`. None: the image of the installation."""
    endpoint: str | None = None
    """The server of s3, gs or hf; None: the provider's own. For scheme `models:`: the MLflow server."""
    credentials_secret: str | None = None
    """A Secret in the pod's namespace. Its keys become variables with the names that the source's client reads:
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, HF_TOKEN, MODEL_HTTP_AUTHORIZATION, MLFLOW_TRACKING_TOKEN, or
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. For gs, it has a key file."""
    credentials_key: str | None = None
    """The key of that Secret with the key file of a Google service account: of gs (None: KEY_FILE), and of models in gs."""
    hosts: tuple[str, ...] = ()
    """The hosts that get the credentials of https, each with its port if the URI has one."""
    env: dict[str, str] = {}
    """Further variables, e.g. AWS_REGION, HTTPS_PROXY, MODEL_PARALLEL."""
    require_digest: bool = False
    """Deny URIs without a SHA-256 (https, models and oci only)."""
    image_volumes: bool = False
    """Whether all nodes mount images as volumes (oci only). False: mount only where all nodes of the pod are known to."""

    def secret_for(self, uri: ModelURI) -> str | None:
        """Return the Secret for one URI. The author of an https URI names the host, so the policy must name it, too."""
        if uri.scheme == "https" and uri.host.lower() not in {host.lower() for host in self.hosts}:
            return None
        return self.credentials_secret

    def key_file_for(self, scheme: str) -> str | None:
        """Return the key of the Secret that has the key file of Google's client. None if that is not needed."""
        return self.credentials_key or (KEY_FILE if scheme == "gs" else None)

    def exposes_token(self, scheme: str) -> bool:
        """Whether clients of this source would send a token over plain http."""
        return scheme in {"gs", "hf", "models"} and _PLAIN_HTTP.match(self.endpoint or "") is not None

    def problems(self, scheme: str) -> Iterator[tuple[str, str]]:
        for field, name, is_valid, noun, schemes in _OPTION_FIELDS:
            option = getattr(self, field)
            for value in option if isinstance(option, tuple) else [option]:
                if value is not None and not is_valid(value):
                    yield name, f'"{value}" is not a valid {noun}'
            if option and scheme not in schemes:
                yield name, f"has no effect on {scheme}; it is for {', '.join(schemes)}"
        if scheme == "https" and self.credentials_secret and not self.hosts:
            yield "hosts", "must name the hosts that get the credentials: the pod's author writes the URI"
        if self.credentials_secret and self.exposes_token(scheme):
            yield "endpoint", f'"{self.endpoint}" must begin with https://, as a token is sent there'
        yield from self._variable_problems()

    def _variable_problems(self) -> Iterator[tuple[str, str]]:
        for name in self.env:
            if not is_variable_name(name):
                yield f"env[{name}]", "is not a valid variable name"
            elif name in _RESERVED:
                yield f"env[{name}]", _RESERVED[name]
            elif _ENDPOINT_VARIABLE.fullmatch(name):
                yield f"env[{name}]", "is not read; set endpoint instead"

    def plain_secrets(self) -> Iterator[str]:
        """Yield the names of variables whose value is probably a secret."""
        for name, value in self.env.items():
            is_named_so = (
                _SENSITIVE_VARIABLE.search(name) is not None and _HARMLESS_VALUE.fullmatch(value) is None
            )
            if is_named_so or _PASSWORD_OF_URL.search(value):
                yield name


class Sources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    s3: SourceOptions = SourceOptions()
    gs: SourceOptions = SourceOptions()
    hf: SourceOptions = SourceOptions()
    https: SourceOptions = SourceOptions()
    pvc: SourceOptions = SourceOptions()
    models: SourceOptions = SourceOptions()
    oci: SourceOptions = SourceOptions()

    def of(self, scheme: str) -> SourceOptions:
        source: SourceOptions = getattr(self, scheme)
        return source


class FetchResources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and requests of the init container. Of these and the sum of the app containers, Kubernetes counts the larger."""

    cpu: int | str = "1"
    memory: int | str = "1Gi"

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, value, least in (("cpu", self.cpu, "100m"), ("memory", self.memory, "256Mi")):
            if problem := minimum_problem(value, least):
                yield name, problem


def mount_path_problem(path: str) -> str | None:
    """Return the reason why a model cannot be mounted there, or None."""
    folder = cleaned_path(path).split("/")[1]
    if not path.startswith("/") or not folder:
        return "is not an absolute path below /"
    if ".." in path.split("/") or ":" in path or not path.isprintable():
        return 'holds "..", ":" or a character that no mount path may hold'
    if folder in SYSTEM_FOLDERS:
        return f"is below /{folder}, which belongs to the system"
    return None


def minimum_problem(text: int | str, least: str) -> str | None:
    try:
        quantity = parse_quantity(text)
    except QuantityError as error:
        return str(error)
    return f'"{text}" is less than {least}' if quantity < parse_quantity(least) else None
