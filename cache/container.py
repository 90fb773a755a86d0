"""A safetensors container: named tensors behind a header that can be read alone.

Writing is left to the safetensors library. Reading is done here, because the library hands out tensors of a framework
and this package imports none. The format: eight bytes of the header's length, JSON, then the tensors' bytes without a
gap.
"""

import ctypes
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

__all__ = ["DTYPES", "RawTensor", "TensorPlace", "header_with", "read_header", "serialize_tensors"]

# dtype (torch's name), shape, and little-endian contiguous bytes.
RawTensor: TypeAlias = tuple[str, tuple[int, ...], bytes]

# torch's names: the format's names, and bytes for each element.
DTYPES: Mapping[str, tuple[str, int]] = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "uint16": ("U16", 2),
    "int16": ("I16", 2),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "uint32": ("U32", 4),
    "int32": ("I32", 4),
    "float32": ("F32", 4),
    "uint64": ("U64", 8),
    "int64": ("I64", 8),
    "float64": ("F64", 8),
    "complex64": ("C64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
}

_SIZES = dict(DTYPES.values())

# The limit that safetensors itself sets to a header, and how its end is aligned.
_MAX_HEADER = 100_000_000
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies.

    Attributes:
        dtype: The format's name of its dtype, such as `F32`.
        shape: Its sizes.
        begin: Its first byte in the file.
        end: The byte after its last.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def serialize_tensors(tensors: Mapping[str, RawTensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a container; equal tensors and metadata give equal bytes.

    Args:
        tensors: Each tensor by name; its dtype is one of `DTYPES`.
        metadata: Text for the header.
    """
    from safetensors import TensorSpec, serialize

    # safetensors takes addresses; `tensors` keeps the bytes alive until it has copied them.
    specs = {
        name: TensorSpec(
            dtype=dtype,
            shape=list(shape),
            data_ptr=ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0,
            data_len=len(data),
        )
        for name, (dtype, shape, data) in tensors.items()
    }
    return bytes(serialize(specs, dict(metadata)))


def header_with(stream: BinaryIO, metadata: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Read a header, and write it again with more metadata; the tensors' bytes after it stay as they are.

    Args:
        stream: The file at its beginning; afterwards it is at the first byte of the tensors.
        metadata: Text to add or to replace.

    Returns:
        The header as it is, and the new one, each with its length in front.

    Raises:
        ValueError: The header is damaged, or would be too long.
    """
    length = _length(stream)
    text = stream.read(length)
    try:
        header = json.loads(text.decode("utf-8"))
        entries = {"__metadata__": {**header.pop("__metadata__", {}), **metadata}, **header}
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the header does not describe tensors") from error
    made = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    made += b" " * (-len(made) % _ALIGNMENT)
    if len(made) > _MAX_HEADER:
        raise ValueError(f"the header would have {len(made)} bytes")
    return _framed(text), _framed(made)


def read_header(stream: BinaryIO) -> tuple[dict[str, TensorPlace], dict[str, str]]:
    """Read the places of all tensors, and the metadata.

    Args:
        stream: The file at its beginning; it must be seekable.

    Raises:
        ValueError: The header is damaged, or the tensors do not fill the file exactly.
    """
    length = _length(stream)
    start = 8 + length
    try:
        header = json.loads(stream.read(length).decode("utf-8"))
        metadata = {name: str(text) for name, text in header.pop("__metadata__", {}).items()}
        tensors = {name: _place(value, start) for name, value in header.items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("the header does not describe tensors") from error
    _require_filled(tensors, start, stream.seek(0, 2))
    return tensors, metadata


def _length(stream: BinaryIO) -> int:
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= _MAX_HEADER:
        raise ValueError(f"the header announces {length} bytes")
    return length


def _framed(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def _require_filled(tensors: Mapping[str, TensorPlace], start: int, size: int) -> None:
    end = start
    for tensor in sorted(tensors.values(), key=lambda place: (place.begin, place.end)):
        if tensor.begin != end:
            raise ValueError("the tensors overlap or leave gaps")
        end = tensor.end
    if end != size:
        raise ValueError(f"the file has {size} bytes instead of {end}")


def _place(value: dict[str, object], start: int) -> TensorPlace:
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError("a tensor is not described as the format demands")
    begin, end = offsets
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError("a tensor's shape or place is no count")
    if dtype not in _SIZES or end - begin != math.prod(shape) * _SIZES[dtype]:
        raise ValueError(f"a tensor of {dtype} has another size than its shape")
    return TensorPlace(dtype, tuple(shape), start + begin, start + end)
