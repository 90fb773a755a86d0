"""Weights by their Hugging Face names: real ones from safetensors files, or seeded random ones.

A fused parameter is a stack of several named weights. Each name stands for a view of its rows, so that
loading is a copy.
"""

import json
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from precast.errors import WeightError
from precast.examples.decoder.model import DecoderModel

__all__ = ["find_weights", "load_weights", "named_weights", "randomize_weights"]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf")
_MENTIONED = 8


def named_weights(module: DecoderModel) -> dict[str, Tensor]:
    """Map every weight's Hugging Face name to the tensor, or view of a fused one, that holds it."""
    config = module.config
    query, key_value = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    inner = config.intermediate_size
    stacks = {
        "qkv_proj": (("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)),
        "gate_up_proj": (("gate_proj", inner), ("up_proj", inner)),
    }
    weights: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        *owner, leaf, kind = name.split(".")
        if (stack := stacks.get(leaf)) is None:
            weights[name] = parameter.detach()
            continue
        views = parameter.detach().split([rows for _, rows in stack])
        weights |= {".".join((*owner, part, kind)): view for (part, _), view in zip(stack, views, strict=True)}
    return weights


def find_weights(folder: Path) -> tuple[Path, ...]:
    """List the safetensors files of a folder; none means that the folder holds a configuration only.

    Raises:
        WeightError: The index is damaged, a file is not there, or the weights are in another format.
    """
    if (index := folder / _INDEX).is_file():
        return _shards(index)
    if (single := folder / _SINGLE).is_file():
        return (single,)
    others = sorted(path.name for pattern in _OTHER_FORMATS for path in folder.glob(pattern))
    strays = sorted(path.name for path in folder.glob("*.safetensors"))
    if others or strays:
        raise WeightError(
            f"No {_SINGLE} or {_INDEX} among the weights",
            f"the folder holds {', '.join((others + strays)[:_MENTIONED])}",
            "save the model with safetensors, with an index if it is sharded",
            path=str(folder),
        )
    return ()


def load_weights(module: DecoderModel, files: tuple[Path, ...]) -> None:
    """Fill the module's parameters from safetensors files, converting dtypes.

    Nothing is written before every name and shape has been compared.

    Raises:
        WeightError: Weights are missing, unexpected or of the wrong shape; all of them are named at once.
    """
    wanted = named_weights(module)
    with ExitStack() as stack:
        found: dict[str, safe_open] = {}
        for path in files:
            file = stack.enter_context(_open(path))
            found |= {name: file for name in file.keys() if not _superfluous(name, module)}  # noqa: SIM118
        _refuse(tuple(_mismatches(wanted, found)))
        for name, target in wanted.items():
            target.copy_(_tensor(found[name], name))


def _superfluous(name: str, module: DecoderModel) -> bool:
    """Tell whether a checkpoint may hold a weight that the model does not: a tied head, or rotary factors."""
    return (name == "lm_head.weight" and module.lm_head is None) or name.endswith("rotary_emb.inv_freq")


def randomize_weights(module: DecoderModel, seed: int = 0) -> None:
    """Fill the module's parameters with random values that keep activations near unit size.

    Each weight has a generator of its own, on its own device: its values depend on the seed, its name and the
    kind of device, and not on how many layers come before it.
    """
    for name, target in named_weights(module).items():
        generator = torch.Generator(target.device).manual_seed(zlib.crc32(name.encode()) ^ seed)
        if target.dim() == 2:
            target.normal_(0.0, target.shape[1] ** -0.5, generator=generator)
        else:
            # A norm's weight is near one, a bias is small; neither is constant, so that a mix-up shows.
            target.normal_(1.0 if "norm" in name else 0.0, 0.1, generator=generator)


def _shards(index: Path) -> tuple[Path, ...]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightError(f"Damaged index: {index.name}", str(error), "download it again", path=str(index)) from error
    paths = tuple(index.parent / name for name in names)
    if missing := [path.name for path in paths if not path.is_file()]:
        what = f"{index.name} names files that are not there"
        raise WeightError(what, ", ".join(missing[:_MENTIONED]), "download the missing shards", path=str(index))
    return paths


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightError(
            f"Unreadable weights: {path.name}", str(error), "download them again", path=str(path)
        ) from error


def _tensor(file: Any, name: str) -> Tensor:
    return file.get_tensor(name)


def _shape(file: Any, name: str) -> list[int]:
    """Read a shape from the header alone."""
    return list(file.get_slice(name).get_shape())


def _mismatches(wanted: dict[str, Tensor], found: dict[str, safe_open]) -> Iterator[str]:
    for name, target in wanted.items():
        if name not in found:
            yield f"missing {name} {list(target.shape)}"
        elif (shape := _shape(found[name], name)) != list(target.shape):
            yield f"{name} is {shape}, the model needs {list(target.shape)}"
    for name in sorted(found.keys() - wanted.keys()):
        yield f"unexpected {name} {_shape(found[name], name)}"


def _refuse(problems: tuple[str, ...]) -> None:
    if problems:
        more = f"; and {len(problems) - _MENTIONED} more" if len(problems) > _MENTIONED else ""
        raise WeightError(
            f"{len(problems)} weights do not fit the model",
            "; ".join(problems[:_MENTIONED]) + more,
            "check that config.json, the overrides and the weights belong together",
        )
