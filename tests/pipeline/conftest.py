from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pipelines import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "landing").mkdir()
    return Bench(tmp_path)
