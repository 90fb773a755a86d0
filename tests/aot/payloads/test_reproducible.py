"""Two builds of one piece in two folders and two environments give equal bytes, whatever the kind of payload."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.conftest import REPOSITORY

from precast.aot.payloads.generated import source_digests
from precast.cache.paths import absolute_paths

_BUILD = """
import sys
from pathlib import Path
import torch
from precast.aot.payloads import BuildJob, payload_kind
from precast.aot.target import Target, cpu_isa

class Piece(torch.nn.Module):
    def forward(self, x, w):
        return torch.nn.functional.silu(x @ w).softmax(-1)

tokens = torch.export.Dim("tokens", min=1, max=512)
program = torch.export.export(Piece(), (torch.randn(7, 8), torch.randn(8, 8)), dynamic_shapes=({0: tokens}, None))
folder = Path(sys.argv[2])
made = payload_kind(sys.argv[1]).build(BuildJob(program, Target("cpu", cpu_isa()), {}, folder))
(folder / "payload").write_bytes(made)
"""


def build(kind: str, folder: Path, site: Path) -> bytes:
    folder.mkdir(parents=True)
    script = folder / "build.py"
    script.write_text(_BUILD, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY / "src")]), "TMPDIR": str(folder)}
    env |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(script), kind, str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "payload").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["aoti", "inductor"])
def test_another_folder_and_another_environment_give_equal_bytes(kind: str, tmp_path: Path) -> None:
    other = tmp_path / "venv" / "site-packages"
    other.mkdir(parents=True)
    (other / "torch").symlink_to(Path(torch.__file__).parent)  # so that torch and its headers lie elsewhere
    one, two = (
        build(kind, tmp_path / "a", tmp_path / "nothing"),
        build(kind, tmp_path / "somewhere" / "else", other),
    )
    assert one == two
    assert absolute_paths(one) == ()
    if kind == "aoti":
        assert len(source_digests(one)) == 2  # of the wrapper and of the kernels
