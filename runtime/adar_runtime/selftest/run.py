"""Run the self-test: every backend, precision and level that this machine has."""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from adar_runtime.backends import BACKENDS, CPU, CUDA, TENSORRT, backend_problem
from adar_runtime.backends.tensorrt.device import compute_capabilities
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.backends.tensorrt.engines.packages import RTX, load_package
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.backends.tensorrt.engines.sidecar import PORTABLE
from adar_runtime.bundle.bundle import load
from adar_runtime.bundle.pack import require_folder
from adar_runtime.bundle.reading import read_bundle, read_manifest
from adar_runtime.graph import Graph
from adar_runtime.selftest.accuracy import Reference, compare_backend
from adar_runtime.selftest.findings import Finding, Findings
from adar_runtime.selftest.graphs import selftest_graphs
from adar_runtime.selftest.packaged import unpack
from adar_runtime.selftest.stability import check_stability

PLAIN = "node fp32"  # the bundle with which speed and stability are checked


@dataclass(frozen=True)
class SelftestOptions:
    """How much is tested.

    Attributes:
        bundle: The user's bundle; None for those of the package.
        nodes: Nodes of the large graph.
        runs: Runs without growth of memory.
        quick: Only one bundle of the package, at the node level in fp32.
    """

    bundle: Path | None = None
    nodes: int = 100_000
    runs: int = 200
    quick: bool = False


Progress = Callable[[int, int, str], None]
"""Receives how many pairs of a backend and a bundle are done, of how many, and what is running now."""


def run_selftest(
    options: SelftestOptions,
    on_finding: Callable[[Finding], None],
    on_progress: Progress = lambda _done, _total, _what: None,
) -> Findings:
    """Run all checks that this machine can run; each of the others is a SKIP with its reason."""
    findings = Findings(on_finding)
    with TemporaryDirectory(prefix="adar-selftest-") as temporary:
        folder = Path(temporary)
        bundles = _bundles(options, folder)
        plain = PLAIN if PLAIN in bundles else next(iter(bundles))
        references: dict[Path, Reference] = {}
        problems = {backend: backend_problem(backend) for backend in reversed(BACKENDS)}  # the CPU first
        for backend, problem in problems.items():
            if problem is not None:
                findings.skip(f"{backend}, {', '.join(bundles)}", problem)
        tested = [
            (backend, name) for backend, problem in problems.items() if problem is None for name in bundles
        ]
        for done, (backend, name) in enumerate(tested):
            findings.on_progress = partial(on_progress, done, len(tested))
            with findings.failing(f"{backend}, {name}"):
                path = bundles[name]
                reference = _reference(bundles, path, references)
                _check(backend, name, path, reference, options, findings, thorough=name == plain)
    return findings


def _bundles(options: SelftestOptions, folder: Path) -> dict[str, Path]:
    """Copies, because engines are built beside the models."""
    if options.bundle is None:
        found = unpack(folder)
        return {PLAIN: found[PLAIN]} if options.quick else found
    require_folder(options.bundle, "the self-test")
    manifest = read_manifest(options.bundle)
    copy = folder / "bundle"
    shutil.copytree(options.bundle, copy, ignore=shutil.ignore_patterns("engines"))
    return {f"{manifest.level} {manifest.precision}": copy}


def _reference(
    bundles: Mapping[str, Path], path: Path, references: dict[Path, Reference]
) -> Reference | None:
    """What to compare a bundle with: the CPU, for bf16 with the same model in fp32; None if there is none."""
    manifest = read_manifest(path)
    twin = path if manifest.precision != "bf16" else bundles.get(f"{manifest.level} fp32")
    if twin is None:
        return None
    if twin not in references:
        references[twin] = Reference(load(twin, CPU))
    return references[twin]


def _check(
    backend: str,
    name: str,
    path: Path,
    reference: Reference | None,
    options: SelftestOptions,
    findings: Findings,
    *,
    thorough: bool,
) -> None:
    """Check one backend with one bundle."""
    title, manifest = f"{backend}, {name}", read_manifest(path)
    unsupported = _unsupported(backend, manifest.precision)
    if unsupported is not None:
        findings.skip(title, unsupported)
        return
    if reference is None:
        findings.skip(title, "no reference: ONNX Runtime has no bfloat16 products on the CPU")
        return
    graphs = selftest_graphs(manifest, options.nodes)
    if backend == TENSORRT:
        _build(title, path, graphs.values(), findings)
    started = time.perf_counter()
    # The CPU itself is tested on one thread: its reference uses all cores.
    bundle = load(path, backend, threads=1 if backend == CPU else None)
    seconds = time.perf_counter() - started
    findings.check(f"{title}, load", passed=True, detail=f"{seconds:.2f} s", seconds=seconds)
    compare_backend(title, bundle, reference, graphs, findings)
    if thorough:
        check_stability(title, bundle, graphs, options.runs, findings)


def _unsupported(backend: str, precision: str) -> str | None:
    """Why this backend cannot run bundles of this precision on this machine; None if it can."""
    if backend == CPU:
        return "ONNX Runtime has no bfloat16 products on the CPU" if precision == "bf16" else None
    if backend not in (CUDA, TENSORRT):
        return None
    capability = next(iter(compute_capabilities()), PORTABLE)
    if capability >= PORTABLE:
        return None
    if precision == "bf16":
        return f"bfloat16 needs compute capability 8.0, and this GPU has {capability / 10}"
    if backend == TENSORRT and load_package().name == RTX:
        return f"engines of TensorRT-RTX need compute capability 8.0, and this GPU has {capability / 10}"
    return None


def _build(title: str, path: Path, graphs: Iterable[Graph], findings: Findings) -> None:
    """Build engines for the shapes of the graphs."""
    options = BuildOptions(profiles=tuple(Profile.around(graph) for graph in graphs))
    started = time.perf_counter()
    built = build_engines(path, *read_bundle(path), options)
    seconds = time.perf_counter() - started
    cell = next(one for one in built if one.onnx_model == "cell")
    needed = max(cell.activation_bytes, default=0)
    detail = f"{seconds:.1f} s with {cell.builder} {cell.version}, {needed / 1e6:.0f} MB of activation memory"
    findings.check(f"{title}, build", passed=True, detail=detail, seconds=seconds, activation_bytes=needed)
