"""`check --fix`: edits manifests by the fixes of findings, and keeps only edits that a second check confirms."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from policies.pods.field_paths import Parts, path_parts, value_at
from webhook.serving.engine import Outcome, Violation
from webhook.tools.check.edits import NotEditableError, TextEdit, edited, edited_piece
from webhook.tools.check.manifests import Manifest, Manifests
from webhook.tools.check.offline import ManifestResult
from webhook.tools.corrections import correct, is_better

NO_EDIT = "for you to decide"
INEFFECTIVE = "its edit would not remove it"
DENIED_THEN = "its edit would be denied ({})"

Checked = tuple[Sequence[ManifestResult], Manifests]
Check = Callable[[Mapping[str, str]], Checked]
"""Checks everything again, with these texts in place of those of the files."""


class Repair(NamedTuple):
    """A finding to fix, and its object. `position`: of the object among the results of the check."""

    position: int
    manifest: Manifest
    violation: Violation

    @property
    def key(self) -> tuple[object, ...]:
        """Return what identifies the finding in a second check of the same documents."""
        finding = self.violation.finding
        return self.position, finding.reason, finding.path, finding.value

    def edits(self) -> tuple[TextEdit, ...]:
        """Return the edits of the file. Raises NotEditableError if there are none."""
        found = object_edits(self.manifest, self.violation)
        if not found:
            raise NotEditableError(NO_EDIT)
        return tuple(TextEdit((*self.manifest.at, *path), value) for path, value in found)

    @property
    def obstacle(self) -> str:
        """Why there are no edits, "" if there are."""
        try:
            self.edits()
        except NotEditableError as error:
            return str(error)
        return ""


def object_edits(manifest: Manifest, violation: Violation) -> Sequence[TextEdit]:
    """Return the fix as edits of the object as it is written."""
    found = [TextEdit(path_parts(edit.path), edit.value) for edit in violation.finding.fix]
    paths = [path for path, _ in found]
    # The path of a pod that a controller composes is not a path in the manifest.
    if any(place.at[: len(path)] == path for path in paths for place, _ in manifest.pods):
        return ()
    return [each for each in found if not _is_default(manifest, each.parts, paths)]


def _is_default(manifest: Manifest, path: Parts, all_paths: Sequence[Parts]) -> bool:
    """Whether it is a request that the API server takes from its limit, which is edited as well."""
    above = path[:-1]
    if above[-1:] != ("requests",) or not any(each[:-1] == (*above[:-1], "limits") for each in all_paths):
        return False
    written = value_at(manifest.data, above) or {}
    return not any(each[-1] in written for each in all_paths if each[:-1] == above)


class Fixes(msgspec.Struct):
    """The new text of each file, the repairs made, and the reason why each other finding was not fixed.

    `results` and `found` are those of the last check.
    """

    results: Sequence[ManifestResult]
    found: Manifests
    texts: dict[str, str] = {}
    originals: dict[str, str] = {}
    repaired: list[Repair] = []
    reasons: dict[tuple[object, ...], str] = {}
    """Why a finding was not fixed, by its key."""

    def left(self) -> Iterator[tuple[Repair, str]]:
        """Yield each remaining denial, and each fix that could not be made, with the reason."""
        for each in _repairs(self.results):
            if each.violation.outcome is Outcome.DENIED or each.violation.finding.fix:
                yield each, each.obstacle or self.reasons.get(each.key, INEFFECTIVE)


def fixed_piece(manifest: Manifest, violation: Violation) -> str | None:
    """Return the span of the object's document with the edits of one finding; None if they cannot be made."""
    try:
        edits = Repair(0, manifest, violation).edits()
        return edited_piece(manifest.text, manifest.document, edits)
    except NotEditableError:
        return None


def fix(checked: Checked, check: Check) -> Fixes:
    """Fix all denials and warnings, and those that a fix uncovers."""
    fixes = Fixes(*checked)

    def wanted() -> list[Repair]:
        found = (each for each in _repairs(fixes.results) if each.key not in fixes.reasons)
        return [each for each in found if not each.obstacle]

    def attempt(repairs: Sequence[Repair]) -> bool:
        current = [each._replace(manifest=fixes.results[each.position].manifest) for each in repairs]
        is_made = _try(fixes, current, check)
        if not is_made and len(repairs) == 1:
            fixes.reasons.setdefault(repairs[0].key, INEFFECTIVE)
        return is_made

    correct(wanted, attempt)
    return fixes


def _repairs(results: Sequence[ManifestResult]) -> Iterator[Repair]:
    for index, result in enumerate(results):
        for violation in result.findings():
            if violation.outcome is not Outcome.AUDITED:
                yield Repair(index, result.manifest, violation)


def _try(fixes: Fixes, repairs: Sequence[Repair], check: Check) -> bool:
    """Make the edits, and keep them if each one removes its finding and no object gets another denial."""
    texts, originals = dict(fixes.texts), dict(fixes.originals)
    edits: dict[str, dict[int, list[TextEdit]]] = {}
    for each in repairs:
        edits.setdefault(each.manifest.file, {}).setdefault(each.manifest.index, []).extend(each.edits())
        texts.setdefault(each.manifest.file, each.manifest.text)
        originals.setdefault(each.manifest.file, each.manifest.text)
    for file, of_file in edits.items():
        try:
            texts[file] = edited(texts[file], of_file)
        except NotEditableError as error:
            fixes.reasons.update({each.key: str(error) for each in repairs if len(repairs) == 1})
            return False
    results, found = check(texts)
    if len(repairs) == 1 and len(results) == len(fixes.results):
        old, new = (_denials(each[repairs[0].position]) for each in (fixes.results, results))
        if denial := next((text for kind, text in new.items() if kind not in old), ""):
            fixes.reasons[repairs[0].key] = DENIED_THEN.format(denial)
    if len(results) != len(fixes.results) or not all(
        len(old.pods) == len(new.pods)
        and is_better(
            old.findings(), new.findings(), [each.violation for each in repairs if each.position == position]
        )
        for position, (old, new) in enumerate(zip(fixes.results, results, strict=True))
    ):
        return False
    fixes.results, fixes.found, fixes.texts, fixes.originals = results, found, texts, originals
    fixes.repaired += repairs
    return True


def _denials(result: ManifestResult) -> dict[tuple[str, str], str]:
    """Return the denials of an object, by rule and reason, in words."""
    denied = (each.finding for each in result.findings() if each.outcome is Outcome.DENIED)
    return {(each.rule, each.reason): each.sentence() for each in denied}


def write(file: str, original: str, text: str) -> None:
    """Replace the file atomically, with its mode. Raises OSError, also if the file has changed since it was checked."""
    path = Path(file).resolve()
    content = path.read_bytes().decode()
    mark = "\ufeff" if content.startswith("\ufeff") else ""
    if content != mark + original:
        raise OSError("has changed since it was checked")
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as temporary:
        try:
            temporary.write((mark + text).encode())
            temporary.flush()
            os.fsync(temporary.fileno())
            os.fchmod(temporary.fileno(), stat.S_IMODE(path.stat().st_mode))
            Path(temporary.name).replace(path)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise
