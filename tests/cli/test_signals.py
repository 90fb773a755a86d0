"""Handlers are put in place for a block and taken away after it."""

import os
import signal
import threading

import pytest

from precast.cli.signals import Terminated, raising_signals


def test_sigterm_becomes_an_exception_that_cleanup_sees() -> None:
    cleaned = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            cleaned.append(True)

    with pytest.raises(Terminated), raising_signals():
        work()
    assert cleaned == [True]


def test_a_second_interrupt_is_left_to_kill() -> None:
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with raising_signals():
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, inherited)


def test_handlers_come_back_after_the_block() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with raising_signals():
        assert signal.getsignal(signal.SIGTERM) is not before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_that_the_parent_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with raising_signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_handlers_alone() -> None:
    seen: list[object] = []

    def work() -> None:
        with raising_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
