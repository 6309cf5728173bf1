"""The commands `adar-deploy pack` and `adar-deploy unpack`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from adar_deploy.console import print_facts, print_next
from adar_deploy.options import Json, Overwrite


def pack(
    bundle: Annotated[Path, typer.Argument(help="Folder of an exported bundle.")] = Path("bundle"),
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write: .adar.", show_default="the bundle's folder with .adar"
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file that --output names.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a bundle as one file, which run, evaluate, inspect and other commands open as it is.

    The file is a plain zip archive without compression. Equal bundles give equal files. Engines are left
    out: each machine builds its own. A signature (model.sig) is packed and stays valid after unpack.

    Example: adar-deploy pack bundle -o boards-2.1.0.adar

    Example: adar-deploy run graph.npz --bundle boards-2.1.0.adar
    """
    from adar_runtime.bundle.pack import SUFFIX
    from adar_runtime.bundle.reading import pack_bundle
    from adar_runtime.errors import UsageError
    from adar_runtime.files import check_writable

    target = output or Path(f"{bundle.resolve().name}{SUFFIX}")
    if target.suffix != SUFFIX:
        raise UsageError(f"{target}: a packed bundle is a {SUFFIX} file, not {target.suffix or 'nothing'!r}")
    check_writable(target)

    def check_free() -> None:
        if target.exists() and not overwrite:
            raise UsageError(f"{target} exists: choose another --output, or replace it with --overwrite")

    check_free()
    files = pack_bundle(bundle, target, check_free)
    size = target.stat().st_size
    if as_json:
        typer.echo(json.dumps({"bundle": str(bundle), "pack": str(target), "bytes": size, "files": files}))
        return
    facts = {"bundle": bundle, "pack": target, "size": f"{size / 1e6:.1f} MB", "files": ", ".join(files)}
    print_facts("packed", facts)
    print_next("run", "GRAPH", "--bundle", target)


def unpack(
    pack: Annotated[Path, typer.Argument(help="File of adar-deploy pack.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write.", show_default="the file's name without .adar"),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write the files of a packed bundle into a folder, after all of them were checked.

    build, sign and verify need a folder. Nothing else does.

    Example: adar-deploy unpack boards-2.1.0.adar --out bundle
    """
    from adar_runtime.bundle.pack import SUFFIX
    from adar_runtime.bundle.reading import unpack_bundle
    from adar_runtime.errors import UsageError

    if out is None and pack.suffix != SUFFIX:
        raise UsageError(f"{pack} does not end with {SUFFIX}: name the folder with --out")
    folder = out or Path(pack.stem)
    files = unpack_bundle(pack, folder, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps({"pack": str(pack), "bundle": str(folder), "files": files}))
        return
    print_facts("unpacked", {"pack": pack, "bundle": folder, "files": ", ".join(files)})
    print_next("run", "GRAPH", "--bundle", folder)
