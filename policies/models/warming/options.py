"""What a policy says about fetching: images, servers and credentials of each source, resources of the init container."""

import re
from collections.abc import Iterator

import msgspec

from policies.gpus.vendors import NVIDIA_VISIBLE_DEVICES
from policies.models.warming.model_uri import SCHEMES, ModelURI
from policies.pods.names import cleaned_path, is_data_key, is_dns_subdomain, is_variable_name
from policies.pods.quantity import QuantityError, parse_quantity

SYSTEM_FOLDERS = frozenset({"dev", "proc", "sys"})

_ENDPOINT_VARIABLE = re.compile(
    r"AWS_ENDPOINT_URL\w*|HF_ENDPOINT|STORAGE_EMULATOR_HOST|API_ENDPOINT_OVERRIDE"
)
_HOST = r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?"
_ENDPOINT = re.compile(rf"https?://{_HOST}(/[a-z0-9._~/-]*)?", re.IGNORECASE)
_PLAIN_HTTP = re.compile("http:", re.IGNORECASE)

_SECRET_NAME = re.compile(r"token|secret|passw|credential|(access|account|api|private)_?key", re.IGNORECASE)
_PASSWORD_OF_URL = re.compile(r"://[^/@:]*:[^/@]+@")
_NO_SECRET = re.compile(r"[/$].*|.{0,7}", re.DOTALL)
"""Values that are paths, references to other variables, or too short: switches and numbers."""

_FIELDS = (
    ("image", "image", re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*").fullmatch, "image name", SCHEMES),
    (
        "endpoint",
        "endpoint",
        _ENDPOINT.fullmatch,
        "URL such as https://storage.example.com",
        ("s3", "gs", "hf"),
    ),
    ("credentials_secret", "credentialsSecret", is_dns_subdomain, "Secret name", ("s3", "gs", "hf", "https")),
    ("credentials_key", "credentialsKey", is_data_key, "key of a Secret", SCHEMES),
    (
        "hosts",
        "hosts",
        re.compile(_HOST, re.IGNORECASE).fullmatch,
        "host such as models.example.com",
        ("https",),
    ),
)
"""Of a source: the field, its name in documents, what is valid, what that is, and for which schemes it is."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How models of one source are fetched."""

    image: str | None = None
    """Any image that has `gpu-admission fetch-model`; None for that of the installation."""
    endpoint: str | None = None
    """The server of s3, gs or hf, where it is not the provider's own."""
    credentials_secret: str | None = None
    """A Secret in the pod's namespace. Its keys become variables, under the names that the source's client reads:
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, HF_TOKEN, MODEL_HTTP_AUTHORIZATION. For gs it holds a key file."""
    credentials_key: str = "key.json"
    """The key of that Secret which holds the key file of a Google service account (gs only)."""
    hosts: tuple[str, ...] = ()
    """The hosts that get the credentials of https, each with its port if the URI has one."""
    env: dict[str, str] = {}
    """Further variables, e.g. AWS_REGION, HTTPS_PROXY, MODEL_PARALLEL."""

    def secret_for(self, uri: ModelURI) -> str | None:
        """Return the Secret for one URI: over https its author names the host, so the policy must name it, too."""
        if uri.scheme == "https" and uri.host.lower() not in {host.lower() for host in self.hosts}:
            return None
        return self.credentials_secret

    def exposes_token(self, scheme: str) -> bool:
        """Whether anyone on the way to `endpoint` could read the token that clients of this source send."""
        return scheme in {"gs", "hf"} and _PLAIN_HTTP.match(self.endpoint or "") is not None

    def problems(self, scheme: str) -> Iterator[tuple[str, str]]:
        for field, name, is_valid, what, schemes in _FIELDS:
            given = getattr(self, field)
            for value in given if isinstance(given, tuple) else [given]:
                if value is not None and not is_valid(value):
                    yield name, f'"{value}" is not a valid {what}'
            if given and scheme not in schemes:
                yield name, f"has no effect on {scheme}; it is for {', '.join(schemes)}"
        if scheme == "https" and self.credentials_secret and not self.hosts:
            yield "hosts", "must name the hosts that get the credentials: the pod's author writes the URI"
        if self.credentials_secret and self.exposes_token(scheme):
            yield "endpoint", f'"{self.endpoint}" must begin with https://, as a token is sent there'
        yield from self._bad_variables()

    def plain_secrets(self) -> Iterator[str]:
        """Yield the names of variables that probably hold a secret themselves, and not the path of one."""
        for name, value in self.env.items():
            is_named_so = _SECRET_NAME.search(name) is not None and _NO_SECRET.fullmatch(value) is None
            if is_named_so or _PASSWORD_OF_URL.search(value):
                yield name

    def _bad_variables(self) -> Iterator[tuple[str, str]]:
        for name in self.env:
            if not is_variable_name(name):
                yield f"env[{name}]", "is not a valid variable name"
            elif name == NVIDIA_VISIBLE_DEVICES:
                yield f"env[{name}]", "is set by this rule itself"
            elif name == "MODEL_HTTP_AUTHORIZATION":
                yield (
                    f"env[{name}]",
                    "would be sent to any host; put it into credentialsSecret and name hosts",
                )
            elif _ENDPOINT_VARIABLE.fullmatch(name):
                yield f"env[{name}]", "is not read; set endpoint instead"


class Sources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    s3: SourceOptions = SourceOptions()
    gs: SourceOptions = SourceOptions()
    hf: SourceOptions = SourceOptions()
    https: SourceOptions = SourceOptions()
    pvc: SourceOptions = SourceOptions()

    def of(self, scheme: str) -> SourceOptions:
        source: SourceOptions = getattr(self, scheme)
        return source


class FetchResources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and requests of the init container alike. They do not add to the pod's: the larger of the two counts."""

    cpu: int | str = "1"
    memory: int | str = "1Gi"

    def problems(self) -> Iterator[tuple[str, str]]:
        found = (("cpu", too_little(self.cpu, "100m")), ("memory", too_little(self.memory, "256Mi")))
        yield from ((name, problem) for name, problem in found if problem)


def mount_path_problem(path: str) -> str | None:
    """Return why a model cannot be mounted there, None if it can."""
    folder = cleaned_path(path).split("/")[1]
    if not path.startswith("/") or not folder:
        return "is not an absolute path below /"
    if ".." in path.split("/") or ":" in path or not path.isprintable():
        return 'holds "..", ":" or a character that no mount path may hold'
    if folder in SYSTEM_FOLDERS:
        return f"is below /{folder}, which belongs to the system"
    return None


def too_little(text: int | str, least: str) -> str | None:
    try:
        quantity = parse_quantity(text)
    except QuantityError as error:
        return str(error)
    return f'"{text}" is less than {least}' if quantity < parse_quantity(least) else None
