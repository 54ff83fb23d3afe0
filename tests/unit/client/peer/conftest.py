"""The authority that certifies the peers of a test, and what one of them is handed."""

import pytest

from tests.certificates import Authority
from tests.peers import Receiver


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()
