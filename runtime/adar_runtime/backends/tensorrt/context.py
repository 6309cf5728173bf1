"""One execution context of a TensorRT engine. Calls that TensorRT answers with False raise BackendError."""

from collections.abc import Mapping
from typing import Any

from adar_runtime.backends.tensorrt.cuda import Cuda, Memory, OutOfMemoryError
from adar_runtime.backends.tensorrt.engines.packages import TensorRtPackage
from adar_runtime.backends.tensorrt.runtime_cache import RuntimeCache
from adar_runtime.errors import BackendError

Shape = tuple[int, ...]


class Context:
    """One execution context: takes shapes and addresses, then runs."""

    def __init__(
        self,
        package: TensorRtPackage,
        cuda: Cuda,
        name: str,
        engine: Any,
        cache: RuntimeCache,
        *,
        eager: bool,
    ) -> None:
        self.name = name
        self._package, self._cuda = package, cuda
        cuda.activate()
        self._context = package.create_context(
            engine, lambda config: cache.attach(package, config), eager=eager
        )
        if self._context is None:
            why = package.log.messages.reason
            kind = OutOfMemoryError if "memory" in why.lower() else BackendError
            raise kind(f"TensorRT cannot create a context for the {name}: {why}")
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        self._names = names
        self._dynamic = [
            name
            for name in names
            if engine.get_tensor_mode(name) == package.trt.TensorIOMode.INPUT
            and -1 in tuple(engine.get_tensor_shape(name))
        ]

    def fit(self, profile: int, shapes: Mapping[str, Shape]) -> int:
        """Set the profile and the input shapes; return the bytes of scratch memory that they need."""
        self._cuda.activate()
        self._check(self._context.set_optimization_profile_async(profile, self._cuda.stream), "its profile")
        self._cuda.wait()  # the change of profile queues work that has to finish first
        for name in self._dynamic:
            self._check(self._context.set_input_shape(name, shapes[name]), f"the shape of {name}")
        messages = self._package.log.messages
        messages.errors.clear()
        needed = int(self._context.update_device_memory_size_for_shapes())
        if not needed and messages.errors:  # a failure and "needs nothing" both return 0
            raise BackendError(
                f"the engine of the {self.name} cannot tell how much memory it needs: {messages.reason}"
            )
        return needed

    def bind(self, addresses: Mapping[str, int], scratch: Memory | None = None) -> None:
        """Set the address of every input and output, and the scratch memory."""
        for name in self._names:
            if name not in addresses:
                raise BackendError(
                    f"the engine of the {self.name} has the unknown tensor {name}: build it again"
                )
            self._check(self._context.set_tensor_address(name, addresses[name]), f"the address of {name}")
        if scratch is not None:
            self._context.set_device_memory(scratch.address, scratch.size)

    def run(self) -> None:
        """Queue one run on the stream."""
        self._cuda.activate()
        self._check(self._context.execute_async_v3(self._cuda.stream), "to run")

    def capturable(self) -> bool:
        """Whether a CUDA graph can capture a run. `tensorrt` has no such query: the capture itself tells."""
        query = getattr(self._context, "is_stream_capturable", None)
        return True if query is None else bool(query(self._cuda.stream))

    def _check(self, done: bool, what: str) -> None:
        if not done:
            raise BackendError(
                f"the engine of the {self.name} refused {what}: {self._package.log.messages.reason}"
            )
