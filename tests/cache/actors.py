"""Functions in threads of their own that are told when to go on, so that a test chooses the order of their steps."""

import threading
from collections.abc import Callable
from typing import Any


class Actor:
    """A function in a thread of its own that runs only while it is told to, from one pause to the next."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._over = False
        self.error: BaseException | None = None
        self.result: Any = None
        self._thread = threading.Thread(target=self._main, args=(run,), daemon=True)
        self._thread.start()

    def _main(self, run: Callable[[], Any]) -> None:
        self._go.acquire()
        try:
            self.result = run()
        except BaseException as error:
            self.error = error
        self._over = True
        self._stopped.release()

    def pause(self) -> None:
        """Stop here, if this is the actor's own thread."""
        if threading.current_thread() is self._thread:
            self._stopped.release()
            self._go.acquire()

    def step(self) -> None:
        """Let it run to its next pause or its end."""
        if not self._over:
            self._go.release()
            assert self._stopped.acquire(timeout=30)

    def finish(self) -> None:
        while not self._over:
            self.step()
        self._thread.join(30)


def pausing(actor: Callable[[], Actor], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function before which an actor pauses."""

    def paused(*args: Any, **others: Any) -> Any:
        actor().pause()
        return function(*args, **others)

    return paused
