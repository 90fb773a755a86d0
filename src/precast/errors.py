"""The one tree of errors that precast raises, with exit codes and stable dotted codes.

    PrecastError                 internal                1
    ├── UsageError               usage                   2
    │   ├── UnknownModelError    model.unknown           2
    │   ├── ConfigKeyError       config.unknown_key      2
    │   ├── ConfigValueError     config.bad_value        2
    │   ├── SplittingOpError     split.op_absent         2
    │   └── StoreAccessError     store.unwritable        2
    ├── CorruptError             store.corrupt           4
    │   └── FormatError          store.format            4
    ├── UntrustedError           store.untrusted         4
    │   └── SignatureError       store.signature         4
    ├── IncompatibleError        stamp.mismatch          5
    │   └── OptimizedModeError   python.optimized        5
    ├── VerifyError              verify.failed           6
    ├── CompileError             compile.failed          7
    │   ├── FactoryError         model.factory_raised    7
    │   ├── WeightError          model.weights           7
    │   ├── GraphBreakError      trace.graph_break       7
    │   └── UnsupportedOpError   trace.unsupported_op    7
    ├── PartialError             publish.partial         8
    ├── NoGpuError               device.no_gpu           9
    ├── NoEntryError             entry.absent           10
    │   └── AmbiguousKeyError    entry.ambiguous        10
    ├── LockedError              store.locked           11
    ├── RemoteError              remote.unreachable     12
    │   └── RemoteRefusedError   remote.refused         12
    └── CaptureError             capture.failed         13
        ├── GraphAddressError    capture.address        13
        ├── GraphMemoryError     capture.memory         13
        ├── RankDiffersError     capture.rank_differs   13
        └── RankMissingError     capture.rank_missing   13

Every error says what happened, why, and what to do next; `precast.cli` prints those three lines and nothing else.
Codes and exit codes are a contract: they may be added to, never changed.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar

__all__ = [
    "AmbiguousKeyError",
    "CaptureError",
    "CompileError",
    "ConfigKeyError",
    "ConfigValueError",
    "CorruptError",
    "ExitCode",
    "FactoryError",
    "FormatError",
    "GraphAddressError",
    "GraphBreakError",
    "GraphMemoryError",
    "IncompatibleError",
    "LockedError",
    "NoEntryError",
    "NoGpuError",
    "OptimizedModeError",
    "PartialError",
    "PrecastError",
    "RankDiffersError",
    "RankMissingError",
    "RemoteError",
    "RemoteRefusedError",
    "SignatureError",
    "SplittingOpError",
    "StoreAccessError",
    "UnknownModelError",
    "UnsupportedOpError",
    "UntrustedError",
    "UsageError",
    "VerifyError",
    "WeightError",
]


class ExitCode(IntEnum):
    """The exit status of every command; an unknown non-zero status means failure."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    DIFFERS = 3
    CORRUPT = 4
    INCOMPATIBLE = 5
    VERIFY_FAILED = 6
    COMPILE_FAILED = 7
    PARTIAL = 8
    NO_GPU = 9
    NO_ENTRY = 10
    LOCKED = 11
    REMOTE = 12
    CAPTURE_FAILED = 13
    INTERRUPTED = 130
    TERMINATED = 143


class PrecastError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: One line that says what happened.
        why: One line that says why, or empty.
        hint: One line that says what to do next, or empty.
        entry: Key of the entry concerned, or empty.
        path: File or folder concerned, or empty.
        details: More of it for programs, as JSON; a person reads it all in the three lines.
    """

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(
        self,
        what: str,
        why: str = "",
        hint: str = "",
        *,
        entry: str = "",
        path: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.hint = hint
        self.entry = entry
        self.path = path
        self.details = dict(details or {})

    def __str__(self) -> str:
        """Join what happened and why, for logs and tracebacks."""
        return f"{self.what}: {self.why}" if self.why else self.what


class UsageError(PrecastError):
    """The request itself is wrong: a flag, a file, a name."""

    code = "usage"
    exit_code = ExitCode.USAGE


class UnknownModelError(UsageError):
    """MODEL names nothing that can be resolved to a spec."""

    code = "model.unknown"


class ConfigKeyError(UsageError):
    """A configuration key does not exist."""

    code = "config.unknown_key"


class ConfigValueError(UsageError):
    """A configuration value has the wrong type or is out of range."""

    code = "config.bad_value"


class SplittingOpError(UsageError):
    """A splitting op never occurs in the traced graph."""

    code = "split.op_absent"


class StoreAccessError(UsageError):
    """The store cannot be written, or cannot be read."""

    code = "store.unwritable"


class CorruptError(PrecastError):
    """Stored bytes are not what their digest says."""

    code = "store.corrupt"
    exit_code = ExitCode.CORRUPT


class FormatError(CorruptError):
    """Stored data has another format than this version reads."""

    code = "store.format"


class UntrustedError(PrecastError):
    """Somebody who is not trusted could have written what is stored."""

    code = "store.untrusted"
    exit_code = ExitCode.CORRUPT


class SignatureError(UntrustedError):
    """An entry carries no valid signature of a key that was asked for."""

    code = "store.signature"


class IncompatibleError(PrecastError):
    """A sound entry does not fit this node or this software."""

    code = "stamp.mismatch"
    exit_code = ExitCode.INCOMPATIBLE


class OptimizedModeError(IncompatibleError):
    """Python runs with -O, which strips checks that torch's loaders rely on."""

    code = "python.optimized"


class VerifyError(PrecastError):
    """An artifact loaded but traced, compiled or computed something it must not."""

    code = "verify.failed"
    exit_code = ExitCode.VERIFY_FAILED


class CompileError(PrecastError):
    """At least one piece could not be compiled; nothing was published."""

    code = "compile.failed"
    exit_code = ExitCode.COMPILE_FAILED


class FactoryError(CompileError):
    """The model's factory or its constructor raised."""

    code = "model.factory_raised"


class WeightError(CompileError):
    """A weight is missing, unexpected or has the wrong shape."""

    code = "model.weights"


class GraphBreakError(CompileError):
    """The model cannot be traced as one graph."""

    code = "trace.graph_break"


class UnsupportedOpError(CompileError):
    """The traced graph holds an op that cannot be compiled."""

    code = "trace.unsupported_op"


class PartialError(PrecastError):
    """The work was done, but not all of it could be published."""

    code = "publish.partial"
    exit_code = ExitCode.PARTIAL


class NoGpuError(PrecastError):
    """The request needs a GPU and none is usable."""

    code = "device.no_gpu"
    exit_code = ExitCode.NO_GPU


class NoEntryError(PrecastError):
    """The store, key or tag does not exist."""

    code = "entry.absent"
    exit_code = ExitCode.NO_ENTRY


class AmbiguousKeyError(NoEntryError):
    """A key prefix fits several entries."""

    code = "entry.ambiguous"


class LockedError(PrecastError):
    """A lock was not got within the timeout."""

    code = "store.locked"
    exit_code = ExitCode.LOCKED


class RemoteError(PrecastError):
    """A remote is unreachable or refuses."""

    code = "remote.unreachable"
    exit_code = ExitCode.REMOTE


class RemoteRefusedError(RemoteError):
    """A remote answers and says no: no permission, no such bucket, no space."""

    code = "remote.refused"


class CaptureError(PrecastError):
    """CUDA graphs could not be captured or replayed."""

    code = "capture.failed"
    exit_code = ExitCode.CAPTURE_FAILED


class GraphAddressError(CaptureError):
    """A graph would read memory that its input no longer lies in."""

    code = "capture.address"


class GraphMemoryError(CaptureError):
    """The device has too little memory for the graphs."""

    code = "capture.memory"


class RankDiffersError(CaptureError):
    """Ranks that must run in step are set up differently, or come to different batches."""

    code = "capture.rank_differs"


class RankMissingError(CaptureError):
    """A rank did not come where the others wait for it."""

    code = "capture.rank_missing"
