"""The command `adar-deploy selftest`."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from adar_deploy.console import Bar, err
from adar_deploy.environment import environment, package_version
from adar_deploy.options import Json
from adar_deploy.paths import check_output

GPU_PACKAGES = ("tensorrt", "tensorrt-rtx", "cuda-python", "onnxruntime-gpu")
FAILED = 1  # exit code


def selftest(
    bundle: Annotated[
        Path | None,
        typer.Argument(help="Folder of an exported bundle.", show_default="small ones in the package"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write all figures to this .json file.", show_default="no file"),
    ] = None,
    nodes: Annotated[int, typer.Option(min=10, help="Nodes of the large graph.")] = 100_000,
    runs: Annotated[int, typer.Option(min=1, help="Runs that must not use more and more memory.")] = 200,
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the node level in fp32, with a large graph of 5,000 nodes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare every backend of this machine with ONNX Runtime on the CPU, and print a block for an issue.

    Each line is PASS, FAIL, or SKIP with the reason. With TensorRT, engines are built in a temporary folder.
    Neither PyTorch nor data are needed.

    Exit codes: 0 no check failed; 1 a check failed; 2 an error.

    Example: adar-deploy selftest --output selftest.json

    Example: adar-deploy selftest bundle --quick
    """
    from adar_runtime.files import write_file
    from adar_runtime.selftest.findings import as_json as to_json
    from adar_runtime.selftest.findings import as_markdown
    from adar_runtime.selftest.run import SelftestOptions, run_selftest

    if output is not None:
        check_output(output)
    facts = environment() | _gpu_facts()

    with Bar("selftest", 1, counted=False, shown=err.is_terminal and not as_json) as bar:

        def show(line: object) -> None:
            if not as_json:
                with bar.hidden():
                    typer.echo(str(line))

        def show_progress(done: int, total: int, what: str) -> None:
            bar.update(done / total, what)

        for name, value in facts.items():
            show(f"{name}: {value}")
        size = min(nodes, 5_000) if quick else nodes
        findings = run_selftest(SelftestOptions(bundle, size, runs, quick), show, show_progress)
    report = json.dumps(to_json(facts, findings), indent=1)
    if output is not None:
        write_file(output, report.encode())
    if as_json:
        typer.echo(report)
    else:
        typer.echo("\nPaste this block into an issue:\n")
        typer.echo(as_markdown(facts, findings.found, findings.summary))
    if findings.failed:
        raise typer.Exit(FAILED)


def _gpu_facts() -> dict[str, Any]:
    """GPUs and driver, as nvidia-smi reports them, and the versions of the packages for GPUs."""
    versions = {name: package_version(name) for name in GPU_PACKAGES}
    return {"GPU": _gpus()} | {name: found for name, found in versions.items() if found is not None}


def _gpus() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "none (nvidia-smi not found)"
    query = [program, "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return "; ".join(done.stdout.strip().splitlines()) or "none (nvidia-smi lists no GPU)"
