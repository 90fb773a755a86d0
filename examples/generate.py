"""Generate tokens greedily, from eager code or from a precompiled artifact.

python examples/generate.py examples/configs/tiny-llama
python examples/generate.py examples/configs/tiny-llama --artifact KEY --compare
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import precast
from precast.aot.spec import Json
from precast.errors import ConfigKeyError, PrecastError, UnknownModelError, UsageError
from precast.examples.decoder.generation import Generation, generate
from precast.examples.decoder.spec import from_config

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 when `--compare` finds a difference, or an error's own."""
    try:
        return _run(_parser().parse_args(argv))
    except PrecastError as error:
        lines = filter(None, (f"error: {error.what}", error.why, error.hint and f"hint: {error.hint}"))
        print(*lines, sep="\n", file=sys.stderr)
        return int(error.exit_code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Generate tokens greedily over a paged KV cache.")
    parser.add_argument("folder", type=Path, help="a folder with a config.json, and the weights if they are not random")
    parser.add_argument("--artifact", help="a key, or a model.mega file, to run instead of eager code")
    parser.add_argument("--cache-dir", type=Path, help="where precast keeps its entries")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate (default: 32)")
    parser.add_argument(
        "--prompt-ids",
        type=int,
        nargs="+",
        action="append",
        help="token ids of a prompt; repeat it for more requests",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a key of config.json")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compare", action="store_true", help="run eager code too, and fail unless tokens are equal")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.compare and not options.artifact:
        raise UsageError("Nothing to compare", "without --artifact, eager code is all that runs", "add --artifact KEY")
    module = _module(options)
    prompts = options.prompt_ids or [[1, 2, 3, 4]]
    if not options.artifact:
        _show("eager", generate(module, prompts, options.tokens))
        return 0
    loaded = precast.load(options.artifact, module, cache_dir=options.cache_dir)
    precompiled = generate(module, prompts, options.tokens, run=loaded)
    _show("precompiled", precompiled)
    if not options.compare:
        return 0
    eager = generate(module, prompts, options.tokens)
    _show("eager", eager)
    equal = precompiled.tokens == eager.tokens
    print("equal" if equal else "different")
    return 0 if equal else 1


def _module(options: argparse.Namespace) -> nn.Module:
    spec = from_config(_config(options.folder), dict(map(_override, options.set)), options.folder)
    with torch.device(options.device):
        module = spec.build()
    if spec.load_weights:
        spec.load_weights(module)
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


def _show(label: str, generation: Generation) -> None:
    for tokens in generation.tokens:
        print(f"{label}: {' '.join(map(str, tokens))}")
    rate = generation.decode_tokens_per_s
    print(f"{label}: prefill {generation.prefill_s * 1e3:.1f} ms, decode {rate:.1f} tokens per second")


if __name__ == "__main__":
    sys.exit(main())
