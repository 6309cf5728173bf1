"""The runtime inside a FastAPI app.

The app opens one bundle once. A request is the bytes of an `.npz` file; the response names the step used.

    pip install fastapi uvicorn
    ADAR_BUNDLE=bundle uvicorn examples.serve:app
    curl --data-binary @graph.npz 'localhost:8000/predict?budget=100'
"""

import os
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool

from adar_runtime import AdarError, load, read_graph

MAX_UPLOAD = 64 * 2**20  # bytes of a request; ADAR_MAX_BYTES limits the unpacked size
MAX_BUDGET = 1000  # most steps per request

app = FastAPI(title="adar-deploy")
bundle = load(os.environ.get("ADAR_BUNDLE", "bundle"), threads=1)
one_at_a_time = threading.Lock()  # one process per core serves more than waiting threads


@app.get("/health")
def health() -> dict[str, str]:
    """The backend, and what the bundle predicts."""
    return {"backend": bundle.backend.name, "predicts": bundle.manifest.level}


@app.post("/predict")
async def predict(
    request: Request, budget: Annotated[int, Query(ge=1, le=MAX_BUDGET)] = 100
) -> dict[str, Any]:
    """Read a graph, check it and return its predictions."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MAX_UPLOAD:
            raise HTTPException(413, f"the file is too large: at most {MAX_UPLOAD:,} bytes")
    return await run_in_threadpool(infer, content, budget)


def infer(content: bytes, budget: int) -> dict[str, Any]:
    """Run the bundle. Errors about the graph go to the client: their messages say what to do."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.npz"
            path.write_bytes(content)
            graph = read_graph(path)
        with one_at_a_time:
            result = bundle.run(graph, budget)
    except AdarError as error:
        raise HTTPException(422, str(error).replace(f"{folder}/", "")) from error
    return {
        "predictions": result.predictions.tolist(),
        "best_step": result.best_step,
        "stop_reason": result.stop_reason.value,
        "seconds": round(result.seconds, 4),
    }
