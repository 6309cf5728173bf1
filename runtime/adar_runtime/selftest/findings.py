"""Results of the self-test: one line each, a Markdown block, and JSON."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from adar_runtime.errors import AdarError, reason

OnStep = Callable[[int], None]
"""Receives the number of steps that a run has made."""


class Status(StrEnum):
    PASS = "PASS"  # noqa: S105
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True)
class Finding:
    """One check: what was checked, how it ended, and its figures."""

    what: str
    status: Status
    detail: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status}  {self.what}" + (f": {self.detail}" if self.detail else "")


@dataclass
class Findings:
    """All checks so far.

    Attributes:
        on_finding: Receives each check as soon as it is known.
        on_progress: Receives what is running now, many times a second.
        found: The checks.
    """

    on_finding: Callable[[Finding], None] = lambda _finding: None
    on_progress: Callable[[str], None] = lambda _what: None
    found: list[Finding] = field(default_factory=list)

    def add(self, what: str, status: Status, detail: str = "", **figures: Any) -> None:
        finding = Finding(what, status, detail, figures)
        self.found.append(finding)
        self.on_finding(finding)

    def check(self, what: str, passed: bool, detail: str = "", **figures: Any) -> None:
        """Add a check that passed or failed."""
        self.add(what, Status.PASS if passed else Status.FAIL, detail, **figures)

    def skip(self, what: str, why: str) -> None:
        """Add a check that this machine cannot make."""
        self.add(what, Status.SKIP, why)

    def stepper(self, what: str) -> OnStep:
        """Report the steps of a run as progress."""
        return lambda step: self.on_progress(f"{what}: {step}")

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Turn an error inside the block into a failed check, so that the other checks still run."""
        try:
            yield
        except (AdarError, RuntimeError, MemoryError) as error:
            self.add(what, Status.FAIL, reason(error))

    @property
    def failed(self) -> bool:
        return any(one.status is Status.FAIL for one in self.found)

    @property
    def summary(self) -> str:
        """How many checks passed, failed and were skipped."""
        counts = Counter(one.status for one in self.found)
        return ", ".join(f"{counts[status]} {status}" for status in Status)


def as_markdown(environment: Mapping[str, Any], findings: Sequence[Finding], summary: str) -> str:
    """One block to paste into an issue."""
    facts = [f"{name}: {value}" for name, value in environment.items()]
    lines = [*facts, "", *map(str, findings), "", summary]
    return "\n".join(["### adar-deploy selftest", "", "```text", *lines, "```"])


def as_json(environment: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    """The same as a JSON object."""
    return {
        "environment": dict(environment),
        "failed": findings.failed,
        "summary": findings.summary,
        "checks": [asdict(one) | {"status": str(one.status)} for one in findings.found],
    }
