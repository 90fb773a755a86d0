"""The live side: a request's factors as they are now, with neither the model nor torch imported."""

import json
import subprocess
import sys
from pathlib import Path

from tests.conftest import REPOSITORY

from precast.aot.description import described_target

PROGRAM = """
import json, sys
from pathlib import Path
from precast.aot.live import live_side
from precast.aot.reference import parse_reference
from precast.aot.settings import resolve_settings
from precast.cache.store import Store
model, root, target = sys.argv[1:4]
settings = resolve_settings({"target": target}, {})
side, found = live_side(parse_reference(model), {"width": 4}, settings, store=Store(Path(root)))
factors = {f.label: f.value for f in side.factors}
print(json.dumps({"hit": found.hit is not None, "label": side.label, "factors": factors}))
assert not {"torch", "live_model"} & set(sys.modules)
"""


def live(model: str, root: Path, target: str) -> dict[str, object]:
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "-c", PROGRAM, model, str(root), target]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_request_for_any_target_is_formed_on_any_machine(tmp_path: Path) -> None:
    (tmp_path / "live_model.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    for target, described in (
        ("sm_90", {"device": "cuda", "arch": "sm_90", "facts": described_target("h200").code_facts()}),
        ("x86-64-v3", {"device": "cpu", "arch": "x86-64-v3"}),
    ):
        found = live(f"{tmp_path}/live_model.py:make", tmp_path / "R", target)
        factors = found["factors"]
        assert isinstance(factors, dict)
        assert (found["hit"], found["label"]) == (False, "live")
        assert factors["compiler/target"] == described
        assert factors["config/model.factory"] == "live_model:make"
        assert factors["config/model.set.width"] == 4
        assert str(tmp_path) not in json.dumps(factors)
