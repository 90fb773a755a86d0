"""The commands, one file each: parse, call one library function, render.

Libraries are imported inside the functions, so that help and the light commands start without them.
"""

__all__: list[str] = []
