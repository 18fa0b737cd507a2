from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.servers import S3Server, forgetful_s3, seaweedfs
from tiltyard.storage.probe import forget

BUCKET = "tables"
_numbers = count(1)


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture(scope="session")
def forgetful_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with forgetful_s3(tmp_path_factory.mktemp("forgetful")) as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture
def fresh_s3_uri() -> str:
    """A place in the bucket that no other test uses."""
    return f"s3://{BUCKET}/table-{next(_numbers)}"


@pytest.fixture
def nothing_known_of_stores() -> Iterator[None]:
    forget()
    yield
    forget()
