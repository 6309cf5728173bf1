"""The server that many tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adar_serve import Limits, Settings
from tests.serve.servers import Running, running


@pytest.fixture(scope="session")
def served(bundle_folder: Path, described_bundle: Path) -> Iterator[Running]:
    limits = Limits(body=4, unpacked=8, nodes=5000, edges=20_000, classes=9, steps=2_000_000, graphs=1)
    settings = Settings(port=0, grpc_port=0, limits=limits, drain_seconds=0)
    with running([f"board={bundle_folder}", f"described={described_bundle}"], settings) as found:
        yield found
