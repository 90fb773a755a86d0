"""Remotes on a real S3 server: what holds in memory holds there."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cache.remotes import REQUEST, local_store, with_entry
from tests.cache.support import PAYLOADS, files_below, flip
from tests.s3 import S3

from precast.cache.canonical import sha256
from precast.cache.remote import Remote
from precast.cache.remote_calls import Limits
from precast.cache.remote_store import manifest_name, object_name, pointer_name
from precast.errors import CorruptError, RemoteError, RemoteRefusedError

pytestmark = pytest.mark.usefixtures("s3")

QUICK = Limits(pause_s=0)


def test_an_entry_travels(s3: S3, tmp_path: Path) -> None:
    bucket = s3.bucket()
    here, key = with_entry(tmp_path / "a")
    remote = Remote(f"s3://{bucket}/some/prefix", QUICK)
    assert remote.push(here, key, [REQUEST]).objects == 2
    objects = [object_name(sha256(raw)) for raw in PAYLOADS]
    names = [*objects, manifest_name(key), pointer_name(REQUEST, key)]
    assert sorted(s3.files(bucket)) == sorted(f"some/prefix/{name}" for name in names)
    there = local_store(tmp_path / "b")
    reader = Remote(f"s3://{bucket}/some/prefix", QUICK)
    assert (reader.candidates(REQUEST), reader.keys(key[:8]), reader.has("0" * 64)) == ((key,), (key,), False)
    assert reader.fetch(there, key).objects == 2
    assert files_below(there.layout.entry(key)) == files_below(here.layout.entry(key))
    assert remote.push(here, key, [REQUEST]).bytes == 0


@pytest.mark.parametrize(
    ("word", "how"),
    [("objects", flip(500)), ("objects", None), ("manifest", lambda data: data[:-2])],
    ids=["flipped object", "missing object", "truncated manifest"],
)
def test_damage_on_the_server_is_found_and_replaced(
    s3: S3, tmp_path: Path, word: str, how: Callable[[bytes], bytes] | None
) -> None:
    bucket = s3.bucket()
    here, key = with_entry(tmp_path / "a")
    remote, there = Remote(f"s3://{bucket}", QUICK), local_store(tmp_path / "b")
    remote.push(here, key)
    name = min(name for name in s3.files(bucket) if word in name)
    if how is None:
        s3.client.delete_object(Bucket=bucket, Key=name)
    else:
        s3.put(bucket, {name: how(s3.files(bucket)[name])})
    with pytest.raises(CorruptError):
        remote.fetch(there, key)
    assert list(there.entries()) == []
    remote.push(here, key)
    assert remote.fetch(there, key).manifest == here.manifest(key)


def test_the_first_of_two_manifests_stays_even_if_they_come_at_once(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writer had seen none: the server itself refuses it."""
    bucket = s3.bucket()
    files = Remote(f"s3://{bucket}", QUICK).store._files
    name = manifest_name("0" * 64)
    monkeypatch.setattr(files, "size", lambda _: None)
    assert (files.create(name, b"first"), files.create(name, b"second")) == (True, False)
    assert s3.files(bucket) == {name: b"first"}


def test_a_bucket_that_is_not_there_is_a_refusal_and_no_miss(tmp_path: Path) -> None:
    here, key = with_entry(tmp_path / "a")
    remote = Remote("s3://no-such-bucket/prefix", QUICK)
    for call in (lambda: remote.has(key), lambda: remote.candidates(REQUEST), lambda: remote.push(here, key)):
        with pytest.raises(RemoteRefusedError, match="refuses"):
            call()


def test_a_server_that_is_gone_is_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:secret@127.0.0.1:{port}")
    with pytest.raises(RemoteError) as caught:
        Remote("s3://bucket", QUICK).has("0" * 64)
    assert caught.value.code == "remote.unreachable"
    assert "secret" not in str(caught.value)


def test_a_server_that_stops_in_the_middle_leaves_no_half_an_entry(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its buckets are those of the other server of this process, so that one can look at what was left."""
    from moto.server import ThreadedMotoServer

    bucket = s3.bucket()
    here, key = with_entry(tmp_path / "a")
    mortal = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    mortal.start()
    host, port = mortal.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    remote = Remote(f"s3://{bucket}", QUICK)
    files = remote.store._files
    create = files.create

    def stop_first(name: str, data: bytes) -> bool:
        mortal.stop()
        return create(name, data)

    monkeypatch.setattr(files, "create", stop_first)
    with pytest.raises(RemoteError, match="cannot be reached"):
        remote.push(here, key, [REQUEST])
    assert sorted(s3.files(bucket)) == sorted(object_name(sha256(raw)) for raw in PAYLOADS)
