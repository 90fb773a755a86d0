"""The command line: parse, call one library function, render.

Nothing in this package holds business logic. One output sink prints (`output`), one ordered table turns
exceptions into messages and exit codes (`errors`), and every command is one small file in `commands`.
"""

from precast.cli.app import main

__all__ = ["main"]
