"""One installation for all that doctor says of it: every fault is mended by whoever made it."""

from collections.abc import Iterator

import pytest

from tests.cluster.controllers import eventually
from tests.cluster.doctor.installation import Installation, installed


@pytest.fixture(scope="package")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with installed(tmp_path_factory.mktemp("documents")) as running:
        # Its controller leads a moment after it is ready.
        assert eventually(lambda: running.run()[1]["healthy"]), running.text()
        yield running
