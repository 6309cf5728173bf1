"""The runtime inside a FastAPI app.

One bundle, opened once. A graph is sent as the bytes of an `.npz`; the answer says which step it is from.

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

MAX_UPLOAD = 64 * 2**20  # bytes of a file; what it may unpack to is ADAR_MAX_BYTES
MAX_BUDGET = 1000  # steps that a caller may ask for

app = FastAPI(title="adar-deploy")
bundle = load(os.environ.get("ADAR_BUNDLE", "bundle"), threads=1)
one_at_a_time = threading.Lock()  # a process a core serves more than threads that wait for each other


@app.get("/health")
def health() -> dict[str, str]:
    """What is being served, and on what."""
    return {"backend": bundle.backend.name, "predicts": bundle.manifest.level}


@app.post("/predict")
async def predict(
    request: Request, budget: Annotated[int, Query(ge=1, le=MAX_BUDGET)] = 100
) -> dict[str, Any]:
    """Read, check and answer a graph."""
    content = b""
    async for part in request.stream():
        content += part
        if len(content) > MAX_UPLOAD:
            raise HTTPException(413, f"a graph file may have {MAX_UPLOAD:,} bytes")
    return await run_in_threadpool(answer, content, budget)


def answer(content: bytes, budget: int) -> dict[str, Any]:
    """What is wrong with a graph is the caller's to know: the message says what to do."""
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
