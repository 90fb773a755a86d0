import io
import os

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from precast.cache import frames
from precast.cache.canonical import sha256
from precast.cache.frames import CutFrameError, compress, decompress, frame_digest


@given(st.binary(max_size=5000))
def test_a_frame_unpacks_to_what_was_packed(raw: bytes) -> None:
    assert decompress(compress(raw), len(raw)) == raw
    assert decompress(compress(raw)) == raw


@given(st.binary(min_size=1, max_size=500), st.integers(0, 10**6))
def test_a_truncated_frame_is_refused(raw: bytes, length: int) -> None:
    frame = compress(raw)
    with pytest.raises(ValueError):
        decompress(frame[: length % len(frame)], len(raw))


def test_a_frame_that_announces_another_size_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = compress(bytes(10**7))
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda: pytest.fail("it was unpacked"))
    with pytest.raises(ValueError, match="announces 10000000 bytes"):
        decompress(bomb, 100)


def test_a_frame_beyond_the_bound_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_RAW_BYTES", 99)
    assert decompress(compress(bytes(99))) == bytes(99)
    with pytest.raises(ValueError, match="announces 100 bytes"):
        decompress(compress(bytes(100)))


def test_a_frame_without_a_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc")
    with pytest.raises(ValueError, match="does not announce"):
        decompress(frame, 3)


def test_bytes_after_a_frame_are_refused() -> None:
    with pytest.raises(ValueError):
        decompress(compress(b"abc") + b"x", 3)


@pytest.mark.parametrize("frame", [b"", b"x", b"no frame at all, only text"])
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        decompress(frame)


@given(st.binary(max_size=5000))
def test_a_frame_read_in_pieces_has_the_digest_of_what_was_packed(raw: bytes) -> None:
    assert frame_digest(io.BytesIO(compress(raw)), len(raw)) == sha256(raw)
    assert frame_digest(io.BytesIO(compress(raw))) == sha256(raw)


@pytest.mark.parametrize(
    "raw", [os.urandom(300_000), b"code " * 200_000, bytes(10**6)], ids=["random", "text", "zeros"]
)
def test_frames_of_several_blocks_are_read_and_each_cut_is_told_as_one(raw: bytes) -> None:
    frame = compress(raw)
    assert frame_digest(io.BytesIO(frame), len(raw)) == sha256(raw)
    for length in (0, 1, 4, 7, 17, len(frame) // 3, len(frame) - 5, len(frame) - 1):
        with pytest.raises(CutFrameError, match=f"after {length} bytes"):
            frame_digest(io.BytesIO(frame[:length]), len(raw))


@given(st.binary(min_size=1, max_size=300), st.data())
def test_an_altered_byte_never_gives_another_digest(raw: bytes, data: st.DataObject) -> None:
    frame = bytearray(compress(raw))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    try:
        found = frame_digest(io.BytesIO(bytes(frame)), len(raw))
    except ValueError:
        return
    assert found == sha256(raw)


@pytest.mark.parametrize("more", [b"x", compress(b"another frame"), b"\x50\x2a\x4d\x18\x01\x00\x00\x00x"])
def test_what_follows_a_frame_is_never_overlooked(more: bytes) -> None:
    """A stream reader would skip frames that hold no data, and bytes that begin none."""
    with pytest.raises(ValueError, match="followed by"):
        frame_digest(io.BytesIO(compress(b"abc") + more), 3)


def test_a_frame_in_pieces_is_held_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = io.BytesIO(compress(bytes(10**7)))
    monkeypatch.setattr(zstandard, "ZstdDecompressor", lambda: pytest.fail("it was unpacked"))
    with pytest.raises(ValueError, match="announces 10000000 bytes"):
        frame_digest(bomb, 100)
