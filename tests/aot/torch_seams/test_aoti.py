"""AOTInductor's build: code for the target's instruction set alone, and no folder of this machine in it."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from precast.aot.torch_seams.aoti import _ISAS, _compiler_flags, _pinned_isa, build_package
from precast.errors import IncompatibleError


@pytest.mark.parametrize(
    ("isa", "width", "flag"), [("x86-64-v3", 256, "-mavx2"), ("x86-64-v4", 512, "-mavx512f"), ("aarch64", 128, "")]
)
def test_inductor_sees_the_target_s_vectors_and_no_others(isa: str, width: int, flag: str) -> None:
    from torch._inductor import config, cpu_vec_isa

    real = cpu_vec_isa.valid_vec_isa_list
    with _pinned_isa(_ISAS[isa][1]), config.patch({"cpp.simdlen": width}):
        found = cpu_vec_isa.pick_vec_isa()
        assert found.bit_width() == width
        assert flag in found.build_arch_flags()
        assert not any(extra in found.build_arch_flags() for extra in ("vnni", "amx", "bf16", "sve"))
    assert cpu_vec_isa.valid_vec_isa_list is real


def test_a_width_that_the_target_has_not_makes_plain_code() -> None:
    from torch._inductor import config, cpu_vec_isa

    with _pinned_isa("VecAVX2"), config.patch({"cpp.simdlen": 512}):
        assert cpu_vec_isa.pick_vec_isa() is cpu_vec_isa.invalid_vec_isa


def test_the_compiler_is_told_the_target_and_what_to_hide() -> None:
    from torch._inductor import cpp_builder

    with _compiler_flags("x86-64-v3", (Path("/build/one"), Path("/venv/torch"))):
        flags, _ = cpp_builder._get_optimization_cflags("g++")
    assert [f for f in flags if f.startswith(("march", "mtune", "mcpu"))] == ["march=x86-64-v3"]
    assert {"ffile-prefix-map=/build/one=.", "ffile-prefix-map=/venv/torch=."} <= set(flags)


def test_a_torch_with_another_function_is_refused() -> None:
    from torch._inductor import cpp_builder

    def other(wanted: str) -> tuple[list[str], list[str]]:
        return [], []

    moved = mock.patch.object(cpp_builder, "_get_optimization_cflags", other)
    with moved, pytest.raises(NotImplementedError, match="_get_optimization_cflags"), _compiler_flags("x", ()):
        pass


def test_an_instruction_set_that_nobody_has_tried_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any, **__: Any) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", build)
    for isa in ("x86-64-v2", "ppc64le", ""):
        with pytest.raises(IncompatibleError, match="no code"):
            build_package(None, tmp_path / "x.pt2", {}, isa)
