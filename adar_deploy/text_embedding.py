"""Texts -> numbers, by a model of sentence-transformers: the only use of that package."""

import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime.errors import MissingExtraError, UsageError, reason
from adar_runtime.graph import Floats

MODEL = "all-MiniLM-L6-v2"
OWNER = "sentence-transformers"  # of models that are named without one
BATCHES = 8  # encoded between two looks at the progress
# Weights that are data and not code, and what a tokenizer needs; other formats of the same are large.
WANTED = ("*.json", "*.txt", "*.model", "*.safetensors")
UNWANTED = ("onnx/*", "openvino/*")


class Embedder:
    """A sentence-transformers model from a folder, from the cache or, with a network, from the hub."""

    def __init__(self, model: str = MODEL, device: str | None = None) -> None:
        if find_spec("sentence_transformers") is None:
            raise MissingExtraError("embedding texts", "text")
        from sentence_transformers import SentenceTransformer

        folder = _folder(model)
        try:
            self._model: Any = SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UsageError(
                f"{model} holds no sentence-transformers model that can be read ({reason(error)})"
            ) from error

    def __call__(
        self, texts: Sequence[str], batch_size: int = 32, on_texts: Callable[[int], None] = lambda _: None
    ) -> Floats:
        """Rows of length 1 [n, f], one a text; `on_texts` is told how many are done."""
        rows = []
        for start in range(0, len(texts), BATCHES * batch_size):
            part = list(texts[start : start + BATCHES * batch_size])
            rows.append(
                self._model.encode(
                    part,
                    batch_size=batch_size,
                    normalize_embeddings=True,
                    convert_to_numpy=True,
                    show_progress_bar=False,
                )
            )
            on_texts(start + len(part))
        return np.concatenate(rows).astype(np.float32)


def _folder(model: str) -> Path:
    """Where the model's files are, fetched if they have to be."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    name = model if "/" in model else f"{OWNER}/{model}"
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it would tell of every attempt
    try:
        return Path(snapshot_download(name, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)))
    except (HFValidationError, HfHubHTTPError, OSError) as error:
        raise UsageError(
            f"the model {model} is no folder here and could not be fetched ({reason(error)}): where there is "
            f"a network, run hf download {name} --local-dir model, bring that folder and give --model model"
        ) from error
