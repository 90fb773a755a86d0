"""The description of the GPU here, as `precompile --describe-target` prints it: a file for `--target`."""

import json

from precast.cli.session import Session
from precast.errors import ExitCode

__all__ = ["describe_gpu"]


def describe_gpu(session: Session) -> ExitCode:
    """Ask the driver about the first visible GPU and print its description; needs no torch.

    Raises:
        NoGpuError: The driver shows no GPU.
    """
    from precast.aot.description import describe_device

    description = describe_device().to_json()
    session.out.schema = "precast.precompile.target/1"
    session.out.text(json.dumps(description, indent=2))
    session.out.result(description, [description["arch"]])
    return ExitCode.OK
