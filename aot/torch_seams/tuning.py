"""Seams to the configs of Triton kernels in an `inductor` artifact: which are stored, and which one a load takes.

Inductor's heuristics give a kernel several configs, persistent reductions even where nothing is to be tuned. A kernel
that was stored with several loads them all, and the first call times them (`CachingAutotuner.run`).
`StaticAutotunerFuture.result` asks for an earlier choice before it loads anything: there an entry's own record takes
the place of Inductor's cache, which lies beside files that only the build had.

Tried on torch 2.11.0; the names were looked up in 2.13.0. A name that is gone is an error.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

from precast.errors import IncompatibleError

__all__ = ["configs_chosen", "first_configs"]


@contextmanager
def first_configs() -> Iterator[None]:
    """Compile one config of each kernel while the block runs: the first that compiles, as AOTInductor does.

    So no call of what is stored times anything (`CachingAutotuner._precompile_worker`).

    Raises:
        IncompatibleError: This torch compiles configs in another way.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner, NoTritonConfigsError

    name = "_precompile_worker"
    real = _member(CachingAutotuner, name)

    def compile_first(kernel: Any) -> None:
        configs = list(kernel.configs or ())
        if kernel.compile_results or len(configs) < 2:
            real(kernel)
            return
        for config in configs:
            kernel.configs = [config]
            try:
                real(kernel)
            except NoTritonConfigsError:  # it wants more than the device has
                if config is configs[-1]:
                    raise
            else:
                return

    with mock.patch.object(CachingAutotuner, name, compile_first):
        yield


@contextmanager
def configs_chosen(chosen: Mapping[str, str], on_chosen: Callable[[str, str], None]) -> Iterator[None]:
    """Let kernels that are loaded while the block runs take the config that was chosen for them earlier.

    Args:
        chosen: Configs by kernel, both as digests. One that the kernel does not have counts as not chosen.
        on_chosen: Is told kernel and config when a kernel chooses by timing, at any time after the block too.

    Raises:
        IncompatibleError: This torch asks for earlier choices in another way.
    """
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    name = "recheck_autotune_cache"
    real = _member(CachingAutotuner, name)

    def recheck(kernel: Any, *args: Any, **kwargs: Any) -> None:
        results = {_digest(result.kernel.hash): result for result in kernel.compile_results}
        if len(results) < 2:
            real(kernel, *args, **kwargs)
            return
        own = _digest(*sorted(results))
        taken = results.get(chosen.get(own, ""))
        if taken is not None:
            kernel.compile_results = [taken]
            return

        def keep(config: Any, *_: Any, **__: Any) -> None:
            for name, result in results.items():
                if result.config is config:
                    on_chosen(own, name)

        kernel.save_cache_hook = keep

    with mock.patch.object(CachingAutotuner, name, recheck):
        yield


def _member(owner: Any, name: str) -> Any:
    import torch

    if not hasattr(owner, name):
        raise IncompatibleError(
            f"the configs of Triton kernels cannot be chosen with torch {torch.__version__}",
            f"it has no `{owner.__name__}.{name}`",
            "use --payload aoti, or a version of torch that precast was tried on",
        )
    return getattr(owner, name)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
