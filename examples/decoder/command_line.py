"""What the example commands share: which model, on which device, and how errors are told."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from precast.aot.spec import Json
from precast.errors import ConfigKeyError, PrecastError, UnknownModelError
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.spec import from_config

__all__ = ["add_model_arguments", "build_model", "told"]


def told(command: Callable[[], int]) -> int:
    """Run a command; an error becomes up to three lines on stderr, and its own exit status."""
    try:
        return command()
    except PrecastError as error:
        lines = filter(None, (f"error: {error.what}", error.why, error.hint and f"hint: {error.hint}"))
        print(*lines, sep="\n", file=sys.stderr)
        return int(error.exit_code)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `build_model` reads, and those that name an artifact."""
    parser.add_argument("folder", type=Path, help="a folder with a config.json, and the weights if they are not random")
    parser.add_argument("--artifact", help="a key, or a model.mega file, to run instead of eager code")
    parser.add_argument("--cache-dir", type=Path, help="where precast keeps its entries")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of config.json")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def build_model(options: argparse.Namespace) -> DecoderModel:
    """Build the model that the options name, with its weights.

    Raises:
        UnknownModelError: The folder holds no readable config.json.
        ConfigKeyError: An override names no key.
        ConfigValueError: The configuration asks for what this family does not compute.
        WeightError: The weights do not fit.
    """
    spec = from_config(_config(options.folder), dict(map(_override, options.set)), options.folder)
    with torch.device(options.device):
        module = spec.build()
    if spec.load_weights:
        spec.load_weights(module)
    assert isinstance(module, DecoderModel)
    return module


def _config(folder: Path) -> dict[str, Json]:
    try:
        config: dict[str, Json] = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise UnknownModelError(
            f"No readable config.json in {folder}", str(error), "name a Hugging Face model folder"
        ) from error
    return config


def _override(text: str) -> tuple[str, Json]:
    """Read `key=value`; a value that is not JSON is taken as text."""
    key, separator, value = text.partition("=")
    if not separator:
        raise ConfigKeyError(f"Not a setting: {text}", "it has no equals sign", "write --set key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
