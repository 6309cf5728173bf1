"""The Python model of Triton: `model.py` of a repository that `adar-deploy triton` wrote imports this class.

Tensors cross the border as DLPack: `as_numpy` and `Tensor(name, array)` of Triton 2.51 corrupt the arrays of
numpy 2.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adar_runtime import AdarError, load
from adar_serve.inference import OPTIONS, answer, check_request, run_options
from adar_serve.limits import Limits
from adar_serve.messages import Arrays, InferRequest
from adar_serve.models import Model
from adar_serve.refusals import RefusedError, refusal
from adar_serve.triton_repository import PACK


class TritonPythonModel:
    """A bundle, under the names that Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle beside `model.py`, with the settings in `config.pbtxt`."""
        listed = json.loads(args["model_config"]).get("parameters", {})
        settings = {name: value["string_value"] for name, value in listed.items()}
        folder = Path(args["model_repository"]) / args["model_version"]
        threads = int(settings.get("threads", 0)) or None
        bundle = load(folder / PACK, settings.get("backend", "auto"), threads)
        self._model = Model(args["model_name"], args["model_version"], bundle)
        self._max_steps, self._limits = int(settings.get("max_steps", 300)), Limits()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request. An error is the answer to its own request only."""
        import triton_python_backend_utils as triton  # exists inside Triton only

        found = []
        for request in requests:
            try:
                outputs = self._outputs(request)
                tensors = [triton.Tensor.from_dlpack(name, array) for name, array in outputs.items()]
                found.append(triton.InferenceResponse(tensors))
            except RefusedError as refused:
                found.append(triton.InferenceResponse([], triton.TritonError(refused.message)))
        return found

    def _outputs(self, request: Any) -> Arrays:
        model = self._model
        inputs = {tensor.name(): np.from_dlpack(tensor) for tensor in request.inputs()}
        wanted = dict.fromkeys(request.requested_output_names())
        asked = InferRequest(inputs, json.loads(request.parameters() or "{}"), wanted)
        check_request(model, asked, self._limits, OPTIONS)
        try:
            options = run_options(asked, self._limits, self._max_steps)
            result = model.bundle.run(model.graph(inputs), **options)
        except AdarError as error:
            raise refusal(error) from error
        outputs = answer(model, asked, result).outputs
        return {name: np.ascontiguousarray(array) for name, array in outputs.items()}
