"""What doctor says to do is true: once it is done, by each alternative, the check does not find the same any more."""

from pathlib import Path

import pytest

from tests.webhook.tools.doctor.followed import Row
from tests.webhook.tools.doctor.followed_installation import ALL_FOLLOWED
from tests.webhook.tools.installed_clusters import checked


@pytest.mark.parametrize("row", ALL_FOLLOWED.values(), ids=ALL_FOLLOWED)
def test_what_doctor_says_to_do_ends_its_finding(row: Row, tmp_path: Path) -> None:
    found = checked(row.check, row.before, tmp_path)
    (finding,) = (each for each in found.findings if each.remedy == row.remedy)
    assert row.after

    for number, after in enumerate(row.after):
        (folder := tmp_path / str(number)).mkdir()
        result = checked(row.check, after, folder)
        assert (result.not_checked, [each.id for each in result.findings if each.id == finding.id]) == (
            (),
            [],
        )
