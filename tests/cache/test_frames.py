import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from precast.cache import frames
from precast.cache.frames import compress, decompress


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
