import pytest


@pytest.fixture(params=[pytest.param(31, id="fast"), pytest.param(1, id="all", marks=pytest.mark.torture)])
def stride(request: pytest.FixtureRequest) -> int:
    """How many bytes lie between two that are damaged: a prime where not all of them are."""
    return request.param
