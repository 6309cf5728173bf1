"""The loop, step by step.

Watch every step, stop early, and continue with a larger budget.

    python examples/drive_the_loop.py bundle graph.npz
"""

import sys

import numpy as np

from adar_runtime import Final, load, read_graph


def main(bundle_folder: str, graph_file: str) -> None:
    """Stop when each of five steps in a row changed less than 1 % of the predictions, then continue."""
    bundle, graph = load(bundle_folder), read_graph(graph_file)
    loop = bundle.loop(graph, budget=50, stop=Final(), solver="euler")
    before, quiet = None, 0
    for step in loop:
        now = step.scores().argmax(axis=1)  # runs the head: call it only when you need the scores
        changed = len(now) if before is None else int(np.sum(now != before))
        before, quiet = now, quiet + 1 if changed < 0.01 * len(now) else 0
        print(f"step {step.index:3}  t {step.time:.2f}  alignment {step.alignment:.4f}  changed {changed}")
        if quiet == 5:
            break
    else:
        print("predictions still changed at t = 1")
        return
    early = loop.result()
    print(f"settled at t = {early.times[-1]:.2f}: {early.stop_reason.value}")

    loop.resume(300)  # the remaining time, with the steps of a larger budget
    for _ in loop:
        pass
    late = loop.result()
    same = float(np.mean(early.predictions == late.predictions))
    print(f"at t = 1 after {late.steps} steps in total: {same:.1%} of the predictions equal the early ones")


if __name__ == "__main__":
    main(*sys.argv[1:])
