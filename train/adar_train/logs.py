"""TensorBoard, for those who have it installed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adar_train.fit import Epoch


class Log:
    """Loss and validation metric of every epoch under `folder`; nothing without it or TensorBoard."""

    def __init__(self, folder: Path | None) -> None:
        self._writer: Any = None
        if folder is not None and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            # A Ctrl-C in the middle of `add_scalar` can cost its thread a wake-up: it then sleeps until the
            # next flush, and whoever closes it waits along.
            self._writer = SummaryWriter(folder, flush_secs=1)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def epoch(self, epoch: Epoch) -> None:
        """Write one epoch down."""
        if self._writer is None:
            return
        self._writer.add_scalar("loss", epoch.loss, epoch.number)
        if epoch.val is not None:
            self._writer.add_scalar("best val", epoch.val, epoch.number)
