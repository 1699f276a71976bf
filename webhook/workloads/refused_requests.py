"""Requests of ResourceClaims (DRA) that the API server rejects: what they ask for is not where its version has it.

resource.k8s.io v1beta1 has the fields of a device in the request itself, v1beta2 and v1 have them below `exactly`
(`validateDeviceRequest` in pkg/apis/resource/validation/validation.go of k8s.io/kubernetes v1.37.2, and each version's types).
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from policies.finding import Edit, Finding, Json, together
from policies.pods.field_paths import Parts, field_path, value_at
from policies.rules.ineffective_fields import ID as INEFFECTIVE_FIELDS
from policies.rules.ineffective_fields import MISPLACED_FIELD

_CLASS, _EXACTLY, _ALTERNATIVES = "deviceClassName", "exactly", "firstAvailable"
_FIELDS = {
    "resource.k8s.io/v1": _EXACTLY,
    "resource.k8s.io/v1beta2": _EXACTLY,
    "resource.k8s.io/v1beta1": _CLASS,
}
"""By version, the field of a request that has no alternatives."""
_refused = partial(Finding, rule=INEFFECTIVE_FIELDS, reason=MISPLACED_FIELD)


def refused_requests(data: Mapping[str, Any], path: Parts) -> Iterator[Finding]:
    """Yield a denial for each request without devices, or with two kinds of them. path: of the claim's spec in the object."""
    version, requests = str(data.get("apiVersion")), value_at(data, (*path, "devices", "requests"))
    for index, request in enumerate(requests if isinstance(requests, list) else ()):
        at = field_path((*path, "devices", "requests", index))
        if version in _FIELDS and isinstance(request, dict):
            yield from _of_request(request, at, version)


def _of_request(request: dict[str, Any], at: str, version: str) -> Iterator[Finding]:
    field = _FIELDS[version]
    devices = {at: request} if field == _CLASS else {f"{at}.{_EXACTLY}": request.get(_EXACTLY)}
    alternatives = request.get(_ALTERNATIVES)
    if alternatives:
        if request.get(field):
            choices = together(Edit(f"{at}.{field}"))
            yield _refused(
                path=f"{at}.{field}", message=f"must not be set beside {_ALTERNATIVES}", choices=choices
            )
        items = alternatives if isinstance(alternatives, list) else ()
        devices = {f"{at}.{_ALTERNATIVES}[{index}]": each for index, each in enumerate(items)}
    elif not request.get(field):
        yield _misplaced(request, at, version)
        return
    for path, device in devices.items():
        if isinstance(device, dict) and not device.get(_CLASS):
            yield _refused(path=f"{path}.{_CLASS}", message="must be set")


def _misplaced(request: dict[str, Any], at: str, version: str) -> Finding:
    """Return the denial of a request that has nothing where its version reads it."""
    field = _FIELDS[version]
    if field == _EXACTLY:
        moved = {name: value for name, value in request.items() if name != "name"}
        edits = [*(Edit(f"{at}.{name}") for name in moved), Edit(f"{at}.{_EXACTLY}", _json(moved))]
        remedy = f"write its fields below {_EXACTLY}"
    else:
        moved = request.get(_EXACTLY) or {}
        edits = [Edit(f"{at}.{_EXACTLY}"), *(Edit(f"{at}.{name}", _json(moved[name])) for name in moved)]
        remedy = f"write the fields of {_EXACTLY} into the request"
    is_whole = bool(moved.get(_CLASS))
    return _refused(
        path=f"{at}.{field}",
        message=f"must be set, or {_ALTERNATIVES}: {version} reads no device anywhere else",
        choices=together(*edits) if is_whole else (),
        remedy=remedy if is_whole else "",
    )


def _json(value: Any) -> Json:
    return Json(msgspec.json.encode(value).decode())
