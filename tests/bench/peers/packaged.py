"""An AOTInductor package of the whole model, the attention op inside of it; weights are handed over at load."""

from pathlib import Path
from typing import Any

import torch
from tests.bench.peers.base import CannotError, Forward, Peer, size_of
from tests.bench.session import Session

__all__ = ["LeanPackaged", "Packaged"]

_FILE = "model.pt2"
_OPTIONS = {"aot_inductor.package_constants_in_so": False}


class Packaged(Peer):
    """`torch.export`, then `aoti_compile_and_package`."""

    def compile(self, session: Session) -> Forward:
        """Export, compile and package."""
        inputs = session.first_inputs()
        tokens = torch.export.Dim("tokens", min=1, max=session.work.max_tokens)
        shapes = {"input_ids": {0: tokens}, "positions": {0: tokens}}
        try:
            program = torch.export.export(session.module, inputs, dynamic_shapes=shapes)
        except Exception as error:
            raise CannotError(f"torch.export: {_brief(error)}") from error
        try:
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(session.folder / _FILE), inductor_configs=dict(_OPTIONS)
            )
        except Exception as error:
            raise CannotError(f"aoti_compile_and_package: {_brief(error)}") from error
        return self.load(session)

    def stored(self, folder: Path) -> int:
        """Return the size of the package."""
        return size_of(folder / _FILE)

    def load(self, session: Session) -> Forward:
        """Load the package, and give it the module's weights without a copy."""
        # graphs can be captured only without the runner's own synchronisation
        loaded: Any = torch._inductor.aoti_load_package(str(session.folder / _FILE), run_single_threaded=True)
        loaded.load_constants(_weights(loaded, session), check_full_update=True, user_managed=True)
        forward: Forward = loaded
        return forward


class LeanPackaged(Packaged):
    """The package without the Python around its loader, which imports Inductor and asks the compiler for vectors."""

    def load(self, session: Session) -> Forward:
        """Load the package with torch's private binding."""
        loader: Any = torch._C._aoti.AOTIModelPackageLoader(str(session.folder / _FILE), "model", True, 1, -1)
        loader.load_constants(_weights(loader, session), False, True, True)
        return lambda *inputs: loader.boxed_run(list(inputs))[0]


def _weights(loader: Any, session: Session) -> dict[str, Any]:
    own = {**dict(session.module.named_parameters()), **dict(session.module.named_buffers())}
    return {name: own[name] for name in loader.get_constant_fqns()}


def _brief(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:160]}"
