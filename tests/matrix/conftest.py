"""One workshop for all tests of a process: templates are made and operations captured once."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.support.real_checks")

from tests.support.real_tables import Workshop  # noqa: E402


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))
