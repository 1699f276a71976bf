"""AdmissionReview v1 on the wire; the only file that knows its format.

The API server is strict about answers: the request's uid, its apiVersion and kind, a patch only together with its type, and
never from a validating webhook. Warnings become HTTP headers: control characters drop them silently, and 4096 characters is
all there is for a request.
"""

from collections.abc import Iterable, Sequence

import msgspec

from policies.finding import Finding, truncate
from policies.pods.names import is_dns_label, is_dns_subdomain, is_kind, is_uid
from policies.times import utc
from webhook.canary.traces import CanaryTrace
from webhook.evaluation.decision import Decision, Outcome

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")

FORBIDDEN = 403
INVALID = 422
UNAVAILABLE = 503
TIMEOUT = 504

OUT_OF_TIME = "could not decide within the timeoutSeconds of the webhook"

LONGEST_NAME = 256
"""Characters of a name that are shown: /mutate comes before the API server has validated it."""

WARNINGS_TOTAL = 3_500
"""Characters of all warnings of an answer. Over a total of 4096, which other webhooks share, the API server cuts each to 256."""
WARNING_BRIEF = 250
"""Characters of a warning where they come to more, and of its field and remedy where it has any `WARNING_LONGEST`."""
WARNING_SUBJECT = 100
"""Characters of the object in a warning: a namespace has at most 63, and most names have fewer than 30."""
WARNING_LONGEST = 1_000
MESSAGE_FINDINGS = 40
"""Findings listed in one denial; a pod may have hundreds of containers, and nobody reads further."""


class BadReviewError(Exception):
    """The HTTP request is not an AdmissionReview v1 that could be answered; the text says why."""


class GroupKind(msgspec.Struct, frozen=True):
    group: str = ""
    kind: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.kind


class UserInfo(msgspec.Struct, frozen=True):
    username: str = ""
    groups: tuple[str, ...] | None = None


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What the API server asks about. `object` and `old_object` stay JSON until a view is decoded from them."""

    uid: str
    kind: GroupKind = GroupKind()
    operation: str = ""
    name: str = ""
    namespace: str = ""
    sub_resource: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class Cause(msgspec.Struct, frozen=True):
    """One problem of an object. Of an invalid document, kubectl shows each on a line of its own."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class Details(msgspec.Struct, frozen=True, omit_defaults=True):
    causes: tuple[Cause, ...]
    group: str = ""
    kind: str = ""
    name: str = ""


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    code: int
    reason: str
    message: str
    details: Details | None = None


class AdmissionResponse(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The answer; `patch` is the JSON patch itself, base64 is the encoder's work."""

    uid: str
    allowed: bool | None = None  # None is never sent: it only keeps omit_defaults from dropping False
    status: Status | None = None
    patch: bytes | None = None
    patch_type: str | None = None
    warnings: tuple[str, ...] | None = None
    audit_annotations: dict[str, str] | None = None


class NameMetadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    generate_name: str = ""
    uid: str = ""


class _Named(msgspec.Struct, frozen=True):
    """As little as possible of an object, which may be too long to be decoded."""

    metadata: NameMetadata = NameMetadata()


_NAMED = msgspec.json.Decoder(_Named)
_DECODER = msgspec.json.Decoder(_Envelope)
_ENCODER = msgspec.json.Encoder()


def decode_request(body: bytes) -> AdmissionRequest:
    """Return the request in an AdmissionReview; raise `BadReviewError` for anything else.

    Who sends it may be anybody who reaches the port, and its fields become parts of ledgers, paths and log lines.
    """
    try:
        body.decode()  # the objects inside stay bytes for now, and later it would be too late to say what is wrong
        envelope = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise BadReviewError(f"the body is not an AdmissionReview: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReviewError(f"the body is not JSON: {error}") from None
    if envelope.api_version != API_VERSION or envelope.kind != KIND:
        received = f"{envelope.api_version or '(none)'} {envelope.kind or '(none)'}"
        raise BadReviewError(f"the body is {received[:200]}; this webhook answers {API_VERSION} {KIND}")
    request = envelope.request
    if request is None or not request.uid:
        raise BadReviewError("the AdmissionReview has no request.uid, so no answer could be matched to it")
    for field, is_valid, must in (
        ("uid", is_uid(request.uid), "be a UUID (RFC 4122)"),
        ("operation", request.operation in OPERATIONS, f"be one of {', '.join(OPERATIONS)}"),
        ("kind.kind", is_kind(request.kind.kind), "be the name of a kind"),
        ("kind.group", not request.kind.group or is_dns_subdomain(request.kind.group), "be an API group"),
        ("namespace", not request.namespace or is_dns_label(request.namespace), "be a DNS label"),
    ):
        if not is_valid:
            raise BadReviewError(f"request.{field} must {must}; no API server sends anything else")
    return request


def object_name(request: AdmissionRequest) -> str:
    """Return the name of an object that nobody decodes, or its generateName while it has no final name."""
    metadata = metadata_of(request.object)
    return truncate(request.name or metadata.name or metadata.generate_name, LONGEST_NAME)


def subject_of(request: AdmissionRequest) -> str:
    """Return the object as denials and warnings name it: `Deployment ml/web`."""
    place = f"{request.namespace}/" if request.namespace else ""
    return f"{request.kind.kind} {place}{object_name(request)}"


def metadata_of(document: msgspec.Raw) -> NameMetadata:
    """Return name and uid of an object that no handler decodes, empty if it cannot be read."""
    try:
        return _NAMED.decode(document).metadata
    except msgspec.ValidationError:
        return NameMetadata()


def encode_response(response: AdmissionResponse) -> bytes:
    return _ENCODER.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def allowed_response(uid: str, *, warnings: tuple[str, ...] = ()) -> AdmissionResponse:
    return AdmissionResponse(uid=uid, allowed=True, warnings=warnings or None)


def rejected_response(uid: str, code: int, reason: str, message: str) -> AdmissionResponse:
    """Reject an object on which no rule has decided. Client libraries take code 504 for "try again"."""
    return AdmissionResponse(uid=uid, allowed=False, status=Status(code, reason, message))


def invalid_document(
    uid: str, kind: GroupKind, name: str, causes: tuple[Cause, ...], warnings: tuple[str, ...] = ()
) -> AdmissionResponse:
    """Reject a document of our own with everything that is wrong, as the API server itself rejects an invalid object."""
    lines = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    details = Details(causes[:MESSAGE_FINDINGS], kind.group, kind.kind, name)
    status = Status(INVALID, "Invalid", denial_message(lines, f"{kind.kind} {name}"), details)
    return AdmissionResponse(uid=uid, allowed=False, status=status, warnings=warnings or None)


def decided(
    uid: str,
    decisions: list[Decision],
    *,
    subject: str,
    patch: bool = False,
    only_advises: bool = False,
    trace: CanaryTrace | None = None,
) -> AdmissionResponse:
    """Return the response for the decisions on a pod or claim, or on each of a workload's templates.

    `subject` names the object ("pod ml/train"); only a mutating webhook may `patch`. A response that `only_advises` allows
    the object, but warns of what its pods would meet.
    """
    denials = findings_of(decisions, Outcome.DENIED)
    patched = decisions if patch and not denials else ()
    operations = [operation for decision in patched for operation in decision.operations]
    injected = bool(operations)
    would, denials = (denials, []) if only_advises else ([], denials)
    warned = findings_of(decisions, Outcome.WARNED)
    warnings = warning_texts(warned, subject=subject, denied=would, before=_paused(decisions))
    if trace is not None:
        warnings = (trace.text(), *warnings)
        if patched and not trace.patched:
            operations.append(trace.proof)
    return AdmissionResponse(
        uid=uid,
        allowed=not denials,
        status=_forbidden(denials, subject, decisions[0].policy.help) if denials else None,
        patch=_ENCODER.encode(operations) if operations else None,
        patch_type="JSONPatch" if operations else None,
        warnings=warnings or None,
        audit_annotations=_audit_annotations(decisions, injected=injected),
    )


def _forbidden(denials: list[Finding], subject: str, contact: str) -> Status:
    causes = [(finding, finding.sentence()) for finding in denials]
    contact = "" if denials[0].ask_contact else contact  # the first line says whom to ask
    details = [detail for finding in denials for detail in finding.details]
    message = denial_message([sentence for _, sentence in causes], subject, contact, details)
    shown = (Cause(each.path, _printable(text), each.reason.name) for each, text in causes[:MESSAGE_FINDINGS])
    return Status(FORBIDDEN, "Forbidden", message, Details(causes=tuple(shown)))


def _paused(decisions: list[Decision]) -> list[str]:
    """Warn that something is admitted, or stays unchanged, only because of a pause."""
    for decision in decisions:
        if decision.paused_until is not None and any(decision.findings(Outcome.AUDITED)):
            paused = f"policy {decision.policy.name} is paused until {utc(decision.paused_until)}"
            return [f"{paused}: what it would deny or change is only logged"]
    return []


def findings_of(decisions: list[Decision], outcome: Outcome) -> list[Finding]:
    return [finding for decision in decisions for finding in decision.findings(outcome)]


def denial_message(denials: list[str], subject: str, contact: str = "", details: Sequence[str] = ()) -> str:
    """Return everything that is wrong, one line a finding, and the details.

    The first line is a whole sentence: `kubectl get events` shows no other. It names the `contact`, unless it has that word.
    """
    first, *further = map(_printable, denials)
    notes = [f"and {len(further)} more"] if further else []
    if contact and contact not in first:
        notes.append(f"help: {contact}")
    lines = [f"- {line}" for line in further[: MESSAGE_FINDINGS - 1]]
    if len(further) > len(lines):
        lines.append(f"- … and {len(further) - len(lines)} more")
    lines += [f"- {_printable(detail)}" for detail in details[:MESSAGE_FINDINGS]]
    return "\n".join([f"{subject}: {first}" + (f" ({'; '.join(notes)})" if notes else ""), *lines])


def warning_texts(
    warned: Iterable[Finding], *, subject: str, denied: Iterable[Finding] = (), before: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return warnings that survive as HTTP headers, duplicates left out; `denied` are what pods would be denied for.

    Each names the `subject`, because kubectl prints equal warnings of several objects once. Those `before` them are about a whole
    namespace. Beyond WARNINGS_TOTAL in sum, reasons are left out, and then the last warnings.
    """
    about = f"{truncate(subject, WARNING_SUBJECT)}: "
    would = f"{about}its pods would be denied: "
    findings = [*((would, denial) for denial in denied), *((about, finding) for finding in warned)]
    before = list(before)
    full = _unique([*before, *(prefix + finding.sentence() for prefix, finding in findings)])
    if sum(map(len, full)) <= WARNINGS_TOTAL:
        return tuple(full)
    brief = _unique(
        [*before, *(prefix + finding.brief(WARNING_BRIEF - len(prefix)) for prefix, finding in findings)]
    )
    shown: list[str] = []
    left = WARNINGS_TOTAL - WARNING_BRIEF
    for text in (truncate(text, WARNING_LONGEST) for text in brief):
        left -= len(text)
        if left < 0:
            more = len(brief) - len(shown)
            return (*shown, f"… and {more} more; the audit log of gpu-admission has them all")
        shown.append(text)
    return tuple(shown)


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(_printable, texts)))


def _printable(text: str) -> str:
    """Return the text as one line; control characters would drop a header silently."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else " " for character in text)


def _audit_annotations(decisions: list[Decision], *, injected: bool) -> dict[str, str] | None:
    # The API server drops a key that comes again with another value (reinvocation), so what can differ between two calls
    # for one object is left out where there is nothing to say.
    annotations = {}
    if injected:
        rules = (change.rule for decision in decisions for change in decision.changes)
        annotations["injected-by"] = ",".join(dict.fromkeys(rules))
    evaluated = (violation for decision in decisions for violation in decision.violations)
    if outcomes := dict.fromkeys(f"{each.finding.rule}={each.outcome.value}" for each in evaluated):
        annotations["findings"] = ",".join(outcomes)
    if not annotations:
        return None
    policy = decisions[0].policy
    annotations["policy"] = f"{policy.name}@{policy.version}"
    return annotations
