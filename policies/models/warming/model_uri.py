"""Model URIs: the sources, validation, and the form without secrets.

====================================  =====================================================================
`s3://bucket/prefix`                  every object below the prefix, or the one object of that name
`gs://bucket/prefix`                  likewise
`hf://owner/name[@revision]`          a model repository of the Hugging Face hub
`https://host/file[#sha256=…]`        one file, not unpacked
`pvc://claim/path`                    a folder or file of a PersistentVolumeClaim in the pod's namespace
`models:/name/version[#sha256=…]`     a version of a model in the MLflow registry of the policy; also `models:/name@alias`, and
                                      `models:/name/stage`
`oci://registry/name[:tag][@sha256:…]`  an image, which the kubelet mounts: nothing is fetched
====================================  =====================================================================
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping

import msgspec

from policies.pods.annotations import MODEL_URI, BadAnnotation
from policies.pods.names import is_dns_subdomain

MAX_LENGTH = 2048
FETCHED = ("s3", "gs", "hf", "https", "pvc", "models")
SCHEMES = (*FETCHED, "oci")
WITH_DIGEST = ("https", "models", "oci")
"""The schemes whose URIs may have a digest."""
_HF_EXAMPLE = "hf://owner/name"
_FORMS = (
    "s3://bucket/prefix, gs://bucket/prefix, hf://owner/name, https://host/file, pvc://claim/path, models:/name/version or "
    "oci://registry.example.com/name:tag"
)

# No spaces or control characters; no `$`, because Kubernetes expands $(NAME) in the values of variables.
_URI_CHARACTERS = re.compile(r"[A-Za-z0-9!#%&'()*+,./:;=?@\[\]_~-]+")
_HOST: dict[str, Callable[[str], object]] = {
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}").fullmatch,
    "gs": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,221}").fullmatch,
    "hf": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*").fullmatch,
    "https": re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?").fullmatch,
    "pvc": is_dns_subdomain,
    # Runtimes take a first part without a dot or a port for a name of Docker Hub.
    "oci": re.compile(r"localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(\.[A-Za-z0-9-]+|:[0-9]{1,5})").fullmatch,
}
_HOST_NOUN = {
    "s3": ("bucket", " (3 to 63 letters, digits, . _ and -)"),
    "gs": ("bucket", " (3 to 222 letters, digits, . _ and -)"),
    "hf": ("owner", ""),
    "https": ("host", ""),
    "pvc": ("claim", ""),
    "oci": ("registry", ""),
}
"""By scheme, the noun of the host, and the characters that it may have."""
_ALLOWED_MARKS = {"https": "?#", "models": "#"}
"""By scheme, the marks that may follow the path: of a query, of a fragment."""
_USER = re.compile(
    r"""
    [^/?#]*@  # user@host, user:password@host
    | (?!\[ | [^/?#:]*:[0-9]{1,5}([/?#]|$))  # neither [::1]/path@v nor host:443/path@v
      [^/?\#:]*:.*@  # user:pass/word@host: the password may have a slash, as AWS keys do
    """,
    re.VERBOSE,
)
"""A user, or user:password, before the host."""
_NAME_AND_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._/-]*)?")
_REGISTERED = re.compile(
    r"""
    (?P<name>[^:/@]+)
    (?: @(?P<alias>[A-Za-z0-9_-]{1,255})
      | /(?P<version>[1-9][0-9]{0,9})
      | /(?P<stage>none|staging|production|archived)
      | /latest )
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""A model of MLflow's registry, and one of its versions, as MLflow reads it (`mlflow/store/artifact/utils/models.py`, 3.17)."""
_IMAGE_PART = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"{_IMAGE_PART}(/{_IMAGE_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?"
)
"""What follows the registry in a reference: name, tag and digest (OCI distribution-spec 1.1, "Pulling manifests")."""
_GATED = re.compile(r"meta-llama/|google/(code)?gemma-(2b|7b|1\.1|2|3n?)\b")
"""Models of the hub that need a token: all of Meta's, and Gemma 1 to 3n. Other models are gated, too, but any owner can change
that. These have been gated since their first release (huggingface.co/docs/hub/models-gated: "Gated model")."""
_CHECKSUM = re.compile(r"sha256=[0-9A-Fa-f]{64}")
_SECRET_PARAMETER = re.compile(r"sig|token|secret|passw|credential|key|auth", re.IGNORECASE)


class ModelURI(msgspec.Struct, frozen=True, kw_only=True):
    """A valid URI. `text` is for the fetcher only, an init container. `redacted` is for people and logs.

    host: a bucket (s3, gs), an owner (hf), a host with its port (https), a claim (pvc), a model (models), a registry (oci).
    """

    scheme: str
    host: str
    text: str
    redacted: str

    @property
    def path(self) -> str:
        """The path below the host, without query and fragment."""
        return self.redacted.partition("://")[2].partition("/")[2]

    @property
    def query(self) -> str:
        return self.text.partition("#")[0].partition("?")[2]

    @property
    def digest(self) -> str:
        """The SHA-256 that the model must have, in hexadecimal digits; "" if none is given."""
        return self.text.partition("@sha256:" if self.scheme == "oci" else "#sha256=")[2].lower()

    @property
    def registered(self) -> Mapping[str, str | None]:
        """Of models: the `name`, and its `version`, `alias` or `stage`; the others are None, all for the newest version."""
        match = _REGISTERED.fullmatch(self.redacted.removeprefix("models:/"))
        return match.groupdict() if match and self.scheme == "models" else {}

    @property
    def is_mutable(self) -> bool:
        """Whether it names an alias, a stage or `latest`, which may be another version of the model later."""
        return self.registered.get("version", "") is None

    def at_version(self, version: str) -> str:
        """Return the URI of this version of the model, with the digest of this URI."""
        return f"models:/{self.host}/{version}{f'#sha256={self.digest}' if self.digest else ''}"

    @property
    def needs_token(self) -> bool:
        """Whether the model is known to need a token."""
        return self.scheme == "hf" and _GATED.match(f"{self.host}/{self.path}") is not None

    @property
    def directory(self) -> str:
        """The folder in a cache for this URI only, readable and of bounded length."""
        _, _, rest = _split(self.redacted)
        last = rest if self.scheme == "models" else rest.rstrip("/").rpartition("/")[2]
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", last).strip("-.")[:40]
        return f"{name or 'model'}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


def redacted(text: str) -> str:
    """Return any text without user, password, query and fragment."""
    scheme, separator, rest = _split(text)
    if not separator:
        scheme, rest = "", text
    plain = scheme + separator + re.split("[?#]", rest[_userinfo_length(scheme, rest) :], maxsplit=1)[0]
    printable = "".join(character if character.isprintable() else "�" for character in plain)
    return printable if len(printable) <= MAX_LENGTH else printable[:MAX_LENGTH] + "…"


def parse_model_uri(text: str) -> ModelURI | BadAnnotation:
    """Return the URI, or its first problem. The value of the problem has no secrets."""
    problem = next(_problems(text), None)
    if problem is not None:
        meant = _corrected(text)
        if is_uri(meant):
            return BadAnnotation(MODEL_URI, redacted(text), *problem, meant=meant)
        of_hub = f"hf://{text}"
        if text.count("/") == 1 and is_uri(of_hub):
            message, remedy = problem
            return BadAnnotation(
                MODEL_URI, redacted(text), message, remedy.replace(_HF_EXAMPLE, of_hub), example=of_hub
            )
        return BadAnnotation(MODEL_URI, redacted(text), *problem, example=_HF_EXAMPLE)
    scheme, _, rest = _split(text)
    end = "[/?#@]" if scheme == "models" else "[/?#]"
    return ModelURI(
        scheme=scheme, host=re.split(end, rest, maxsplit=1)[0], text=text, redacted=redacted(text)
    )


def is_uri(text: str) -> bool:
    return next(_problems(text), None) is None


def _split(text: str) -> tuple[str, str, str]:
    """Return scheme, separator and rest; the separator is empty if there is none."""
    return text.partition(":/" if text.startswith("models:/") else "://")


def _userinfo_length(scheme: str, rest: str) -> int:
    """Return the length of the user, or user:password, with its `@` before the host; 0 without one.

    In a URI of models, one `@` precedes the alias.
    """
    if scheme != "models" or rest.startswith("/"):
        host = rest.lstrip("/") if scheme == "models" else rest
        user = _USER.match(host)
        return len(rest) - len(host) + user.end() if user else 0
    before, at, _ = re.split("[?#]", rest, maxsplit=1)[0].rpartition("@")
    return len(before) + 1 if at and (":" in before or "@" in before) else 0


def _corrected(text: str) -> str:
    """Return the text with the slashes of its scheme, where its author wrote more or less of them, or capitals."""
    scheme, separator, rest = text.partition(":")
    slashes = "/" if scheme.lower() == "models" else "//"
    return f"{scheme.lower()}:{slashes}{rest.lstrip('/')}" if separator else text


def _problems(text: str) -> Iterator[tuple[str, str]]:
    """Yield message and remedy of each problem. Take only the first: later ones presume that it is absent."""
    scheme, separator, rest = _split(text)
    if separator and scheme == "http":
        yield "is plain http, over which anyone on the way can replace the model", "use https://"
    if not separator or scheme not in SCHEMES:
        yield "is not from a supported source", f"write {_FORMS}"
    remedy = f"remove the credentials, and put them into a Secret that the policy names as credentialsSecret of source {scheme}"
    if _userinfo_length(scheme, rest):
        yield "holds credentials, which everyone who may see the pod can read", remedy
    query = rest.partition("#")[0].partition("?")[2]
    if any(_SECRET_PARAMETER.search(parameter.partition("=")[0]) for parameter in query.split("&")):
        yield "holds a signature or token in its query, which everyone who may see the pod can read", remedy
    if len(text) > MAX_LENGTH:
        yield f"is longer than {MAX_LENGTH} characters", "use a shorter path"
    if not _URI_CHARACTERS.fullmatch(text):
        remedy = "write such characters %-encoded in an https:// URI, or rename the object"
        yield "holds a space, a quote, $ or another character that no URI may hold", remedy
    yield from _problems_of_location(scheme, rest)


def _problems_of_location(scheme: str, rest: str) -> Iterator[tuple[str, str]]:
    plain, *extra = re.split("[?#]", rest, maxsplit=1)
    host, _, path = plain.partition("/")
    if scheme == "models":
        if not _REGISTERED.fullmatch(plain):
            yield "does not name a version of a model", "write models:/name/version or models:/name@alias"
    elif not _HOST[scheme](host):
        what, letters = _HOST_NOUN[scheme]
        yield f"does not name a valid {what}{letters}", f"write {scheme}://{what}/…"
    if scheme == "hf" and not _NAME_AND_REVISION.fullmatch(path):
        yield "does not name a model of the hub", "write hf://owner/name or hf://owner/name@revision"
    if scheme == "oci" and not _IMAGE.fullmatch(path):
        remedy = "write oci://registry.example.com/name:tag, or @sha256: and 64 hexadecimal digits at its end"
        yield "does not name an image", remedy
    if scheme == "https" and path.rpartition("/")[2] == "":
        yield "does not name a file", "name one file; a folder can be fetched from s3, gs, hf or pvc"
    if ".." in path.split("/"):
        yield 'holds ".." as part of its path', "write the path without it"
    if extra and (mark := rest[len(plain)]) not in _ALLOWED_MARKS.get(scheme, ""):
        what = "query (?)" if mark == "?" else "fragment (#)"
        yield f"has a {what}, which no URI of {scheme} may have", "leave it out"
    fragment = rest.partition("#")[2]
    if fragment and not _CHECKSUM.fullmatch(fragment):
        remedy = "write #sha256= and 64 hexadecimal digits, or leave it out"
        yield "has a fragment that is not a checksum", remedy
