"""What a policy says about warming: where models appear, and how each source is fetched. Every problem is told at once."""

import re
from collections.abc import Iterator

import msgspec

from policies.pods.quantity import QuantityError, parse_quantity
from policies.rule import RuleOptions

PYTHON = "docker.io/library/python:3.12.12-slim-bookworm"
STORAGE_CLIENTS = "docker.io/kserve/storage-initializer:v0.20.0"
"""Python 3.11 with boto3 1.38 and google-cloud-storage 2.19 (its uv.lock at that tag); its own program does not run."""

MIB = 2**20
LARGEST_USER = 2**31 - 1
SYSTEM_FOLDERS = frozenset({"dev", "proc", "sys"})

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_SET_BY_THE_RULE = frozenset({"MODEL_SOURCE", "MODEL_DESTINATION", "MODEL_CLAIM_MOUNT", "MODEL_CACHE_LIMIT"})


class _Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class SourceOptions(_Strict, frozen=True):
    """How models of one source are fetched."""

    image: str = PYTHON
    credentials_secret: str | None = None
    """A Secret in the pod's namespace. Its keys become variables, under the names that the source's client reads:
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, HF_TOKEN, MODEL_HTTP_AUTHORIZATION. For gs it holds a key file."""
    credentials_key: str = "key.json"
    """The key of that Secret which holds the key file of a Google service account (gs only)."""
    env: dict[str, str] = {}
    """Further variables, e.g. AWS_ENDPOINT_URL, HF_ENDPOINT, HTTPS_PROXY, MODEL_PARALLEL."""

    def problems(self) -> Iterator[tuple[str, str]]:
        if not _IMAGE.fullmatch(self.image):
            yield "image", f'"{self.image}" is not the name of an image'
        if self.credentials_secret is not None and not is_name(self.credentials_secret):
            yield "credentialsSecret", f'"{self.credentials_secret}" is not the name of a Secret'
        if not _KEY.fullmatch(self.credentials_key):
            yield "credentialsKey", f'"{self.credentials_key}" is not a key of a Secret'
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                yield f"env[{name}]", "is not the name of a variable"
            elif name in _SET_BY_THE_RULE:
                yield f"env[{name}]", "is set by this rule itself"


class StorageOptions(SourceOptions, frozen=True):
    """The same for the sources whose client libraries are needed."""

    image: str = STORAGE_CLIENTS


class Sources(_Strict, frozen=True):
    s3: StorageOptions = StorageOptions()
    gs: StorageOptions = StorageOptions()
    hf: SourceOptions = SourceOptions()
    https: SourceOptions = SourceOptions()
    pvc: SourceOptions = SourceOptions()

    def of(self, scheme: str) -> SourceOptions:
        return {"s3": self.s3, "gs": self.gs, "hf": self.hf, "https": self.https, "pvc": self.pvc}[scheme]


class FetchResources(_Strict, frozen=True):
    """Limits and requests of the init container alike. They do not add to the pod's: the larger of the two counts."""

    cpu: str = "1"
    memory: str = "1Gi"

    def problems(self) -> Iterator[tuple[str, str]]:
        for name, text, least in (("cpu", self.cpu, "100m"), ("memory", self.memory, "256Mi")):
            problem = too_little(text, least)
            if problem:
                yield name, problem


class Options(RuleOptions, frozen=True):
    mount_path: str = "/model-cache"
    sources: Sources = Sources()
    cache_size_limit: str = "200Gi"
    """Of the emptyDir; a claim has a size of its own."""
    resources: FetchResources = FetchResources()
    run_as_user: int | None = 65532
    """Of the init container, where the pod does not say; null leaves it to the image or the platform (OpenShift)."""

    def problems(self) -> Iterator[tuple[str, str]]:
        problem = mount_path_problem(self.mount_path)
        if problem:
            yield "mountPath", f'"{self.mount_path}" {problem}'
        for scheme in Sources.__struct_fields__:
            for field, sentence in self.sources.of(scheme).problems():
                yield f"sources.{scheme}.{field}", sentence
        if self.sources.pvc.credentials_secret is not None:
            yield "sources.pvc.credentialsSecret", "has no use: a claim is mounted, not logged in to"
        problem = too_little(self.cache_size_limit, "1Mi")
        if problem:
            yield "cacheSizeLimit", problem
        for field, sentence in self.resources.problems():
            yield f"resources.{field}", sentence
        if self.run_as_user is not None and not 1 <= self.run_as_user <= LARGEST_USER:
            yield (
                "runAsUser",
                f"{self.run_as_user} is not from 1 to {LARGEST_USER}; root is refused where pods are restricted",
            )


def is_name(text: str) -> bool:
    """Whether a Secret or a claim may be called so (RFC 1123 subdomain)."""
    return bool(_NAME.fullmatch(text))


def mount_path_problem(path: str) -> str | None:
    """Return why a model cannot be mounted there, None if it can."""
    parts = path.strip("/").split("/")
    if not path.startswith("/") or not parts[0]:
        return "is not an absolute path below /"
    if ".." in parts or ":" in path or not path.isprintable():
        return 'holds "..", ":" or a character that no mount path may hold'
    if parts[0] in SYSTEM_FOLDERS:
        return f"is below /{parts[0]}, which belongs to the system"
    return None


def too_little(text: str, least: str) -> str | None:
    try:
        quantity = parse_quantity(text)
    except QuantityError as error:
        return str(error)
    return f'"{text}" is less than {least}' if quantity < parse_quantity(least) else None
