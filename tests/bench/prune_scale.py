"""How fast `precast prune` answers on a large root, in fresh processes, and how much memory that takes.

    python -m tests.bench.prune_scale [--entries 10000]

Entries are those of `inspect_scale`, each with one object of its own and three that it shares, a mega artifact of a few
bytes, a stamp and a request: some 50,000 files.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.inspect_scale import manifest

from precast.cache.canonical import canonical_json, sha256
from precast.cache.records import MegaRecord
from precast.cache.store import Store

BOUND_S, BOUND_MB = 2.0, 200


def fill(root: Path, count: int) -> None:
    """Write entries as `publish` leaves them, without its locks and syncs, which would take minutes."""
    store = Store(root)
    store.layout.prepare()
    for name in ("store", "requests", "tags"):
        (store.layout.locks / f"{name}.lock").touch()
    mega = b"mega" * 64
    for number in range(count):
        made = manifest(number)
        own = replace(made.payloads[0], object=sha256(b"own %d" % number))
        made = replace(made, payloads=(own, *made.payloads[1:]), mega=MegaRecord(sha256(mega), len(mega)))
        folder = store.layout.entry(made.key)
        folder.mkdir()
        (folder / "manifest.json").write_bytes(made.sealed().to_json())
        (folder / "model.mega").write_bytes(mega)
        (store.layout.stats / made.key).write_text(f"{10**18 + number}\n")
        pointer = {"schema": "precast.requests/1", "entries": [{"key": made.key, "hint": {"overrides": {}}}]}
        digest = sha256(b"request %d" % number)
        (store.layout.requests / f"{digest}.json").write_bytes(canonical_json(pointer))
        for payload in made.payloads:
            path = store.layout.object(payload.object)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x" * 2000)


@dataclass(frozen=True, slots=True)
class Ran:
    """What one fresh process took."""

    seconds: float
    cpu_seconds: float
    megabytes: float
    out: str


def prune(root: Path, *flags: str) -> Ran:
    """Run `precast prune` in a fresh process."""
    command = [sys.executable, "-m", "precast.cli", "prune", "--cache-dir", str(root), *flags]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed")
    return Ran(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out)


def tell(what: str, ran: Ran, *, bound: bool = True) -> bool:
    ok = ran.seconds < BOUND_S and ran.megabytes < BOUND_MB
    verdict = ("ok" if ok else "MISSED") if bound else ""
    print(f"{what:<36} {ran.seconds:7.2f} s ({ran.cpu_seconds:.2f} s of a core) {ran.megabytes:6.0f} MB  {verdict}")
    return ok or not bound


def measure(root: Path, entries: int) -> bool:
    started = time.perf_counter()
    fill(root, entries)
    files = sum(len(names) for _, _, names in os.walk(root))
    print(f"{entries} entries, {files} files, made in {time.perf_counter() - started:.0f} s")
    size = sum(path.stat().st_blocks * 512 for path in root.rglob("*")) // 2
    limit = ("--dry-run", "--max-size", str(size))
    fine = tell("dry run, half the size, no index", prune(root, *limit, "--read-only"), bound=False)
    prune(root, *limit)
    fine &= tell("dry run, half the size", prune(root, *limit))
    fine &= tell("dry run, half the size, JSON", prune(root, *limit, "--json"))
    fine &= tell("dry run, no rule", prune(root, "--dry-run"))
    done = prune(root, "--max-size", str(size), "--yes")
    fine &= tell("half of it removed", done, bound=False)
    print(done.out.splitlines()[-1])
    return fine & tell("nothing to do", prune(root, "--max-size", str(size), "--yes"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    entries = parser.parse_args().entries
    folder = Path(tempfile.mkdtemp(prefix="precast-prune-"))
    try:
        return 0 if measure(folder / "root", entries) else 1
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
