"""`check --fix`: edits manifests by the fixes of findings, and keeps only edits that a second check confirms.

A finding with several choices is fixed only by the choice that the user takes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from policies.finding import Edits
from policies.pods.field_paths import Parts, path_parts, value_at
from policies.rules.gpu_quota import ID as GPU_QUOTA
from webhook.configuration.files import Source
from webhook.evaluation.decision import Outcome, Violation
from webhook.tools.check.edits import NotEditableError, TextEdit, apply_edits, edited_document
from webhook.tools.check.manifests import Manifest, Manifests
from webhook.tools.check.run import ManifestResult, ManifestVerdict
from webhook.tools.corrections import correct, is_better

UNDECIDABLE = "for you to decide"
NO_CHOICE = "choose"
INEFFECTIVE = "its edit would not remove it"
EDIT_DENIED = "its edit would be denied ({})"

Checked = tuple[Sequence[ManifestResult], Manifests]
Check = Callable[[Mapping[str, str]], Checked]
"""Checks everything again. A file whose name is given has this text."""


class Repair(NamedTuple):
    """A finding to fix, and its object.

    position: of the object among the results of the check. chosen: the choice of several that is taken.
    """

    position: int
    manifest: Manifest
    violation: Violation
    chosen: Edits = ()

    @property
    def key(self) -> tuple[object, ...]:
        """Return what identifies the finding in a second check of the same documents."""
        finding = self.violation.finding
        return self.position, finding.reason, finding.path, finding.value

    @property
    def edits(self) -> list[TextEdit]:
        return file_edits(self.manifest, self.chosen or self.violation.finding.fix)


def object_edits(manifest: Manifest, of_finding: Edits) -> Sequence[TextEdit]:
    """Return the edits of a finding as edits of the object as it is written."""
    edits = [TextEdit(path_parts(edit.path), edit.value) for edit in of_finding]
    paths = [path for path, _ in edits]
    # The path of a pod that a controller composes is not a path in the manifest.
    if any(place.at[: len(path)] == path for path in paths for place, _ in manifest.pods):
        return ()
    return [edit for edit in edits if not _is_default(manifest, edit.parts, paths)]


def _is_default(manifest: Manifest, path: Parts, all_paths: Sequence[Parts]) -> bool:
    """Whether it is a request that the API server takes from its limit, which is edited as well."""
    above = path[:-1]
    if above[-1:] != ("requests",) or not any(path[:-1] == (*above[:-1], "limits") for path in all_paths):
        return False
    written = value_at(manifest.data, above) or {}
    return not any(all_path[-1] in written for all_path in all_paths if all_path[:-1] == above)


class Fixes(msgspec.Struct):
    """The new text of each changed file, and the repairs made.

    `results` and `checked_manifests` come from the last check, `originals`, `manifests` and `sources` from the first.
    """

    results: Sequence[ManifestResult]
    checked_manifests: Manifests
    originals: dict[str, str]
    manifests: Sequence[Manifest]
    sources: Mapping[str, Source]
    texts: dict[str, str] = {}
    repaired: list[Repair] = []
    reasons: dict[tuple[object, ...], str] = {}
    """Why a finding was not fixed, by its key."""
    open_choices: dict[tuple[object, ...], int] = {}
    """By the key of a finding with several choices: its number, if no choice was taken."""

    def unfixed(self) -> Iterator[tuple[Repair, str]]:
        """Yield each remaining denial and warning, with the reason."""
        for repair in _repairs(self.results):
            if repair.key in self.open_choices:
                yield repair, NO_CHOICE
            else:
                why = INEFFECTIVE if repair.edits else UNDECIDABLE
                yield repair, self.reasons.get(repair.key, why)


def file_edits(manifest: Manifest, of_finding: Edits) -> list[TextEdit]:
    """Return the edits of a finding as edits of the file."""
    edits = object_edits(manifest, of_finding)
    return [TextEdit((*manifest.at, *path), value) for path, value in edits]


def fixed_document(manifest: Manifest, of_finding: Edits) -> str | None:
    """Return the span of the object's document with the edits of a finding, if any; None if they cannot be made."""
    try:
        return edited_document(manifest.text, manifest.document, file_edits(manifest, of_finding))
    except NotEditableError:
        return None


def fix(checked: Checked, check: Check, taken: Mapping[int, int] = MappingProxyType({})) -> Fixes:
    """Fix all denials and warnings, and those that a fix uncovers. Raises LookupError for a choice that is not there.

    taken: the choices that the user takes, by the number of the finding among those with several. Both count from 1.
    """
    results, found = checked
    originals = {result.manifest.file: result.manifest.text for result in results}
    fixes = Fixes(results, found, originals, [result.manifest for result in results], found.sources)
    with_several = (repair for repair in _repairs(results) if len(repair.violation.finding.choices) > 1)
    several = dict(enumerate(with_several, 1))
    for number, choice in taken.items():
        if number not in several or choice > len(several[number].violation.finding.choices):
            raise LookupError(f"--fix={number}:{choice}: no finding has such a choice")
    fixes.open_choices = {repair.key: number for number, repair in several.items() if number not in taken}
    chosen = {several[n].key: several[n].violation.finding.choices[taken[n] - 1] for n in taken}

    def repairs_left() -> list[Repair]:
        open_repairs = (repair for repair in _repairs(fixes.results) if repair.key not in fixes.reasons)
        with_choice = (repair._replace(chosen=chosen.get(repair.key, ())) for repair in open_repairs)
        return [repair for repair in with_choice if repair.edits]

    def attempt(repairs: Sequence[Repair]) -> bool:
        current = [repair._replace(manifest=fixes.results[repair.position].manifest) for repair in repairs]
        is_made = _keep_if_better(fixes, current, check)
        if not is_made and len(repairs) == 1:
            fixes.reasons.setdefault(repairs[0].key, INEFFECTIVE)
        return is_made

    correct(repairs_left, attempt)
    return fixes


def _repairs(results: Sequence[ManifestResult]) -> Iterator[Repair]:
    for index, result in enumerate(results):
        for violation in result.findings():
            if violation.outcome is not Outcome.AUDITED:
                yield Repair(index, result.manifest, violation)


def _keep_if_better(fixes: Fixes, repairs: Sequence[Repair], check: Check) -> bool:
    """Make the edits, and keep them if each one removes its finding and no object gets another denial."""
    texts = dict(fixes.texts)
    edits: dict[str, dict[int, list[TextEdit]]] = {}
    for repair in repairs:
        edits.setdefault(repair.manifest.file, {}).setdefault(repair.manifest.index, []).extend(repair.edits)
    for file, of_file in edits.items():
        try:
            texts[file] = apply_edits(texts.get(file, fixes.originals[file]), of_file)
        except NotEditableError as error:
            fixes.reasons.update({repair.key: str(error) for repair in repairs if len(repairs) == 1})
            return False
    results, found = check(texts)
    if len(results) != len(fixes.results):
        return False
    if len(repairs) == 1:
        old, new = (_denials(each[repairs[0].position]) for each in (fixes.results, results))
        if denial := next((text for kind, text in new.items() if kind not in old), ""):
            fixes.reasons[repairs[0].key] = EDIT_DENIED.format(denial)
    for position, (before, after) in enumerate(zip(fixes.results, results, strict=True)):
        fixed = [repair.violation for repair in repairs if repair.position == position]
        # The quota answers only where nothing else denies. Its answer does not make the edit wrong.
        is_asked_now = before.verdict is ManifestVerdict.DENIED or not fixed
        findings_after = [each for each in after.findings() if not (is_asked_now and _is_quota_denial(each))]
        if len(before.pods) > len(after.pods) or not is_better(before.findings(), findings_after, fixed):
            return False
    fixes.results, fixes.checked_manifests, fixes.texts = results, found, texts
    fixes.repaired += repairs
    return True


def _is_quota_denial(violation: Violation) -> bool:
    return violation.outcome is Outcome.DENIED and violation.finding.rule == GPU_QUOTA


def _denials(result: ManifestResult) -> dict[tuple[str, str], str]:
    """Return the denials of an object, by rule and reason, in words."""
    denied = (violation.finding for violation in result.findings() if violation.outcome is Outcome.DENIED)
    return {(denial.rule, denial.reason.name): denial.sentence() for denial in denied}
