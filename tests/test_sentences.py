"""The program that changes each sentence of the product (tests/sentences.py) sees what tests miss, and what they do not."""

import pytest

from tests import sentence_reports
from tests.cases import cases
from tests.seed import SAID, SEED
from tests.sentence_reports import missed_by
from tests.sentences import changed, sampled, sentences, sentences_of

FIRST, SECOND = chr(0x20000), chr(0x20001)


@cases(
    ("operator", "left", "right", "want"),
    whole_text=("==", f"m{FIRST}st be one", "must be one", {FIRST}),
    in_a_list=("==", [f"m{FIRST}st be", f"one of th{SECOND}s"], ["must be", "one of this"], {FIRST, SECOND}),
    another_text=("==", f"m{FIRST}st be one", "must be two", set()),
    a_part=("in", "st be", f"it m{FIRST}st be one of th{SECOND}s", set()),
    the_changed_part=("in", "must be", f"it m{FIRST}st be one of th{SECOND}s", {FIRST}),
    an_item=("in", "must be", [f"m{FIRST}st be", "this"], {FIRST}),
    no_comparison_of_equals=("<", f"m{FIRST}st", "must", set()),
)
def test_what_a_failing_comparison_misses(
    operator: str, left: object, right: object, want: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentence_reports, "_LETTERS", {FIRST: "u", SECOND: "i"})

    assert missed_by(operator, left, right) == want


def test_a_sentence_is_changed_in_its_longest_word() -> None:
    assert changed("must be a whole number", FIRST) == f"must be a whole num{FIRST}er"
    assert changed(" of one", FIRST) == f" of o{FIRST}e"


def test_what_users_read_is_a_sentence() -> None:
    texts = [sentence.text for sentence in sentences_of("policies/rules/gpu_requests.py")]

    assert "must have an equal limit: GPUs cannot be overcommitted" in texts
    assert not [text for text in texts if text.startswith("Deny what")], "no docstring"
    assert len({sentence.text for sentence in sentences("policies")}) > 500


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_sample_of_all_sentences_is_asserted() -> None:
    """All of them: `make sentences`."""
    assert sampled(SEED, 40, print) == [], SAID
