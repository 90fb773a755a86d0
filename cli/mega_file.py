"""Copying an entry's mega artifact out of the store, to a file that the user names."""

import os
import shutil
import tempfile
from pathlib import Path

from precast.cache.root import CacheRoot
from precast.errors import UsageError

__all__ = ["check_output", "copy_mega"]


def check_output(output: Path | None) -> None:
    """Refuse a file that could not be written, before anything is compiled.

    Raises:
        UsageError: If the file's folder does not exist, or the file is a folder.
    """
    if output is None:
        return
    if output.is_dir():
        raise UsageError(f"--output {output} is a folder", hint="Name a file, such as model.mega", path=str(output))
    if not output.parent.is_dir():
        raise UsageError(f"--output {output} has no folder", "it does not exist", f"Create {output.parent}")


def copy_mega(root: Path, key: str, output: Path) -> None:
    """Copy the mega artifact of an entry; the file appears whole or not at all.

    Args:
        root: The store.
        key: The entry's full key.
        output: The file to write.
    """
    with tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", delete=False) as target:
        temporary = Path(target.name)
        try:
            with CacheRoot(root).mega(key).open("rb") as source:
                shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
            temporary.chmod(0o644)
            temporary.replace(output)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
