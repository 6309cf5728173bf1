"""The option --workers, without a cluster."""

import pytest

from adar_runtime.distributed.cluster import check_workers
from adar_runtime.errors import UsageError


@pytest.mark.parametrize("workers", ["auto", "1", "16", "ray://10.0.0.1:10001"])
def test_workers(workers: str) -> None:
    check_workers(workers)


@pytest.mark.parametrize("workers", ["0", "-1", "many", "", "1.5", "http://host", "999999999"])
def test_other_words_are_refused(workers: str) -> None:
    with pytest.raises(UsageError, match="--workers takes"):
        check_workers(workers)
