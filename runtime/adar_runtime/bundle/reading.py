"""Read and check the files of a bundle, from its folder or from a pack."""

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote

from adar_runtime.bundle import known_models, onnx_guard, pack, run_files
from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.errors import BundleError, UsageError, reason
from adar_runtime.files import Marker, new_folder, read_bundle_file, write_file
from adar_runtime.loop.stopping import make_rule

MODELS = (*manifests.ONNX_MODELS, manifests.BATCHED_CELL, *(f"phase_{name}" for name in manifests.PHASES))
ENGINES = rf"{pack.ENGINES}(/[\w.-]+\.(engine|json|kernels|cache))?"
FILES = "|".join(
    [*map(re.escape, (manifests.FILE_NAME, *pack.OTHER_FILES, *(f"{name}.onnx" for name in MODELS))), ENGINES]
)
MARKER = Marker(manifests.FILE_NAME, manifests.FILE_KEY, own=FILES)
"""A folder with such a file is a bundle, and may be replaced by one if it has no other files."""


def is_bundle(path: Path) -> bool:
    """Whether this is meant as a bundle: a folder with a manifest, or a file."""
    return pack.is_pack(path) or (path / manifests.FILE_NAME).is_file()


def read_bundle(
    path: Path, *, allow_unknown_model: bool = False, whole: bool = False
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and its ONNX models, checked and not yet loaded.

    `whole` also checks the files of the batched cell and the phases, which other callers read on demand.
    """
    manifest = read_manifest(path)
    models = {name: onnx_guard.read_onnx_file(path, file) for name, file in manifest.onnx_models.items()}
    if not allow_unknown_model:
        known_models.check(manifest, models)
    for file in manifest.on_demand if whole else ():
        onnx_guard.read_onnx_file(path, file)
    return manifest, models


def read_manifest(path: Path) -> Manifest:
    """The manifest of the bundle in this folder or pack."""
    try:
        manifest = Manifest.from_json(_manifest_text(path))
        make_rule(manifest.exit)  # refuse an invalid rule before any work is done
    except (OSError, UnicodeDecodeError, BundleError, UsageError) as error:
        raise BundleError(f"{path}: {reason(error)}") from error
    return manifest


def _manifest_text(path: Path) -> str:
    if pack.is_pack(path):
        return pack.read_member(path, manifests.FILE_NAME, manifests.MAX_BYTES).decode("utf-8")
    file = path / manifests.FILE_NAME
    if not file.is_file():
        if (path / run_files.CONFIG).is_file() and (path / run_files.WEIGHTS).is_file():
            run = quote(str(path))
            raise BundleError(f"this is a training run; export it: adar-deploy export {run} --out bundle")
        missing = manifests.FILE_NAME if path.exists() else "folder"
        raise BundleError(f"not a bundle ({missing} not found): make one with adar-deploy export")
    return read_bundle_file(file, manifests.MAX_BYTES).decode("utf-8")


def pack_bundle(folder: Path, out: Path, check: Callable[[], object] = lambda: None) -> list[str]:
    """Write the bundle in a folder as one file. Equal bundles give equal files.

    Args:
        folder: The bundle. Its engines are left out.
        out: The file to write.
        check: May refuse the file at `out`, just before it is replaced.

    Returns:
        The names of the packed files.

    Raises:
        BundleError: The folder is not a bundle, or its files were changed or are unsafe.
        UsageError: The folder contains other files, or the file cannot be written.
    """
    pack.require_folder(folder, "packing")
    # Pack nothing that cannot be loaded.
    manifest, _ = read_bundle(folder, allow_unknown_model=True, whole=True)
    files = pack.files_of(folder, manifest)
    _check_same(folder, manifest, files)
    write_file(out, pack.encode(files), check)
    return list(files)


def _check_same(bundle: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Refuse other files than those that were checked: another command may have replaced the bundle."""
    found = Manifest.from_json(files[manifests.FILE_NAME].decode("utf-8"))
    models = (*manifest.onnx_models.values(), *manifest.on_demand)
    if found.checksum != manifest.checksum or any(
        hashlib.sha256(files.get(model.file, b"")).hexdigest() != model.sha256 for model in models
    ):
        raise BundleError(f"{bundle} was replaced while it was read: run the command again")


def read_pack(path: Path, *, allow_unknown_model: bool = False) -> dict[str, bytes]:
    """The contents of all files of a pack, after the bundle in it was checked. Other files are refused."""
    manifest, _ = read_bundle(path, allow_unknown_model=allow_unknown_model, whole=True)
    return files_of_pack(path, manifest)


def files_of_pack(path: Path, manifest: Manifest) -> dict[str, bytes]:
    """The contents of all files of a pack that `read_bundle` checked as a whole. Other files are refused."""
    known = {manifests.FILE_NAME, *pack.OTHER_FILES, *manifest.file_names()}
    try:
        files = pack.read_members(path, known)
    except (OSError, BundleError) as error:
        raise BundleError(f"{path}: {reason(error)}") from error
    _check_same(path, manifest, files)
    return files


def unpack_bundle(path: Path, out: Path, *, overwrite: bool = False) -> list[str]:
    """Write the files of a pack into a folder, after all of them were checked.

    Args:
        path: A file of `pack_bundle`.
        out: The folder to write.
        overwrite: Replace the bundle in this folder.

    Returns:
        The names of the files.

    Raises:
        BundleError: The file is not a pack, or the bundle in it cannot be loaded.
        UsageError: The folder exists, or cannot be written.
    """
    if not pack.is_pack(path):
        raise BundleError(f"{path}: not a packed bundle: give a file of adar-deploy pack")

    def check_free() -> None:
        if (out / manifests.FILE_NAME).is_file() and not overwrite:
            raise UsageError(f"{out} contains a bundle: choose another --out, or replace it with --overwrite")

    check_free()
    files = read_pack(path, allow_unknown_model=True)
    with new_folder(out, MARKER, check_free) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
    return list(files)
