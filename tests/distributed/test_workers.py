"""The options --workers and --ray, without a cluster."""

from pathlib import Path

import pytest

from adar_runtime.distributed.cluster import check_workers
from adar_runtime.errors import UsageError
from adar_serve import Settings
from adar_serve.ray_serve import serve_on_ray


@pytest.mark.parametrize("workers", ["auto", "1", "16", "ray://10.0.0.1:10001"])
def test_workers(workers: str) -> None:
    check_workers(workers)


@pytest.mark.parametrize("workers", ["0", "-1", "many", "", "1.5", "http://host", "999999999"])
def test_other_words_are_refused(workers: str) -> None:
    with pytest.raises(UsageError, match="--workers takes"):
        check_workers(workers)


@pytest.mark.parametrize(
    ("address", "settings", "message"),
    [
        ("many", Settings(), "--ray takes"),
        ("auto", Settings(model_control=True), "--ray does not take --model-control"),
        ("auto", Settings(tls_cert=Path("a"), tls_key=Path("b")), "--ray does not take --tls-cert"),
    ],
)
def test_what_ray_serve_does_not_do_is_refused_before_a_cluster_starts(
    address: str, settings: Settings, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        serve_on_ray(address, ["bundle"], settings, {})
