"""The parts by name, in the order in which they run."""

from benchmarks.paper import more
from benchmarks.paper.tasks import Part

PARTS: dict[str, Part] = {part.name: part for part in (more.PART,)}
