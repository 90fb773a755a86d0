"""Zstandard frames that are never unpacked to more than was promised."""

import hashlib
from typing import BinaryIO

__all__ = ["MAX_RAW_BYTES", "CutFrameError", "compress", "decompress", "frame_digest"]

MAX_RAW_BYTES = 16 * 2**30

# On generated code level 9 packs a fifth tighter, at a quarter of the speed.
_LEVEL = 3

# Small enough to stay in a processor's cache between unpacking and hashing.
_PIECE = 256 * 1024

# The format: https://datatracker.ietf.org/doc/html/rfc8878 section 3.1.1
_MIN_HEADER, _MAX_HEADER = 5, 18
_BLOCK_HEADER = 3
_CHECKSUM = 4
_RUN_LENGTH, _RESERVED = 1, 3


class CutFrameError(ValueError):
    """A file ends before its frame does."""


def compress(raw: bytes) -> bytes:
    """Return one frame that holds `raw`, with its size in the header and a checksum."""
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(raw)


def decompress(frame: bytes, size: int | None = None) -> bytes:
    """Return what one frame holds.

    Args:
        frame: The whole frame and nothing else.
        size: Bytes that it must unpack to; None where the caller knows no size, then `MAX_RAW_BYTES` is the bound.

    Raises:
        ValueError: The frame is damaged, followed by other bytes, or announces another size than promised.
    """
    import zstandard

    try:
        _require_announced(frame[:_MAX_HEADER], size)
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"the frame is damaged ({error})") from error


def frame_digest(stream: BinaryIO, size: int | None = None) -> str:
    """Return the SHA-256 of what a file's one frame unpacks to, piece by piece, in little memory.

    Args:
        stream: The file, seekable; its frame is all that it holds.
        size: As of `decompress`.

    Raises:
        CutFrameError: The file ends before its frame does.
        ValueError: The frame is damaged, followed by other bytes, or announces another size than promised.
        OSError: The file cannot be read.
    """
    import zstandard

    try:
        announced = _require_whole(stream, size)
        stream.seek(0)
        found, count, piece = hashlib.sha256(), 0, bytearray(_PIECE)
        view = memoryview(piece)
        with zstandard.ZstdDecompressor().stream_reader(stream, read_size=_PIECE, closefd=False) as reader:
            while length := reader.readinto(piece):
                found.update(view[:length])
                count += length
                if count > announced:
                    break
    except zstandard.ZstdError as error:
        raise ValueError(f"the frame is damaged ({error})") from error
    if count != announced:
        raise ValueError(f"the frame announces {announced} bytes and holds others")
    return found.hexdigest()


def _require_announced(header: bytes, size: int | None) -> int:
    """Return the size that a frame announces, if it is a possible one."""
    import zstandard

    announced = zstandard.get_frame_parameters(header).content_size
    if announced == zstandard.CONTENTSIZE_UNKNOWN:
        raise ValueError("the frame does not announce its size")
    if announced > MAX_RAW_BYTES or (size is not None and announced != size):
        raise ValueError(f"the frame announces {announced} bytes")
    return announced


def _require_whole(stream: BinaryIO, size: int | None) -> int:
    """Walk over a frame's blocks without unpacking them: a stream reader would overlook what follows the frame."""
    import zstandard

    present = stream.seek(0, 2)
    stream.seek(0)
    header = stream.read(_MAX_HEADER)
    if len(header) < _MIN_HEADER or len(header) < (place := zstandard.frame_header_size(header)):
        raise CutFrameError(f"the file ends inside its frame's header, after {present} bytes")
    announced = _require_announced(header, size)
    last = False
    while not last and place + _BLOCK_HEADER <= present:
        stream.seek(place)
        block = int.from_bytes(stream.read(_BLOCK_HEADER), "little")
        last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED:
            raise ValueError("the frame holds a block of no known kind")
        place += _BLOCK_HEADER + (1 if kind == _RUN_LENGTH else length)
    end = place + _CHECKSUM * zstandard.get_frame_parameters(header).has_checksum
    if not last or end > present:
        raise CutFrameError(f"the file ends inside its frame, after {present} bytes")
    if end < present:
        raise ValueError(f"the frame is followed by {present - end} other bytes")
    return announced
