"""Bundles on the Hugging Face hub: `hf://owner/name`, or `hf://owner/name@revision`.

Nothing here is used unless such an address is given. A downloaded bundle is checked like any other.
"""

import logging
import os
import re
from importlib.util import find_spec
from pathlib import Path

from adar_runtime.bundle import manifest as manifests
from adar_runtime.bundle.pack import OTHER_FILES
from adar_runtime.errors import BundleError, MissingExtraError, UsageError, reason, short

ADDRESS = r"hf:/{1,2}([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?/?"  # a Path has turned the two slashes into one
DOWNLOADED = [manifests.FILE_NAME, "*.onnx", *OTHER_FILES]  # no engines: they are programs


def is_address(path: str | Path) -> bool:
    """Whether this names a bundle on the hub."""
    return str(path).startswith("hf:/")


def local_path(path: str | Path) -> Path:
    """The path of a bundle, which is downloaded if it is on the hub.

    Raises:
        UsageError: Neither a path nor an address was given.
    """
    if not isinstance(path, str | os.PathLike):
        found = short(type(path).__name__)
        raise UsageError(f"a bundle is named by a path, not by {found}: give its folder, such as 'bundle'")
    return fetch(path) if is_address(path) else Path(path)


def fetch(address: str | Path) -> Path:
    """Download a bundle, or find it in the local cache.

    Returns:
        A folder in the cache of the user (`XDG_CACHE_HOME`, or ~/.cache).

    Raises:
        UsageError: The address is not valid.
        MissingExtraError: huggingface_hub is not installed.
        BundleError: The bundle could not be downloaded.
    """
    found = re.fullmatch(ADDRESS, str(address))
    if not found:
        raise UsageError(f"{short(str(address))} is not an address such as hf://owner/name@revision")
    if find_spec("huggingface_hub") is None:
        raise MissingExtraError("loading a bundle from the Hugging Face hub", "hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    name, revision = found.groups()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Files in the hub's own cache are links, which a bundle may not contain; those in a local_dir are not.
    folder = cache / "adar-deploy" / "hub" / re.sub(r"[/@]", "--", str(address).partition("/")[2].strip("/"))
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt
    disable_progress_bars()
    try:
        return Path(
            snapshot_download(name, revision=revision, local_dir=folder, allow_patterns=list(DOWNLOADED))
        )
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        raise BundleError(
            f"{short(str(address))} could not be downloaded ({reason(error)}): check the address and the "
            "network, or download it elsewhere with hf download and give the folder"
        ) from error
