"""Fresh processes start fast, import no torch and write no escapes where no terminal is."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.support import publish

_SOURCES = Path(__file__).parents[2] / "src"
_PROBE = """
import sys
from precast.cli.app import main
code = main(sys.argv[1:])
heavy = [name for name in ("torch", "triton", "huggingface_hub", "rich", "jsonschema") if name in sys.modules]
sys.stderr.write(f"heavy={heavy}")
sys.exit(code)
"""


def _environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(_SOURCES), **more}


def _spawn(*argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "precast.cli", *argv],
        env=_environ(**more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["inspect", "ls"],
        ["inspect", "ENTRY"],
        ["inspect", "show", "ENTRY", "--factors", "--json"],
        ["inspect", "diff", "ENTRY", "ENTRY", "--patch"],
        ["inspect", "stats"],
        ["inspect", "coverage", "--drafts", "2"],
        ["config"],
        ["schema", "verify"],
        ["prune", "--dry-run"],
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_commands_that_look_at_the_store_import_nothing_heavy(root: Path, argv: list[str]) -> None:
    key = publish(root, "tiny")
    words = [key[:12] if word == "ENTRY" else word for word in argv]
    ran = subprocess.run(
        [sys.executable, "-c", _PROBE, *words], env=_environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.endswith("heavy=[]")


def test_an_explanation_imports_nothing_heavy(root: Path, own_place: Path) -> None:
    pytest.importorskip("precast.aot.live", reason="the live side is not there yet")
    publish(root, "tiny")
    (own_place / "m.py").write_text("raise RuntimeError('explaining imports no model')\n")
    words = ["inspect", "explain", "m.py:build", "--target", "cpu"]
    ran = subprocess.run(
        [sys.executable, "-c", _PROBE, *words], env=_environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 3, ran.stderr
    assert ran.stderr.endswith("heavy=[]")


def test_a_gpu_is_looked_for_without_anything_heavy() -> None:
    environ = {**_environ(), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", _PROBE, "precompile", "--describe-target"]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 9, ran.stderr
    assert ran.stderr.endswith("heavy=[]")


@pytest.mark.parametrize("more", [{}, {"GITHUB_ACTIONS": "true"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
@pytest.mark.parametrize(
    "argv", [["--help"], ["precompile", "--help"], ["precompile", "--bogus"], ["bogus"], ["inspect", "ls"], ["config"]]
)
def test_no_escape_byte_reaches_a_pipe(root: Path, argv: list[str], more: dict[str, str]) -> None:
    ran = _spawn(*argv, **more)
    assert ran.stdout + ran.stderr
    assert "\x1b" not in ran.stdout + ran.stderr


def test_color_can_be_forced_into_a_pipe(root: Path) -> None:
    assert "\x1b[31merror:\x1b[0m" in _spawn("bogus", "--color", "always").stderr
    assert "\x1b" in _spawn("config", FORCE_COLOR="1").stdout


def test_an_ascii_stream_gets_ascii(root: Path) -> None:
    publish(root, "tiny")
    ran = _spawn("inspect", "ls", PYTHONIOENCODING="ascii")
    assert ran.returncode == 0
    assert ran.stdout.isascii()


@pytest.mark.parametrize(
    ("number", "status", "code"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_unwinds_the_stack_and_has_its_status(
    tmp_path: Path, number: signal.Signals, status: int, code: str
) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import os, signal, sys, threading, types\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "from precast.cli.app import main\n"
        "def precompile(*args, **kwargs):\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        threading.Event().wait(30)\n"
        "    finally:\n"
        "        sys.stderr.write('temporary work removed\\n')\n"
        "module = types.ModuleType('precast.aot.precompile')\n"
        "module.precompile = precompile\n"
        "sys.modules[module.__name__] = module\n"
        "sys.exit(main(['precompile', 'm.py:f', '--json']))\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], env=_environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == status
    assert "temporary work removed" in ran.stderr
    assert json.loads(ran.stdout)["errors"][0]["code"] == code
