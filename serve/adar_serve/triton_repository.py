"""Write a bundle as a model of NVIDIA's Triton server: a Python model with its configuration."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from adar_runtime.bundle.pack import encode, is_pack
from adar_runtime.bundle.reading import MARKER, files_of_pack, pack_bundle, read_bundle, read_manifest
from adar_runtime.errors import BundleError, UsageError
from adar_runtime.files import Marker, new_folder, write_file, writing
from adar_serve.models import Named, Port, input_ports, output_ports

PACK, MODEL, CONFIG, INSTRUCTIONS = "bundle.adar", "model.py", "config.pbtxt", "README.md"
VERSION = Marker(PACK, own=r"bundle\.adar|model\.py|__pycache__(/[\w.-]+\.pyc)?")
CODE = "from adar_serve.triton_model import TritonPythonModel\n\n__all__ = ['TritonPythonModel']\n"
CONFIGURATION = """\
name: "{name}"
backend: "python"
max_batch_size: 0
{ports}
instance_group [ {{ count: 1, kind: KIND_CPU }} ]
# Settings of the model; "0" threads is one per core.
parameters {{ key: "backend", value: {{ string_value: "auto" }} }}
parameters {{ key: "threads", value: {{ string_value: "0" }} }}
parameters {{ key: "max_steps", value: {{ string_value: "300" }} }}
"""
README = """\
# {name}

A model for NVIDIA's Triton server, written by `adar-deploy triton`. The Python backend of Triton runs it.

1. Install the runtime for the `python3` that Triton finds: `pip install 'adar-deploy[cpu]'`, or `[gpu]`.
2. Start `tritonserver --model-repository={repository}`.

`config.pbtxt` sets the backend, the threads, the budget of requests that name none (`max_steps`), and the
number of instances. Requests take the parameters `max_steps`, `exit` and `solver`.

| input | datatype | shape |
|---|---|---|
{inputs}

| output | datatype | shape |
|---|---|---|
{outputs}
"""


def write_triton_model(bundle: Named, repository: Path, *, overwrite: bool = False) -> Path:
    """Write a version of a model into a model repository.

    Args:
        bundle: The bundle, with the name and the version of the model. Triton's versions are whole numbers.
        repository: The folder of the repository; it may contain other models, and versions of this one.
        overwrite: Replace this version of the model, its configuration and its instructions (README.md).

    Returns:
        The folder of the version.

    Raises:
        BundleError: The folder is not a bundle, or its files were changed or are unsafe.
        UsageError: The version exists or is not a whole number, the configuration of the model is another
            one, or the folder cannot be written.
    """
    check = partial(check_version, bundle, repository, overwrite=overwrite)
    version = check()
    source, model = Path(bundle.folder), version.parent
    manifest, _ = read_bundle(source, whole=True)
    inputs, outputs = input_ports(manifest), output_ports(manifest)
    ports = "\n".join([*map(_input, inputs), *map(_output, outputs)])
    configuration = CONFIGURATION.format(name=bundle.name, ports=ports).encode()
    if not overwrite:
        _check_configuration(model / CONFIG, configuration)
    with new_folder(version, VERSION, check) as folder:
        if is_pack(source):
            (folder / PACK).write_bytes(encode(files_of_pack(source, manifest)))
        else:
            pack_bundle(source, folder / PACK)
            if read_manifest(folder / PACK).checksum != manifest.checksum:
                raise BundleError(f"{source} was replaced while it was read: run the command again")
        (folder / MODEL).write_text(CODE)
    write_file(model / CONFIG, configuration)
    if overwrite or not (model / INSTRUCTIONS).exists():  # people may edit it
        tables = {"inputs": _rows(inputs), "outputs": _rows(outputs)}
        text = README.format(name=bundle.name, repository=repository.name or ".", **tables)
        write_file(model / INSTRUCTIONS, text.encode())
    return version


def check_version(bundle: Named, repository: Path, *, overwrite: bool = False) -> Path:
    """The folder for a version of a model. Refuse one that exists, or that Triton cannot have."""
    if not bundle.version.isdecimal() or bundle.version.startswith("0"):
        raise UsageError(f"Triton's versions are whole numbers from 1, not {bundle.version!r}")
    version = repository / bundle.name / bundle.version
    for folder in (repository, version.parent):
        if MARKER.marks(folder) or folder.resolve() == Path(bundle.folder).resolve():
            raise UsageError(
                f"{folder} is a bundle: choose another --out, or another name of the model (NAME=BUNDLE)"
            )
    if (version / PACK).exists() and not overwrite:
        raise UsageError(f"{version} exists: write another version (NAME:2=BUNDLE), or use --overwrite")
    return version


def _check_configuration(path: Path, content: bytes) -> None:
    """Refuse to replace a configuration that somebody edited, or that is of another model."""
    with writing(path):
        if path.exists() and (not path.is_file() or path.read_bytes() != content):
            raise UsageError(
                f"{path} is of another model, or was edited: choose another name (NAME=BUNDLE), or "
                "replace it with --overwrite"
            )


def _input(port: Port) -> str:
    return f"input {{ {_port(port)}{', optional: true' if port.optional else ''} }}"


def _output(port: Port) -> str:
    return f"output {{ {_port(port)} }}"


def _port(port: Port) -> str:
    return f'name: "{port.name}", data_type: TYPE_{port.datatype}, dims: {json.dumps(list(port.shape))}'


def _rows(ports: Sequence[Port]) -> str:
    return "\n".join(
        f"| `{port.name}`{', optional' if port.optional else ''} | {port.datatype} | {list(port.shape)} |"
        for port in ports
    )
