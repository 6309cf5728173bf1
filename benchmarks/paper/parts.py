"""The parts by name, in the order in which they run."""

from benchmarks.paper import ablations, compute, more, theory, transductive, zero_shot
from benchmarks.paper.tasks import Part

PARTS: dict[str, Part] = {
    module.PART.name: module.PART for module in (more, theory, transductive, ablations, compute, zero_shot)
}
