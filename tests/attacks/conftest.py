import pytest


@pytest.fixture(params=[pytest.param(31, id="fast"), pytest.param(1, id="all", marks=pytest.mark.torture)])
def stride(request: pytest.FixtureRequest) -> int:
    """Distance between two damaged bytes: a prime in the fast tests, 1 in the torture tests."""
    return request.param
