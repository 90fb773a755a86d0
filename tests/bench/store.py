"""Measure what the store costs: publishing beside the compile, and verifying digests beside sha256 alone.

    python -m tests.bench.store [--entry-root FOLDER] [--size-mb 100]

Publishing is measured with the payloads of a real entry, against the seconds that its build recorded; the entry is the
first one below `--entry-root`, which is `PRECAST_TEST_ROOT` by default. Without one, a stand-in entry of four payloads
of 300 kB is held against 20 s, less than four layers of a toy model take, and the line says so. Exit 1 when a bound is
missed.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from precast.cache.canonical import sha256
from precast.cache.factors import Factor, entry_key
from precast.cache.manifest import BuildRecord, Manifest, ModelRecord, PayloadRecord
from precast.cache.mega import write_mega
from precast.cache.store import Store

REPEATS = 5
STAND_IN_SECONDS = 20.0
PUBLISH_BOUND = 0.05
VERIFY_BOUND = 0.5


def manifest(raws: list[bytes], seconds: float) -> Manifest:
    """Make a manifest for some payloads."""
    factors = (Factor("config", "model.number", len(raws)), Factor("graph", "graph", sha256(raws[0])))
    return Manifest(
        key=entry_key(factors),
        model=ModelRecord("bench", "bench.model:build", {}),
        factors=factors,
        settings=(),
        target={"device": "cpu", "arch": "x86-64-v3"},
        stamps={"aoti": {"torch": "2.13.0"}},
        plan={"steps": []},
        code="",
        payloads=tuple(
            PayloadRecord(f"{i:016x}:1-512", "aoti", sha256(raw), len(raw), len(raw), seconds, (1, 512), 1)
            for i, raw in enumerate(raws)
        ),
        constants=(),
        build=BuildRecord("2026-11-30T18:00:00Z", seconds, "0.1.0"),
    )


def publish(root: Path, draft: Manifest, raws: list[bytes]) -> Store:
    """Publish an entry as a compile does: objects, mega artifact, manifest, and a look at the result."""
    store = Store(root)
    for raw in raws:
        store.put_object(raw)
    store.publish(draft, write_mega(draft, {sha256(raw): raw for raw in raws}, {}))
    store.manifest(draft.key)
    return store


def timed(work: Callable[[], object]) -> float:
    """Return the wall time of some work, in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def real_entry(root: Path | None) -> tuple[Manifest, list[bytes]] | None:
    """Return a real entry, as it was before it was published."""
    if root is None or not (root / "v1" / "entries").is_dir():
        return None
    store = Store(root, read_only=True)
    for line in store.entries():
        if line.manifest is not None and line.state == "ok":
            raws = [store.read_object(name, size) for name, size in line.manifest.objects.items()]
            return replace(line.manifest, mega=None, digest="", content_digest=""), raws
    return None


def measure_publishing(folder: Path, root: Path | None) -> bool:
    """Print what publishing costs in parts of the compile."""
    found = real_entry(root)
    if found is None:
        raws = [os.urandom(300_000) for _ in range(4)]
        found, what = (manifest(raws, STAND_IN_SECONDS), raws), f"a stand-in compile of {STAND_IN_SECONDS:g} s"
    else:
        what = f"a real compile of {found[0].build.seconds:.1f} s"
    draft, raws = found
    took = statistics.median(
        timed(partial(publish, folder / f"publish-{number}", draft, raws)) for number in range(REPEATS)
    )
    part = took / draft.build.seconds
    size = sum(map(len, raws)) / 1e6
    return report(f"publishing {size:.1f} MB, {took * 1000:.0f} ms beside {what}", part, PUBLISH_BOUND, at_most=True)


def measure_verifying(folder: Path, size: int, count: int) -> bool:
    """Print how fast the digests of an entry are checked, in parts of what sha256 alone reaches.

    The size is what the entry takes on disk, as `inspect ls` counts: half for the objects, half for the mega artifact.
    """
    raws = [os.urandom(size // 2 // count) for _ in range(count)]
    draft = manifest(raws, 1.0)
    store = publish(folder / f"verify-{count}", draft, raws)
    whole = b"".join(raws) * 2
    assert store.check(draft.key) == ()
    alone, checked = [], []
    for _ in range(REPEATS):  # in turns, and the best of each, because other work on the machine slows both down
        alone.append(timed(lambda: hashlib.sha256(whole).digest()))
        checked.append(timed(lambda: store.check(draft.key)))
    rates = [len(whole) / min(times) / 1e6 for times in (checked, alone)]
    what = f"verifying {size / 1e6:.0f} MB in {count} payloads, {rates[0]:.0f} MB/s beside {rates[1]:.0f} MB/s"
    return report(what, rates[0] / rates[1], VERIFY_BOUND, at_most=False)


def report(what: str, value: float, bound: float, *, at_most: bool) -> bool:
    """Print a figure, and tell whether it holds its bound."""
    ok = value <= bound if at_most else value >= bound
    word = "at most" if at_most else "at least"
    print(f"{what:<78} {value:7.3f} ({word} {bound:g}) {'ok' if ok else 'MISSED'}")
    return ok


def main(argv: list[str] | None = None) -> int:
    """Measure and print everything; 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = os.environ.get("PRECAST_TEST_ROOT")
    parser.add_argument("--entry-root", type=Path, default=Path(known) if known else None)
    parser.add_argument("--size-mb", type=int, default=100)
    given = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="precast-bench-"))
    try:
        size = given.size_mb * 10**6
        held = [
            measure_publishing(folder, given.entry_root),
            *(measure_verifying(folder, size, count) for count in (1, 4, 32)),
        ]
    finally:
        shutil.rmtree(folder)
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
