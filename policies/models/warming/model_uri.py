"""Model URIs: the sources, validation, and the form without secrets.

====================================  =====================================================================
`s3://bucket/prefix`                  every object below the prefix, or the one object of that name
`gs://bucket/prefix`                  likewise
`hf://owner/name[@revision]`          a model repository of the Hugging Face hub
`https://host/file[#sha256=…]`        one file, not unpacked
`pvc://claim/path`                    a folder or file of a PersistentVolumeClaim in the pod's namespace
====================================  =====================================================================
"""

import hashlib
import re
from collections.abc import Callable, Iterator

import msgspec

from policies.pods.annotations import MODEL_URI, BadAnnotation
from policies.pods.names import is_dns_subdomain

LONGEST = 2048
SCHEMES = ("s3", "gs", "hf", "https", "pvc")
_OF_HUB = "hf://owner/name"
_USABLE = "s3://bucket/prefix, gs://bucket/prefix, hf://owner/name, https://host/file or pvc://claim/path"

# No spaces or control characters; no `$`, because Kubernetes expands $(NAME) in the values of variables.
_URI_CHARACTERS = re.compile(r"[A-Za-z0-9!#%&'()*+,./:;=?@\[\]_~-]+")
_HOST: dict[str, Callable[[str], object]] = {
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,62}").fullmatch,
    "gs": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,221}").fullmatch,
    "hf": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*").fullmatch,
    "https": re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?").fullmatch,
    "pvc": is_dns_subdomain,
}
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
_GATED = re.compile(r"meta-llama/|google/(code)?gemma-(2b|7b|1\.1|2|3n?)\b")
"""Models of the hub that need a token: all of Meta's, and Gemma 1 to 3n. Other models are gated, too, but any owner can change
that. These have been gated since their first release (huggingface.co/docs/hub/models-gated: "Gated model")."""
_CHECKSUM = re.compile(r"sha256=[0-9A-Fa-f]{64}")
_SECRET_PARAMETER = re.compile(r"sig|token|secret|passw|credential|key|auth", re.IGNORECASE)


class ModelURI(msgspec.Struct, frozen=True, kw_only=True):
    """A valid URI. `text` is for the fetcher only, an init container. `shown` is for people and logs.

    host: the part before the first slash: a bucket (s3, gs), an owner (hf), a host with its port (https), a claim (pvc).
    """

    scheme: str
    host: str
    text: str
    shown: str

    @property
    def path(self) -> str:
        """The path below the host, without query and fragment."""
        return self.shown.partition("://")[2].partition("/")[2]

    @property
    def query(self) -> str:
        return self.text.partition("#")[0].partition("?")[2]

    @property
    def is_gated(self) -> bool:
        """Whether the model is known to need a token."""
        return self.scheme == "hf" and _GATED.match(f"{self.host}/{self.path}") is not None

    @property
    def directory(self) -> str:
        """The folder in a cache for this URI only, readable and of bounded length."""
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", self.shown.rstrip("/").rpartition("/")[2]).strip("-.")[:40]
        return f"{name or 'model'}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


def shown(text: str) -> str:
    """Return any text without user, password, query and fragment."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    user = _USER.match(rest)
    plain = scheme + separator + re.split("[?#]", rest[user.end() if user else 0 :], maxsplit=1)[0]
    printable = "".join(character if character.isprintable() else "�" for character in plain)
    return printable if len(printable) <= LONGEST else printable[:LONGEST] + "…"


def parse_model_uri(text: str) -> ModelURI | BadAnnotation:
    """Return the URI, or its first problem. The value of the problem has no secrets."""
    problem = next(_problems(text), None)
    if problem is not None:
        meant = _meant(text)
        if is_uri(meant):
            return BadAnnotation(MODEL_URI, shown(text), *problem, meant=meant)
        of_hub = f"hf://{text}"
        if text.count("/") == 1 and is_uri(of_hub):
            message, remedy = problem
            return BadAnnotation(
                MODEL_URI, shown(text), message, remedy.replace(_OF_HUB, of_hub), example=of_hub
            )
        return BadAnnotation(MODEL_URI, shown(text), *problem, example=_OF_HUB)
    scheme, _, rest = text.partition("://")
    return ModelURI(scheme=scheme, host=re.split("[/?#]", rest, maxsplit=1)[0], text=text, shown=shown(text))


def is_uri(text: str) -> bool:
    return next(_problems(text), None) is None


def _meant(text: str) -> str:
    """Return the text with `scheme://`, where its author wrote `scheme:` or `scheme:/`, or capitals."""
    scheme, separator, rest = text.partition(":")
    return f"{scheme.lower()}://{rest.lstrip('/')}" if separator else text


def _problems(text: str) -> Iterator[tuple[str, str]]:
    """Yield message and remedy of each problem. Take only the first: later ones presume that it is absent."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "http":
        yield "is plain http, over which anyone on the way can replace the model", "use https://"
    if not separator or scheme not in SCHEMES:
        yield "is not from a supported source", f"write {_USABLE}"
    remedy = f"remove the credentials, and put them into a Secret that the policy names as credentialsSecret of source {scheme}"
    if _USER.match(rest):
        yield "holds credentials, which everyone who may see the pod can read", remedy
    query = rest.partition("#")[0].partition("?")[2]
    if any(_SECRET_PARAMETER.search(parameter.partition("=")[0]) for parameter in query.split("&")):
        yield "holds a signature or token in its query, which everyone who may see the pod can read", remedy
    if len(text) > LONGEST:
        yield f"is longer than {LONGEST} characters", "use a shorter path"
    if not _URI_CHARACTERS.fullmatch(text):
        remedy = "write such characters %-encoded in an https:// URI, or rename the object"
        yield "holds a space, a quote, $ or another character that no URI may hold", remedy
    yield from _problems_of_place(scheme, rest)


def _problems_of_place(scheme: str, rest: str) -> Iterator[tuple[str, str]]:
    plain, *extra = re.split("[?#]", rest, maxsplit=1)
    host, _, path = plain.partition("/")
    if not _HOST[scheme](host):
        what = {"s3": "bucket", "gs": "bucket", "hf": "owner", "https": "host", "pvc": "claim"}[scheme]
        letters = {
            "s3": " (3 to 63 letters, digits, . _ and -)",
            "gs": " (3 to 222 letters, digits, . _ and -)",
        }
        yield f"does not name a valid {what}{letters.get(scheme, '')}", f"write {scheme}://{what}/…"
    if scheme == "hf" and not _NAME_AND_REVISION.fullmatch(path):
        yield "does not name a model of the hub", "write hf://owner/name or hf://owner/name@revision"
    if scheme == "https" and path.rpartition("/")[2] == "":
        yield "does not name a file", "name one file; a folder can be fetched from s3, gs, hf or pvc"
    if ".." in path.split("/"):
        yield 'holds ".." as part of its path', "write the path without it"
    if extra and scheme != "https":
        yield "has a query or fragment (? or #), which only https:// may have", "leave it out"
    fragment = rest.partition("#")[2]
    if fragment and not _CHECKSUM.fullmatch(fragment):
        remedy = "write #sha256= and 64 hexadecimal digits, or leave it out"
        yield "has a fragment that is not a checksum", remedy
