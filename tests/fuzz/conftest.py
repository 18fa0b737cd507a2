from __future__ import annotations

import pytest

from tests.support.corpus import Corpus, make_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))
