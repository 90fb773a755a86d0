"""`--tune keep` on a GPU: the first process times every kernel once, the next ones time nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.conftest import MAX_TOKENS, REPOSITORY, TINY

from precast.aot.precompile import precompile
from precast.aot.settings import resolve_settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

_VERIFY = """
import json, sys
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from precast.aot.verify import verify

timed = []
real = CachingAutotuner.autotune_to_one_config

def counted(kernel, *args, **kwargs):
    timed.append(kernel.fn.__name__)
    return real(kernel, *args, **kwargs)

CachingAutotuner.autotune_to_one_config = counted
report = verify(sys.argv[1], cache_dir=sys.argv[2])
print(json.dumps({"timed": timed, "ok": report.ok, "problems": [str(p) for p in report.problems]}))
"""


def verified(key: str, root: Path, caches: Path) -> dict[str, object]:
    """Verify an entry in a process of its own, with compile caches that nothing was written to."""
    caches.mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])}
    env |= {"TRITON_CACHE_DIR": str(caches / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor")}
    command = [sys.executable, "-c", _VERIFY, key, str(root)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("tune", ["static", "keep"])
def test_a_node_chooses_once_and_remembers(tune: str, tmp_path: Path) -> None:
    flags = {"target": "cuda", "payload": "inductor", "tune": tune, "max_num_batched_tokens": MAX_TOKENS}
    values = {"dtype": "bfloat16"}
    made = precompile(str(TINY), resolve_settings(flags, {}), overrides=values, cache_dir=tmp_path / "root")
    tuned = tmp_path / "root" / "v1" / "entries" / made.key / "tuned.json"
    first = verified(made.key, tmp_path / "root", tmp_path / "first")
    assert first["ok"], first["problems"]
    assert bool(first["timed"]) is (tune == "keep")
    assert tuned.exists() is (tune == "keep")
    second = verified(made.key, tmp_path / "root", tmp_path / "second")
    assert second["ok"], second["problems"]
    assert second["timed"] == []
    if tune == "keep":
        (chosen,) = json.loads(tuned.read_text())["chosen"].values()
        assert chosen
        assert list(json.loads(tuned.read_text())["chosen"]) == [torch.cuda.get_device_name()]
