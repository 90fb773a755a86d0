"""Calls to a remote end, whatever the remote does."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from precast.cache.remote_calls import Calls, Limits
from precast.errors import CorruptError, RemoteError, RemoteRefusedError

QUICK = Limits(pause_s=0, call_s=30)


def failing(times: int, error: Exception) -> tuple[Callable[[], str], list[int]]:
    """A job that fails so many times, and a list with one item a call."""
    made: list[int] = []

    def job() -> str:
        made.append(1)
        if len(made) <= times:
            raise error
        return "done"

    return job, made


def test_answers_come_in_the_order_of_the_questions() -> None:
    assert Calls("s3://b", QUICK).all("reading", [partial(abs, n) for n in range(50)]) == list(range(50))
    assert Calls("s3://b", QUICK).all("reading", []) == []


def test_a_call_that_fails_for_no_lasting_reason_is_made_twice() -> None:
    job, made = failing(1, ConnectionError("reset"))
    assert Calls("s3://b", QUICK).one("reading", job) == "done"
    assert len(made) == 2


@pytest.mark.parametrize(
    ("error", "raised", "calls"),
    [
        (ConnectionError("reset"), RemoteError, 2),
        (PermissionError(13, "no"), RemoteRefusedError, 1),
        (CorruptError("damaged"), CorruptError, 1),
    ],
)
def test_a_call_is_not_made_for_ever(error: Exception, raised: type[Exception], calls: int) -> None:
    job, made = failing(99, error)
    with pytest.raises(raised):
        Calls("s3://b", QUICK).one("reading", job)
    assert len(made) == calls


def test_the_first_failure_keeps_the_rest_from_being_begun() -> None:
    begun: list[int] = []

    def job(number: int) -> None:
        begun.append(number)
        raise ConnectionError("reset")

    with pytest.raises(RemoteError):
        Calls("s3://b", Limits(workers=1, attempts=1)).all("reading", [partial(job, n) for n in range(99)])
    assert begun == [0]


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """An event that happens when the test is over, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


def test_a_call_that_never_ends_is_given_up(never: threading.Event) -> None:
    with pytest.raises(RemoteError, match="cannot be reached") as caught:
        Calls("s3://b", Limits(call_s=0.05)).one("reading v1/x", never.wait)
    assert caught.value.why == "reading v1/x: there was no answer within 0 s"


def test_all_calls_together_have_a_bound(never: threading.Event) -> None:
    calls = Calls("s3://b", Limits(call_s=60, total_s=0.05, attempts=1))
    for _ in range(2):
        with pytest.raises(RemoteError):
            calls.one("reading", never.wait)


def test_bytes_that_move_earn_time(never: threading.Event) -> None:
    """The bound of four seconds a MiB, seen from its other side: without it there would be no time at all."""
    calls = Calls("s3://b", Limits(call_s=0, total_s=0))
    assert calls.all("writing", [lambda: "done"], size=15 * 2**20) == ["done"]


_HANGING = """
import sys, threading
from precast.cache.remote_calls import Calls, Limits
from precast.errors import RemoteError
try:
    Calls("s3://b", Limits(call_s=0.05)).one("reading", threading.Event().wait)
except RemoteError:
    print("given up")
"""


def test_a_call_that_never_ends_does_not_keep_the_process_alive() -> None:
    done = subprocess.run([sys.executable, "-c", _HANGING], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "given up\n"


def test_a_server_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.cache.remote import Remote

    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        remote = Remote("s3://bucket/prefix", Limits(connect_s=0.2, read_s=0.2, pause_s=0))
        with pytest.raises(RemoteError) as caught:
            remote.has("0" * 64)
    assert "imeout" in caught.value.why or "timed out" in caught.value.why
