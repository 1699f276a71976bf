"""Model URIs: which sources there are, what makes a URI unusable, and how one is shown without its secrets.

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
from collections.abc import Callable

import msgspec

from policies.pods.names import is_dns_subdomain

LONGEST = 2048
SCHEMES = ("s3", "gs", "hf", "https", "pvc")

# No spaces or control characters; no `$`, because Kubernetes expands $(NAME) in the values of variables.
_PLAIN = re.compile(r"[!#%-;=?-\[\]_a-z~]+", re.IGNORECASE)
_HOST: dict[str, Callable[[str], object]] = {
    "s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}").fullmatch,
    "gs": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}").fullmatch,
    "hf": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*").fullmatch,
    "https": re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?").fullmatch,
    "pvc": is_dns_subdomain,
}
_USER = re.compile(r"[^/?#]*@|(?!\[|[^/?#:]*:[0-9]{1,5}([/?#]|$))[^/?#:]*:.*@")
"""A user, or user:password before the host; the password may hold a slash, as AWS keys do."""
_HUB_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(@[A-Za-z0-9][A-Za-z0-9._/-]*)?")
_CHECKSUM = re.compile(r"sha256=[0-9A-Fa-f]{64}")
_SECRET_PARAMETER = re.compile(r"sig|token|secret|passw|credential|key|auth", re.IGNORECASE)


class ModelURI(msgspec.Struct, frozen=True, kw_only=True):
    """A usable URI. `text` is for the init container only; `shown` is what people and logs may see."""

    scheme: str
    host: str
    text: str
    shown: str

    @property
    def path(self) -> str:
        """What is below the host, without query and fragment."""
        return self.shown.partition("://")[2].partition("/")[2]

    @property
    def query(self) -> str:
        return self.text.partition("#")[0].partition("?")[2]

    @property
    def directory(self) -> str:
        """The folder of a cache that belongs to this URI and no other, readable and of bounded length."""
        name = re.sub(r"[^A-Za-z0-9.-]+", "-", self.shown.rstrip("/").rpartition("/")[2]).strip("-.")[:40]
        return f"{name or 'model'}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


class BadURI(msgspec.Struct, frozen=True):
    """Why a URI cannot be used; `shown` is its text without secrets."""

    shown: str
    message: str
    remedy: str


def shown(text: str) -> str:
    """Return the URI without user, password, query and fragment, whatever it looks like otherwise."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    user = _USER.match(rest)
    plain = scheme + separator + re.split("[?#]", rest[user.end() if user else 0 :], maxsplit=1)[0]
    printable = "".join(character if character.isprintable() else "�" for character in plain)
    return printable if len(printable) <= LONGEST else printable[:LONGEST] + "…"


def parse_model_uri(text: str) -> ModelURI | BadURI:
    """Return the URI, or why it cannot be used."""
    scheme, separator, rest = text.partition("://")
    plain, *extra = re.split("[?#]", rest, maxsplit=1)
    host, _, path = plain.partition("/")
    problem = (
        _unknown_source(scheme, separator)
        or _credentials(scheme, rest)
        or _bad_text(text)
        or _bad_place(scheme, host, path)
        or _bad_extra(scheme, rest, bool(extra))
    )
    if problem is not None:
        return BadURI(shown(text), *problem)
    return ModelURI(scheme=scheme, host=host, text=text, shown=shown(text))


Problem = tuple[str, str] | None
"""What is wrong and what to do about it."""


def _unknown_source(scheme: str, separator: str) -> Problem:
    if separator and scheme in SCHEMES:
        return None
    remedy = (
        "write s3://bucket/prefix, gs://bucket/prefix, hf://owner/name, https://host/file or pvc://claim/path"
    )
    if separator and scheme == "http":
        return "is plain http, over which anyone on the way can replace the model", "use https://"
    return "is not from a supported source", remedy


def _credentials(scheme: str, rest: str) -> Problem:
    remedy = (
        "put the credentials into a Secret and have the platform team name it as credentialsSecret of "
        f"the source {scheme} in the policy"
    )
    if _USER.match(rest):
        return "holds credentials, which everyone who may see the pod can read", remedy
    query = rest.partition("#")[0].partition("?")[2]
    if any(_SECRET_PARAMETER.search(parameter.partition("=")[0]) for parameter in query.split("&")):
        return "holds a signature or token in its query, which everyone who may see the pod can read", remedy
    return None


def _bad_text(text: str) -> Problem:
    if len(text) > LONGEST:
        return f"is longer than {LONGEST} characters", "use a shorter path"
    if not _PLAIN.fullmatch(text):
        return (
            "holds a space, a quote, $ or another character that no URI may hold",
            "write such characters %-encoded in an https:// URI; rename the object otherwise",
        )
    return None


def _bad_place(scheme: str, host: str, path: str) -> Problem:
    if not _HOST[scheme](host):
        what = {"s3": "bucket", "gs": "bucket", "hf": "owner", "https": "host", "pvc": "claim"}[scheme]
        return f"does not name a valid {what}", f"write {scheme}://{what}/…"
    if scheme == "hf" and not _HUB_MODEL.fullmatch(path):
        return "does not name a model of the hub", "write hf://owner/name or hf://owner/name@revision"
    if scheme == "https" and path.rpartition("/")[2] == "":
        return "does not name a file", "name one file; a folder can be fetched from s3, gs, hf or pvc"
    if ".." in path.split("/"):
        return 'holds ".." as part of its path', "write the path without it"
    return None


def _bad_extra(scheme: str, rest: str, has_extra: bool) -> Problem:
    if not has_extra:
        return None
    if scheme != "https":
        return "has a query or fragment (? or #), which only https:// may have", "leave it out"
    fragment = rest.partition("#")[2]
    if fragment and not _CHECKSUM.fullmatch(fragment):
        return (
            "has a fragment that is not a checksum",
            "write #sha256= and 64 hexadecimal digits, or leave it out",
        )
    return None
