"""The public names of each package. Adding one is a promise; this list is where it is made."""

import adar_export
import adar_runtime
import adar_train


def test_public_names() -> None:
    assert sorted(adar_runtime.__all__) == [
        "AdamsBashforth2", "Adaptive", "AdarError", "AtTime", "Bundle", "Converged", "Euler", "Final",
        "Graph", "Loop", "Peak", "Result", "Solver", "SparseRows", "Step", "StopReason", "StopRule", "load",
        "read_graph", "write_graph",
    ]  # fmt: skip
    assert sorted(adar_train.__all__) == [
        "AdaR", "Epoch", "Fitted", "GraphTensors", "ModelConfig", "Run", "State", "TrainConfig", "Trainer",
        "fit", "load", "load_run", "save_run",
    ]  # fmt: skip
    assert sorted(adar_export.__all__) == ["Check", "Convergence", "Report", "Trial", "export_bundle"]
