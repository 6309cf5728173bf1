"""Run the self-test: every backend, precision and level that this machine has."""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from adar_runtime.backends import BACKENDS, CPU, TENSORRT, backend_problem
from adar_runtime.backends.tensorrt.engines.build import build_engines
from adar_runtime.backends.tensorrt.engines.options import BuildOptions
from adar_runtime.backends.tensorrt.engines.profiles import Profile
from adar_runtime.bundle.bundle import Bundle, load
from adar_runtime.bundle.pack import require_folder
from adar_runtime.bundle.reading import read_bundle, read_manifest
from adar_runtime.graph import Graph
from adar_runtime.selftest.accuracy import Reference, compare_backend
from adar_runtime.selftest.findings import Finding, Findings
from adar_runtime.selftest.graphs import selftest_graphs
from adar_runtime.selftest.packaged import unpack
from adar_runtime.selftest.stability import check_stability, step_times

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


def run_selftest(options: SelftestOptions, on_finding: Callable[[Finding], None]) -> Findings:
    """Run all checks that this machine can run; each of the others is a SKIP with its reason."""
    findings = Findings(on_finding)
    with TemporaryDirectory(prefix="adar-selftest-") as temporary:
        folder = Path(temporary)
        bundles = _bundles(options, folder)
        plain = PLAIN if PLAIN in bundles else next(iter(bundles))
        references: dict[Path, Reference] = {}
        for backend in reversed(BACKENDS):  # the CPU first
            problem = backend_problem(backend)
            if problem is not None:
                findings.skip(f"{backend}, {', '.join(bundles)}", problem)
                continue
            for name, path in bundles.items():
                with findings.failing(f"{backend}, {name}"):
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
        references[twin] = Reference(load(twin, CPU, threads=1))
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
    if manifest.precision == "bf16" and backend == CPU:
        findings.skip(title, "ONNX Runtime has no bfloat16 products on the CPU")
        return
    if reference is None:
        findings.skip(title, "no reference: ONNX Runtime has no bfloat16 products on the CPU")
        return
    graphs = selftest_graphs(manifest, options.nodes)
    if backend == TENSORRT:
        _build(title, path, graphs.values(), findings)
    started = time.perf_counter()
    bundle = load(path, backend)
    seconds = time.perf_counter() - started
    findings.check(f"{title}, load", passed=True, detail=f"{seconds:.2f} s", seconds=seconds)
    compare_backend(title, bundle, reference, graphs, findings)
    if thorough:
        check_stability(title, bundle, graphs, options.runs, findings)
        _time(title, bundle, reference.bundle, graphs, findings)


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


def _time(
    title: str, bundle: Bundle, reference: Bundle, graphs: Mapping[str, Graph], findings: Findings
) -> None:
    """Time per step beside that of the CPU. A comparison, not a test of speed."""
    for graph_name, graph in graphs.items():
        what = f"{title}, {graph_name} graph, microseconds a step"
        with findings.failing(what):
            ours, theirs = (np.quantile(step_times(one, graph), (0.5, 0.9)) for one in (bundle, reference))
            findings.check(
                what,
                passed=True,
                detail=f"p50 {ours[0]:.0f}, p90 {ours[1]:.0f}; CPU: {theirs[0]:.0f}, {theirs[1]:.0f}",
                p50=float(ours[0]),
                p90=float(ours[1]),
                cpu_p50=float(theirs[0]),
                cpu_p90=float(theirs[1]),
            )
