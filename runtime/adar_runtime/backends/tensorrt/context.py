"""One execution context of a TensorRT engine. Its calls answer True or False; here, False is an error."""

from collections.abc import Mapping
from typing import Any

from adar_runtime.backends.tensorrt.cuda import Cuda, Memory
from adar_runtime.backends.tensorrt.engines.flavours import Flavour
from adar_runtime.errors import BackendError

Shape = tuple[int, ...]


class Context:
    """One execution context: given shapes and addresses, it runs."""

    def __init__(self, flavour: Flavour, cuda: Cuda, name: str, engine: Any) -> None:
        self.name = name
        self._flavour, self._cuda = flavour, cuda
        self._context = flavour.create_context(engine)
        if self._context is None:
            raise BackendError(f"TensorRT has no context for the {name}: {flavour.log.heard.reason}")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._names = names
        self._free = [
            name
            for name in names
            if engine.get_tensor_mode(name) == flavour.trt.TensorIOMode.INPUT
            and -1 in tuple(engine.get_tensor_shape(name))
        ]

    def fit(self, profile: int, shapes: Mapping[str, Shape]) -> int:
        """Take these shapes; returns how many bytes of scratch memory they need."""
        self._check(self._context.set_optimization_profile_async(profile, self._cuda.stream), "its profile")
        self._cuda.wait()  # what the change of profile queued comes before all that follows
        for name in self._free:
            self._check(self._context.set_input_shape(name, shapes[name]), f"the shape of {name}")
        return int(self._context.update_device_memory_size_for_shapes())

    def bind(self, addresses: Mapping[str, int], scratch: Memory | None = None) -> None:
        """Where each input and output is."""
        for name in self._names:
            if name not in addresses:
                raise BackendError(
                    f"the engine of the {self.name} has {name}, which this runtime does not know"
                )
            self._check(self._context.set_tensor_address(name, addresses[name]), f"the address of {name}")
        if scratch is not None:
            self._context.set_device_memory(scratch.address, scratch.size)

    def run(self) -> None:
        """Queue one run."""
        self._check(self._context.execute_async_v3(self._cuda.stream), "to run")

    def capturable(self) -> bool:
        """Whether its work can be captured; tensorrt has no such question, and finds out by doing."""
        ask = getattr(self._context, "is_stream_capturable", None)
        return True if ask is None else bool(ask(self._cuda.stream))

    def _check(self, done: bool, what: str) -> None:
        if not done:
            raise BackendError(
                f"the engine of the {self.name} refused {what}: {self._flavour.log.heard.reason}"
            )
