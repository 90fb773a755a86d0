"""What records and replays graphs: a protocol, so that everything but the device can be tested without one.

On a GPU it is `precast.aot.torch_seams.graphs.CudaGraphs`; tests have one that runs on the CPU. All graphs of a backend
share one memory pool and are recorded on one side stream.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

__all__ = ["Graph", "GraphBackend"]

T = TypeVar("T")


class Graph(Protocol):
    """A recorded graph."""

    def replay(self) -> None:
        """Run the recorded work again, on the current stream, with the memory that it was recorded with."""
        ...

    def reset(self) -> None:
        """Free the graph; it cannot be replayed afterwards. Twice is harmless."""
        ...


class GraphBackend(Protocol):
    """Records graphs.

    `record` is for work that is one function; `begin`, `end` and `abandon` are for a recording that is cut into
    segments while one function runs.
    """

    def side_stream(self) -> AbstractContextManager[object]:
        """Make the recording stream current while the block runs.

        Work issued before comes first, and work issued after the block comes after what ran in it. Memory that the
        device's allocator keeps unused is given back first, because a recording cannot ask for it.
        """
        ...

    def record(self, function: Callable[[], T]) -> tuple[Graph, T]:
        """Record what a function launches; call it inside `side_stream`.

        Returns:
            The graph, and what the function returned: strong references, whose memory the graph's replays write.

        Raises:
            Exception: What the function raised, or what the device said of it. Nothing is being recorded then.
        """
        ...

    def begin(self) -> Graph:
        """Begin a recording; what is launched from now on is recorded instead of run."""
        ...

    def end(self, graph: Graph) -> None:
        """End the recording of a graph and make it ready to replay. After an error nothing is being recorded."""
        ...

    def abandon(self, graph: Graph) -> None:
        """End a recording that failed and throw it away; never raises, so that the first error is what is told."""
        ...

    def is_recording(self) -> bool:
        """Tell whether the current stream is being recorded."""
        ...

    def weak(self, tree: Any) -> Any:
        """Return equal tensors that do not keep their memory: it stays in the pool, where other graphs use it too.

        Args:
            tree: A tensor, or tuples, lists and dicts of tensors; anything else is returned as it is.
        """
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all work."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes of device memory that nobody has taken."""
        ...

    def wanted_bytes(self, error: BaseException) -> int | None:
        """Return how many bytes an error says were wanted: 0 if it does not say, None if it is not about memory."""
        ...

    def release(self) -> None:
        """Give the pool back, once the graphs are reset; the next recording starts another. Twice is harmless."""
        ...
