"""A bundle without adar-deploy, in 35 lines.

Only ONNX Runtime and numpy: a bundle with learned targets, Euler's method, the result at t = 1. This code
copies every state in every step, and its neighbour table is huge if one node has many neighbours.
`adar_runtime` avoids both.

    python examples/plain_onnxruntime.py bundle graph.npz 100
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

STATE = ["nodes", "targets", "node_proxies", "target_proxies"]


def run_bundle(folder: str, features: np.ndarray, edges: np.ndarray, steps: int) -> np.ndarray:
    """Scores [n, c]; edges [2, m] as (source, target), without repeated edges."""
    files = [f"{folder}/{name}.onnx" for name in ("encoder", "cell", "head")]
    encoder, cell, head = (ort.InferenceSession(file, providers=["CPUExecutionProvider"]) for file in files)
    outputs = [port.name for port in cell.get_outputs()]
    feeds = dict(zip(STATE, encoder.run(STATE, {"features": features})))
    n, d = feeds["nodes"].shape
    lists = [edges[0][edges[1] == node] for node in range(n)]
    leaf = np.zeros((n, max(1, *map(len, lists))), np.int32)  # one row per node; 0 is no neighbour
    for row, sources in zip(leaf, lists):
        row[: len(sources)] = sources + 1
    tables = [port.name for port in cell.get_inputs() if port.name.startswith(("leaf_", "join_"))]
    feeds |= {name: np.zeros((1, 1), np.int32) for name in tables}  # unused tables
    feeds |= {"leaf_0": leaf, "place": np.arange(1, n + 1, dtype=np.int32), "sample": np.zeros(1, np.int32)}
    feeds["share"] = np.array([[1 / (len(sources) + 1)] for sources in lists], np.float32)
    for _ in range(json.loads(Path(folder, "manifest.json").read_text()).get("smoothing", 0)):
        scaled = np.sqrt(feeds["share"]) * feeds["nodes"]
        sums = np.stack([scaled[sources].sum(axis=0) for sources in lists])
        feeds["nodes"] = np.sqrt(feeds["share"]) * (sums + scaled)
    feeds |= {name: np.array(1 / steps, np.float32) for name in ("weight", "lead")}
    feeds["previous_weight"] = np.array(0, np.float32)
    feeds |= {f"previous_{name}_velocity": np.zeros_like(feeds[name]) for name in STATE}
    column = np.arange(d)
    for step in range(steps):
        phase = step / steps * 10000.0 ** (-2 * (column // 2) / d)
        feeds["step_code"] = np.where(column % 2, np.cos(phase), np.sin(phase)).astype(np.float32)
        after = dict(zip(outputs, cell.run(None, feeds)))
        feeds |= {name: after[f"next_{name}"] for name in STATE}
        feeds |= {f"previous_{name}_velocity": after[f"{name}_velocity"] for name in STATE}
    return head.run(["scores"], {"nodes": feeds["nodes"], "targets": feeds["targets"]})[0]


if __name__ == "__main__":
    with np.load(sys.argv[2]) as graph:
        scores = run_bundle(sys.argv[1], graph["x"].astype(np.float32), graph["edge_index"], int(sys.argv[3]))
    print(np.bincount(scores.argmax(axis=1)))
