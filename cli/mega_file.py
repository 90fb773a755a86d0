"""The file that a mega artifact is exported to: refused early where it could not be written."""

from pathlib import Path

from precast.errors import UsageError

__all__ = ["check_output"]


def check_output(output: Path | None) -> None:
    """Refuse a file that makes no sense, before anything is compiled.

    Whether it may be written is told by `precompile`, together with all else that may not.

    Raises:
        UsageError: If the file's folder does not exist, or the file is a folder.
    """
    if output is None:
        return
    if output.is_dir():
        raise UsageError(f"--output {output} is a folder", hint="Name a file, such as model.mega", path=str(output))
    if not output.parent.is_dir():
        raise UsageError(f"--output {output} has no folder", "it does not exist", f"Create {output.parent}")
