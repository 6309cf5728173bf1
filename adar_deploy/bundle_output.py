"""What several commands print about a bundle: engine builds, comparisons with PyTorch, needed cell calls."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_deploy.console import Bar, print_facts, print_note, print_rows
from adar_deploy.formatting import percent, plain

if TYPE_CHECKING:
    from adar_export import Check, Trial
    from adar_runtime.backends.tensorrt.engines.options import BuildOptions
    from adar_runtime.backends.tensorrt.engines.sidecar import Sidecar
    from adar_runtime.bundle.manifest import Manifest
    from adar_train import Run

ENGINES = 4  # encoder, cell, head, and the clock of the loop on the GPU
EXPORT_CHECKS = 50  # comparisons and trials of an export, roughly: the export itself finds the exact number


@contextmanager
def readable(bundle: Path) -> Iterator[None]:
    """Turn errors in the manifest's descriptive fields into one clear error.

    The runtime does not use these fields and does not check them, so they may contain anything.
    """
    from adar_runtime.errors import BundleError, reason

    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise BundleError(
            f"{bundle}: the manifest has values that cannot be shown ({reason(error)}): export the run again"
        ) from error


def build_with_bar(bundle: Path, options: "BuildOptions") -> "tuple[list[Sidecar], dict[str, str]]":
    """Build engines while a bar shows the phases that TensorRT reports.

    Returns:
        The engines, and the default profiles that were left out, with the reasons.
    """
    from adar_runtime.backends.tensorrt.engines.build import build_engines
    from adar_runtime.backends.tensorrt.engines.model_shapes import ENCODER, usable_profiles
    from adar_runtime.bundle.onnx_facts import encodes_by_row
    from adar_runtime.bundle.pack import require_folder
    from adar_runtime.bundle.reading import read_bundle

    require_folder(bundle, "building engines")
    manifest, onnx_models = read_bundle(bundle)
    by_row = encodes_by_row(onnx_models[ENCODER])
    _, left_out = usable_profiles(manifest, options.profiles, by_row=by_row)
    started: list[str] = []
    with Bar("build engines", ENGINES, counted=False) as bar:

        def show(model: str, done: float, phase: str) -> None:
            if model not in started:
                started.append(model)
            bar.update(len(started) - 1 + done, f"{model}  {phase}")

        return build_engines(bundle, manifest, onnx_models, options, show), left_out


def export_with_bar(run: "Run", out: Path, *, shown: bool = True, **options: Any) -> "Manifest":
    """Export a run while a bar shows the comparisons. `options` are those of `adar_export.export_bundle`."""
    import adar_export

    with Bar("compare with PyTorch", EXPORT_CHECKS, shown=shown) as bar:
        done = 0

        def show(found: "Check | Trial") -> None:
            nonlocal done
            done += 1
            bar.update(done, _status(found))

        return adar_export.export_bundle(run, out, on_progress=show, **options)


def _status(found: "Check | Trial") -> str:
    from adar_export import Check

    if isinstance(found, Check):
        return f"{found.steps} steps: difference {found.relative:.0e}"
    return f"{found.solver}, {found.calls} calls: difference {found.change:.0e}"


def show_engines(bundle: Path, engines: "Sequence[Sidecar]", left_out: Mapping[str, str]) -> None:
    """The engines that were built, and the graph sizes that they accept."""
    from adar_runtime.backends.tensorrt.engines import FOLDER

    first, cell = engines[0], next(one for one in engines if one.onnx_model == "cell")
    print_facts(
        "built",
        {
            "folder": bundle / FOLDER,
            "builder": f"{first.builder} {first.version}",
            "GPUs": first.gpus,
            "precision": first.precision,
            "can be captured": capturable(cell),
        },
    )
    print_rows(["engine", "MB"], [(one.file, f"{one.bytes / 1e6:.1f}") for one in engines])
    rows = [
        (profile.name, profile.in_words, "unknown" if needed is None else f"{needed / 1e6:,.0f}")
        for profile, needed in cell.activation_by_profile()
    ]
    print_rows(["profile", "accepted graph sizes", "activation MB, at most"], rows)
    for name, why in left_out.items():
        print_note(f"the profile {name} was left out: at its largest sizes, {why}")


def capturable(cell: "Sidecar") -> str:
    """Whether a CUDA graph can capture steps of an engine, as far as the build tells."""
    from adar_runtime.backends.tensorrt.engines.packages import RTX

    if cell.package != RTX:
        return "decided at the first run"
    return "yes" if cell.user_allocation else "no: built without user allocation"


def show_parity(manifest: "Manifest") -> None:
    """The comparison with PyTorch, and how many cell calls each solver needs."""
    from adar_runtime.bundle.proven_solver import default_solver

    show_checks(manifest.parity.get("checks", []))
    found = manifest.convergence
    if found:
        print_facts(
            f"cell calls needed to match {found['reference']} Euler steps",
            {
                **found["calls"],
                "default solver (auto)": default_solver(manifest),
                "measured on": found["graph"],
                "order of convergence": f"{plain(found['order'])} (Euler's method on an ODE: 1)",
            },
        )


def show_checks(checks: Sequence[Mapping[str, Any]]) -> None:
    """A row for each comparison with PyTorch."""
    print_rows(
        [
            "compared with PyTorch on",
            "steps",
            "largest difference",
            "relative difference",
            "changed predictions",
            "stop step",
            "metric, all labels",
        ],
        [
            (
                check["graph"] if index == 0 or check["graph"] != checks[index - 1]["graph"] else "",
                check["steps"],
                f"{check['absolute']:.1e}",
                f"{check['relative']:.1e}",
                check["predictions"],
                _both(str(check["stop"]), str(check["reference_stop"])),
                _both(_metric(check["metric"]), _metric(check["reference_metric"])),
            )
            for index, check in enumerate(checks)
        ],
    )


def _both(ours: str, reference: str) -> str:
    """One value where the two agree, otherwise both."""
    return ours if ours == reference else f"{ours}, not {reference}"


def _metric(value: float | None) -> str:
    return "" if value is None else percent(value)
