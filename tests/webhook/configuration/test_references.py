"""References between documents, where a document that they need cannot be read."""

from pathlib import Path

import pytest

from tests.webhook.configuration.written import HEAD, policy, write
from webhook.configuration.loader import ConfigurationError, load_directory


@pytest.mark.parametrize("key", ["null", "2026-11-30", "4.5"])
def test_a_class_that_a_document_with_an_odd_key_may_define(tmp_path: Path, key: str) -> None:
    """Its own problem is said, and not that nothing has the class."""
    broken = f"{HEAD}kind: GPUClass\nmetadata: {{name: own-card}}\nspec: {{memoryGiB: 80, ? {key} : 1}}\n"
    write(tmp_path, card=broken, policy=policy("{rules: {gpu-class: {default: own-card}}}"))

    with pytest.raises(ConfigurationError) as raised:
        load_directory(tmp_path)

    assert all("GPUClass" in str(problem) for problem in raised.value.problems), raised.value
