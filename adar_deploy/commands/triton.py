"""The command `adar-deploy triton`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.console import print_facts
from adar_deploy.options import Json, Overwrite


def triton(
    bundle: Annotated[
        str,
        typer.Argument(
            help="Folder or .adar file of a bundle. NAME=BUNDLE or NAME:VERSION=BUNDLE names the model."
        ),
    ] = "bundle",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the model repository.")] = Path(
        "models"
    ),
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a bundle into a model repository of NVIDIA's Triton server.

    The model runs in Triton's Python backend, which needs adar-deploy for its python3. The repository may
    contain other models, and other versions of this one.

    Example: adar-deploy triton bundle --out models

    Example: adar-deploy triton spam:2=newer.adar --out models
    """
    from adar_serve.models import named
    from adar_serve.triton_repository import write_triton_model

    chosen = named(bundle)
    folder = write_triton_model(chosen, out, overwrite=overwrite)
    facts = {"model": chosen.name, "version": chosen.version, "folder": str(folder)}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    print_facts("written", facts | {"start": f"tritonserver --model-repository={out}"})
