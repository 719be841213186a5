"""What tests of several folders ask for."""

import pytest

from tests.chains import short_sequences


@pytest.fixture
def with_short_sequences():
    with short_sequences():
        yield
