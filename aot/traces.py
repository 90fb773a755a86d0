"""Traces of one model, each made once, however many targets it is compiled for.

A trace for a GPU is one for every GPU, unless the model asks about the GPU while it is traced. Never imports torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from precast.aot.request import CompileInput
from precast.cache.canonical import digest
from precast.errors import PrecastError

if TYPE_CHECKING:
    from precast.aot.planning import BuiltModel, TracedModel

__all__ = ["Traces"]

T = TypeVar("T")


class Traces:
    """The traces of one model, for calls whose settings differ in their target alone.

    Attributes:
        count: How often the model was traced.
        failure: Why the model could not be built or traced, which then fails for every target.
    """

    def __init__(self) -> None:
        self.count = 0
        self.failure: PrecastError | None = None
        self._built: BuiltModel | None = None
        self._shared: dict[str, TracedModel] = {}
        self._own: dict[str, TracedModel] = {}

    def once(self, build: "Callable[[], BuiltModel]") -> "BuiltModel":
        """Return the built model; it is imported and built at the first call.

        Args:
            build: Imports and builds it.

        Raises:
            PrecastError: It cannot be built, now or at the first try.
        """
        if self._built is None:
            self._built = self._try(build)
        return self._built

    def of(self, given: CompileInput, make: "Callable[[], TracedModel]") -> "TracedModel":
        """Return the trace for a target: one that is there already where that is the same, else a new one.

        Args:
            given: The settings and the target.
            make: Traces the model.

        Raises:
            PrecastError: The model cannot be traced, now or at the first try.
        """
        device, target = given.target.device, digest(given.target.to_json())
        found = self._shared.get(device) or self._own.get(target)
        if found is None:
            self.count += 1
            found = self._try(make)
            if found.asks_device:
                self._own[target] = found
            else:
                self._shared[device] = found
        return found

    def _try(self, make: Callable[[], T]) -> T:
        if self.failure is not None:
            raise self.failure
        try:
            return make()
        except PrecastError as error:
            self.failure = error
            raise
