"""What `adar-deploy doctor` looks at. Everything that could crash is tried in a process of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path

from adar_deploy.doctor import cell, devices, machine, packages
from adar_deploy.doctor.findings import Finding, State, able

__all__ = ["Finding", "State", "able", "examine"]

Check = Callable[[], list[Finding]]


def examine(bundle: Path | None, on_check: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """All findings, in the order in which they are told."""
    found: list[Finding] = []
    for name, check in _checks(bundle):
        on_check(name)
        found += check()
    return found


CHECKS = 6  # at most: for a bar to know


def _checks(bundle: Path | None) -> Iterator[tuple[str, Check]]:
    yield "machine", machine.look
    yield "packages", packages.look
    yield "providers", devices.look_at_providers
    yield "GPU", devices.look_at_gpu
    yield "cell", cell.look
    if bundle is not None:
        yield "bundle", lambda: cell.look_at_bundle(bundle)
