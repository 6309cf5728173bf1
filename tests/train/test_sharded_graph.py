"""One graph divided between two gloo processes is trained as in one process."""

import multiprocessing
from pathlib import Path

from tests.train.sharded_process import work


def test_two_processes_have_the_losses_and_gradients_of_one(tmp_path: Path) -> None:
    """In 64 bits, to 1e-9: losses, gradients and weights over three steps of an optimiser."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([work.__module__])  # both processes share one import of PyTorch
    processes = [context.Process(target=work, args=(rank, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
    assert codes == [0, 0]
    assert {path.name for path in tmp_path.glob("equal-*")} == {"equal-0", "equal-1"}
