"""A loaded entry while it is checked: its pieces, and the model around them as soon as a level needs it.

The model is built, filled and bound once, however many levels run it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from precast.aot.binding import BoundState, LoadedPieces, bind_forward, bind_state
from precast.aot.phases import PhaseClock
from precast.aot.progress import Progress
from precast.aot.report import counted
from precast.aot.spec import Json, ModelSpec
from precast.aot.subject import Subject
from precast.aot.torch_seams.watch import CompileWatch
from precast.errors import VerifyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["LoadedEntry", "Model", "require_zero"]


@dataclass(frozen=True, slots=True)
class Model:
    """The model of an entry on the entry's device.

    Attributes:
        spec: Its spec.
        module: The module, with its weights.
        bound: The pieces, bound to the module's state.
        run: The compiled forward.
    """

    spec: ModelSpec
    module: "nn.Module"
    bound: BoundState
    run: "Callable[..., Any]"


@dataclass(slots=True)
class LoadedEntry:
    """What the levels after `load` work on.

    Attributes:
        subject: The entry, and how to make its model's spec.
        pieces: Its payloads as callables.
        watch: Counts compile work.
        clock: Measures phases.
        progress: Is told what goes on.
    """

    subject: Subject
    pieces: LoadedPieces
    watch: CompileWatch
    clock: PhaseClock
    progress: Progress
    _model: Model | None = field(default=None, init=False)

    @property
    def device(self) -> str:
        """Type of the device that the entry was compiled for."""
        return str(self.subject.manifest.target["device"])

    def model(self) -> Model:
        """Build the model, or return the one that was built; the subject must know its spec."""
        if self._model is None:
            self._model = self._build()
        return self._model

    def eager(self, *inputs: Any) -> Any:
        """Run the module itself; what its own ops compile is counted apart."""
        with self.watch.section("eager"):
            return self.model().module(*inputs)

    def require_zero(self, section: str, *, processes: bool, own_ops: bool = False) -> dict[str, Json]:
        """Refuse compile work in a section; see the function of that name."""
        return require_zero(self.watch, section, self.subject.key, processes=processes, own_ops=own_ops)

    def _build(self) -> Model:
        from precast.aot.numerics import build_real

        assert self.subject.spec is not None
        with self.clock.phase("build model"):
            spec = self.subject.spec()
            with self.watch.section("eager"):
                module = build_real(spec, self.device)
        with self.clock.phase("bind"):
            bound = bind_state(self.pieces, module)
            return Model(spec, module, bound, bind_forward(bound))


def require_zero(
    watch: CompileWatch, section: str, key: str, *, processes: bool, own_ops: bool = False
) -> dict[str, Json]:
    """Refuse compile work in a section of a watch, and return what was counted there.

    Args:
        watch: What counted.
        section: The section.
        key: The entry's key, for messages.
        processes: Whether processes other than compilers may be started there.
        own_ops: Whether the model's own ops may compile their Triton kernels there.

    Raises:
        VerifyError: Something was traced or compiled, a process was started, or this torch cannot be watched.
    """
    counts = watch.counts(section)
    if watch.missing:
        raise VerifyError(
            "this torch cannot be watched",
            f"it lacks {', '.join(watch.missing)}",
            "use a version of torch that precast knows",
        )
    allowed = {"processes", *(("triton_compiles", "compiler_processes") if own_ops else ())}
    compiled = any(count for kind, count in counts.items() if kind not in allowed)
    if compiled or (counts["processes"] and not processes):
        seen = [d for d in watch.details if d.startswith(f"{section}:")]
        what = "something was traced or compiled" if compiled else "a process was started"
        raise VerifyError(
            f"{what}: {counted(counts)}", "; ".join(seen[:4]), "run `precast precompile --force`", entry=key
        )
    return dict(counts)
