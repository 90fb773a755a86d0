"""How fast `inspect` answers on large roots: synthetic roots, timed from Python.

    python tests/bench/inspect_scale.py [--entries 10000] [--near 500]

Entries have the shape of real ones: about 150 factors, a plan and generated code of some 40 kB, and four payloads.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from precast.cache.canonical import Json, sha256
from precast.cache.diff import Side, diff_sides
from precast.cache.explain import explain
from precast.cache.factors import Factor, entry_key
from precast.cache.index import nearest, summaries
from precast.cache.lookup import Request, lookup
from precast.cache.manifest import BuildRecord, Manifest, ModelRecord, PayloadRecord
from precast.cache.side import open_side
from precast.cache.store import Store

CODE = "".join(f"    x_{line} = pieces[{line}](x_{line - 1}, weights, positions)\n" for line in range(1, 600))


def factors(number: int) -> tuple[Factor, ...]:
    torch: dict[str, Json] = {"version": f"2.{11 + number % 3}.0", "digest": sha256(b"torch %d" % (number % 3))}
    return (
        *(Factor("env", f"TORCHINDUCTOR_OPTION_{i}", str(number % 2)) for i in range(8)),
        *(Factor("config", f"model.value_{i}", number if i == 0 else i) for i in range(40)),
        *(Factor("config", f"settings.option_{i}", i) for i in range(6)),
        *(Factor("config", f"signature.input_{i}", ["bfloat16", ["tokens", 64]]) for i in range(6)),
        *(Factor("code", f"module:shop.module_{i}", sha256(b"%d %d" % (i, number % 7))) for i in range(50)),
        Factor("code", "distribution:shop-tools", {"version": "1.2", "digest": sha256(b"tools")}),
        Factor("compiler", "torch", torch),
        Factor("compiler", "target", {"device": "cuda", "arch": "sm_90"}),
        Factor("compiler", "payload", "aoti"),
        *(Factor("compiler", f"precast.splitter.module_{i}", sha256(b"own %d" % i)) for i in range(30)),
        Factor("graph", "graph", sha256(b"graph %d" % number)),
    )


def manifest(number: int) -> Manifest:
    own = factors(number)
    raws = [b"payload %d" % (number % 50 * 4 + i) for i in range(4)]
    return Manifest(
        key=entry_key(own),
        model=ModelRecord("tiny", "shop/model.py:tiny", {}),
        factors=own,
        settings=(),
        target={"device": "cuda", "arch": "sm_90"},
        stamps={"aoti": {"torch": f"2.{11 + number % 3}.0"}},
        plan={"steps": [{"piece": i, "inputs": ["x", "weights"], "outputs": ["y"]} for i in range(150)]},
        code=CODE,
        payloads=tuple(
            PayloadRecord(f"{i:016x}:1-8192", "aoti", sha256(raw), len(raw), len(raw) + 22, 2.5, (1, 8192), 8)
            for i, raw in enumerate(raws)
        ),
        constants=(),
        build=BuildRecord("2026-11-30T18:00:00Z", 20.0, "0.1.0"),
    )


def fill(root: Path, count: int) -> Store:
    """Write entries as `publish` leaves them, without its locks and syncs, which would take minutes."""
    store = Store(root)
    store.layout.prepare()
    for number in range(count):
        made = manifest(number)
        folder = store.layout.entry(made.key)
        folder.mkdir()
        (folder / "manifest.json").write_bytes(made.sealed().to_json())
        (store.layout.stats / made.key).write_text(f"{number}\n")
        for payload in made.payloads:
            path = store.layout.object(payload.object)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"")
    return store


def timed(what: str, call: Callable[[], object], times: int = 3) -> None:
    best = min(_seconds(call) for _ in range(times))
    print(f"{what:<58} {best * 1000:8.0f} ms")


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(folder: Path, entries: int, near: int) -> None:
    many = fill(folder / "many", entries)
    timed(f"ls, {entries} entries, no index", lambda: summaries(many), 1)
    timed(f"ls, {entries} entries, index there", lambda: summaries(many))
    timed(f"nearest of {entries}, no index", lambda: nearest(many, factors(0)), 1)
    timed(f"nearest of {entries}, index there", lambda: nearest(many, factors(0)))
    some = fill(folder / "some", near)
    own = factors(near - 1)
    changed = (replace(own[0], value="other"), *own[1:])
    live = Side("live", "", tuple(item for item in changed if item.group != "graph"))
    timed(f"nearest of {near}, no index", lambda: nearest(some, changed), 1)
    timed(f"nearest of {near}, index there", lambda: nearest(some, changed))
    asked = lookup(some, Request(live.factors), [], {})
    timed(f"explain, {near} entries, index there", lambda: explain(some, live, asked))
    (some.layout.stats / "index-factors.json").unlink()
    timed(f"explain, {near} entries, no index", lambda: explain(some, live, asked), 1)
    keys = [entry_key(factors(number)) for number in (0, near - 1)]
    timed(f"diff of two among {near}", lambda: diff_sides(open_side(keys[0], some), open_side(keys[1][:8], some)))
    size = sum(path.stat().st_size for path in many.layout.stats.glob("index-*"))
    print(f"{'both index files':<58} {size / 1e6:8.1f} MB")
    print(f"torch imported: {'torch' in sys.modules}; {os.cpu_count()} cores")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--near", type=int, default=500)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="precast-scale-"))
    try:
        measure(folder, given.entries, given.near)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
