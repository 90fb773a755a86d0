"""Compare two entries of one model piece by piece: payload bytes, generated source, machine code of every kernel.

python -m tests.gpu.compare_entries A.mega B.mega

Exit status 1 when a piece's machine code, or the source that it was generated from, differs, or when there is none of
either to compare.
"""

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from precast.aot.kernels import KIND, unpack_kernels
from precast.aot.payloads.generated import source_digests
from precast.cache.manifest import PayloadRecord
from precast.cache.mega import MegaFile


def main(first: str, second: str) -> int:
    """Print one line a piece, and return the exit status."""
    sides = [MegaFile(Path(name)) for name in (first, second)]
    names = [{p.name: p for p in side.manifest.payloads} for side in sides]
    if names[0].keys() != names[1].keys():
        print(f"other pieces: {sorted(names[0].keys() ^ names[1].keys())}")
        return 1
    print(f"keys {sides[0].manifest.key[:12]} and {sides[1].manifest.key[:12]}")
    same = [
        _compare(sides[0].payload(names[0][n].object), sides[1].payload(names[1][n].object), names[0][n])
        for n in sorted(names[0])
    ]
    return 0 if all(same) else 1


def _compare(one: bytes, other: bytes, record: PayloadRecord) -> bool:
    sources = [_sources(data, record.kind) for data in (one, other)]
    kernels = [dict(_kernels(data, record.kind)) for data in (one, other)]
    print(
        f"{record.name[:12]} {record.kind:8} {len(one)} and {len(other)} bytes, "
        f"{'equal' if one == other else 'differ'}; source: {_told(*sources)}; machine code: {_told(*kernels)}"
    )
    return all(first and first == second for first, second in (sources, kernels))


def _told(one: dict[str, str], other: dict[str, str]) -> str:
    equal = sum(one[name] == other.get(name) for name in one)
    total = len({*one, *other})
    return f"{equal} of {total} equal" if one and other else "NOTHING TO COMPARE"


def _kernels(data: bytes, kind: str) -> Iterator[tuple[str, str]]:
    """Yield name and digest of each kernel's machine code."""
    if kind == KIND:
        for kernel in unpack_kernels(data):
            yield f"{kernel.label} {kernel.key}", hashlib.sha256(kernel.cubin).hexdigest()
    if kind == "aoti":
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            for name in members.namelist():
                if name.endswith(".so"):
                    yield from _embedded(members.read(name))


def _embedded(library: bytes) -> Iterator[tuple[str, str]]:
    """Find kernels by the symbols around them; read-only data lies at its own address in the file."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        shown = subprocess.run(["nm", "-D", "--defined-only", file.name], capture_output=True, text=True, check=True)
    places = {name: int(address, 16) for address, _, name in map(str.split, shown.stdout.splitlines())}
    for name, begin in places.items():
        if name.startswith("__") and name.endswith("_start") and f"{name[:-6]}_end" in places:
            code = library[begin : places[f"{name[:-6]}_end"]]
            assert code.startswith(b"\x7fELF"), name
            yield name, hashlib.sha256(code).hexdigest()


def _sources(data: bytes, kind: str) -> dict[str, str]:
    """Return the digest of each generated source that a payload keeps."""
    if kind == KIND:
        return {f"{kernel.label} {kernel.key}": kernel.source for kernel in unpack_kernels(data)}
    return source_digests(data) if kind == "aoti" else {}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
