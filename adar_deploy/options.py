"""Options that several commands have: one name, one meaning, one help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

BundleArgument = Annotated[Path, typer.Argument(help="Folder of an exported bundle.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
MaxSteps = Annotated[int, typer.Option(help="Budget: the most steps, hence cell calls.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything random.")]
Split = Annotated[int, typer.Option(min=0, help="Which of a graph's splits.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads of ONNX Runtime.", show_default="one a core")
]


class Backend(StrEnum):
    auto = "auto"
    onnxruntime_cpu = "onnxruntime-cpu"
    onnxruntime_cuda = "onnxruntime-cuda"
    tensorrt = "tensorrt"


class SolverName(StrEnum):
    euler = "euler"
    ab2 = "ab2"
    adaptive = "adaptive"


class PrecisionName(StrEnum):
    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"


def is_typed(ctx: typer.Context, parameter: str) -> bool:
    """Whether the user said it, on the command line or in the environment.

    A file in the working folder may have come with somebody's bundle: it may choose, and must not vouch.
    """
    source = ctx.get_parameter_source(parameter)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
