"""`torch.compile(...).aot_compile(...)` and `torch.compiler.load_compiled_function`: no trace in a later process."""

from pathlib import Path
from typing import Any

import torch
from tests.bench.peers.base import Forward, Peer, first_token_dims, size_of
from tests.bench.session import Session

__all__ = ["AotCompiled"]

_FILE = "function.bin"


class AotCompiled(Peer):
    """Compiles the module's forward into one file."""

    def compile(self, session: Session) -> Forward:
        """Trace, compile and write the file."""
        inputs = session.first_inputs()
        first_token_dims(inputs)
        with torch._dynamo.config.patch(enable_aot_compile=True):
            wrapped: Any = torch.compile(
                session.module.forward,
                fullgraph=True,
                dynamic=False,
                options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
            )
            function = wrapped.aot_compile((inputs, {}))
        function.save_compiled_function(str(session.folder / _FILE))
        return _bound(function, session)

    def stored(self, folder: Path) -> int:
        """Return the size of the file."""
        return size_of(folder / _FILE)

    def load(self, session: Session) -> Forward:
        """Read the file."""
        with (session.folder / _FILE).open("rb") as file:
            return _bound(torch.compiler.load_compiled_function(file), session)


def _bound(function: Any, session: Session) -> Forward:
    """Hand the module over as `self`, and check no guards: those of the first batch would refuse a single token."""
    function.disable_guard_check()
    module = session.module
    return lambda *inputs: function(module, *inputs)
