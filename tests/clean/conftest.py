import pytest
from fresh_process import QUICK


@pytest.fixture(
    params=[{"XLA_FLAGS": QUICK}, pytest.param({}, marks=pytest.mark.slow)], ids=["quick", "as users compile"]
)
def flags(request):
    """The environment of a fresh process: compiled quickly, and in the slow suite as it comes."""
    return request.param
