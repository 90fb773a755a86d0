"""Seam to CUDA graphs: records into one pool on one side stream, and refers to outputs without keeping their memory.

`torch.cuda.graph` is not used: it collects garbage, empties the allocator's cache and waits for the device at each
graph, which is most of the time of a capture of many. Private names are for two things that torch offers no public way
to: a tensor over memory that it does not keep, as Inductor's cudagraph trees make them, and cleaning up after a capture
that failed. Written against torch 2.11.0 and 2.13.0; tests/gpu/test_graphs.py tries it on a GPU.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

from precast.capture.backend import Graph
from precast.capture.trees import map_tensors
from precast.errors import CaptureError

__all__ = ["CudaGraphs", "told_bytes", "weak_tensor"]

T = TypeVar("T")

_TRIED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Other threads may allocate or query events while this one records, as a server's threads do; what this thread does
# that a recording forbids is an error all the same.
_MODE = "thread_local"


class CudaGraphs:
    """Records CUDA graphs: the backend of graph managers on a GPU.

    Args:
        device: Index of the device; by default the current one.
    """

    def __init__(self, device: int | None = None) -> None:
        self._device = torch.cuda.current_device() if device is None else device
        self._stream = torch.cuda.Stream(self._device)
        self._pool: Any = None
        self._failed = 0  # recordings that failed and may still count as users of the pool
        self._ooms = 0

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        """Make the recording stream current while the block runs, with all that the allocator does not use given back.

        While something is recorded the allocator cannot give its unused memory back to get other memory instead.
        """
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        self._ooms = self._errors_of_memory()
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def record(self, function: Callable[[], T]) -> tuple[Graph, T]:
        """Record what a function launches; call it inside `side_stream`.

        Raises:
            CaptureError: It is called elsewhere, or inside a recording.
            Exception: What the function raised, or what CUDA said of it. Nothing is being recorded then.
        """
        graph = self.begin()
        try:
            result = function()
        except BaseException:
            self.abandon(graph)
            raise
        self.end(graph)
        return graph, result

    def begin(self) -> Graph:
        """Begin a recording.

        Raises:
            CaptureError: It is called outside of `side_stream`, or inside a recording.
            RuntimeError: CUDA refuses.
        """
        if torch.cuda.current_stream(self._device) != self._stream:
            raise CaptureError("a graph is recorded on the side stream only", "", "record inside `side_stream`")
        if self.is_recording():
            raise CaptureError("a graph is being recorded already", "recordings do not nest", "end that one first")
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph: Any = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode=_MODE)
        except BaseException:
            self.abandon(graph)
            raise
        begun: Graph = graph
        return begun

    def end(self, graph: Any) -> None:
        """End the recording of a graph, and instantiate it.

        Raises:
            RuntimeError: Something was done that cannot be recorded, or the device has no memory for the graph.
        """
        try:
            graph.capture_end()
        except BaseException:
            self._clean_up(graph)
            raise

    def abandon(self, graph: Any) -> None:
        """End a recording that failed and throw it away; never raises."""
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")  # of an empty graph: the error that comes says why
            graph.capture_end()
        self._clean_up(graph)

    def is_recording(self) -> bool:
        """Tell whether the current stream is being recorded."""
        return bool(torch.cuda.is_current_stream_capturing())

    def weak(self, tree: Any) -> Any:
        """Return equal tensors that do not keep their memory; see `weak_tensor`."""
        return map_tensors(weak_tensor, tree)

    def synchronize(self) -> None:
        """Wait until the device has done all work."""
        torch.cuda.synchronize(self._device)

    def free_bytes(self) -> int:
        """Return the bytes of device memory that nobody has taken and this process may take."""
        free, total = map(int, torch.cuda.mem_get_info(self._device))
        share = float(torch.cuda.get_per_process_memory_fraction(self._device))
        if share >= 1:
            return free
        return max(min(free, int(share * total) - int(torch.cuda.memory_reserved(self._device))), 0)

    def wanted_bytes(self, error: BaseException) -> int | None:
        """Return how many bytes an error says were wanted: 0 if it does not say, None if it is not about memory.

        An AOTInductor library tells its caller only that it failed. So an error since `side_stream` began is also
        about memory when torch's allocator counted one.
        """
        told = told_bytes(error)
        if told is None and isinstance(error, RuntimeError) and self._errors_of_memory() > self._ooms:
            return 0
        return told

    def release(self) -> None:
        """Give the pool back, once the graphs are reset. Twice is harmless."""
        pool, self._pool = self._pool, None
        torch.cuda.empty_cache()
        for _ in range(self._failed):
            if not self._pool_is_stuck(pool):
                break
            torch._C._cuda_releasePool(self._device, pool)
            torch.cuda.empty_cache()
        self._failed = 0

    def _clean_up(self, graph: Any) -> None:
        """Leave the allocator as before a recording that failed.

        Up to torch 2.13 `CUDAGraph` does not do so itself: where the capture did not end well, the allocator goes on
        serving the pool, and a use of the pool stays counted. That use is given back in `release`, where it shows
        whether it is there: later versions of torch may give it back themselves.
        """
        if not _ended(graph):
            self._failed += 1
        graph.reset()
        with suppress(RuntimeError):  # it was not serving the pool any more
            torch._C._cuda_endAllocateToPool(self._device, self._pool)

    def _pool_is_stuck(self, pool: Any) -> bool:
        """Tell whether the pool keeps memory in which nothing lies, although the cache was emptied: it has a user."""
        segments = torch.cuda.memory_snapshot(include_traces=False)
        return any(tuple(s["segment_pool_id"]) == tuple(pool) and not s["allocated_size"] for s in segments)

    def _errors_of_memory(self) -> int:
        return int(torch.cuda.memory_stats(self._device).get("num_ooms", 0))


def weak_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the same memory that does not keep it: the memory can be used for something else.

    A tensor that does not lie on a GPU is returned as it is: it lies in no pool.

    Tried on torch 2.11.0, as in Inductor's cudagraph trees (`_reconstruct_from_tensor_metadata`).
    """
    if not tensor.is_cuda:
        return tensor
    kept = tensor.untyped_storage()
    metadata = {
        "nbytes": kept.nbytes(),
        "data_ptr": kept.data_ptr(),
        "size": tensor.shape,
        "stride": tensor.stride(),
        "dtype": tensor.dtype,
        "device": tensor.device,
        "storage_offset": tensor.storage_offset(),
    }
    # the stubs name typed storages, which are no storages of memory any more
    storage: Any = torch._C._construct_storage_from_data_pointer(kept.data_ptr(), tensor.device, kept.nbytes())
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(metadata, storage)


def told_bytes(error: BaseException) -> int | None:
    """Return how many bytes CUDA or torch's allocator says were wanted: 0 if it does not say, None of another error.

    Tried on torch 2.11.0 and 2.13.0.
    """
    if not isinstance(error, RuntimeError):
        return None
    tried = _TRIED.search(str(error))
    if tried:
        return int(float(tried[1]) * _UNITS[tried[2]])
    return 0 if "out of memory" in str(error).lower() else None


def _ended(graph: Any) -> bool:
    """Tell whether a graph's capture ended well, so that `reset` gives its use of the pool back."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True
