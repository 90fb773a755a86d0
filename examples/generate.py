"""Generate tokens greedily, from eager code or from a precompiled artifact.

python examples/generate.py examples/configs/tiny-llama
python examples/generate.py examples/configs/tiny-llama --artifact KEY --compare
"""

import argparse
import sys
from collections.abc import Sequence

import precast
from precast.errors import UsageError
from precast.examples.decoder.command_line import add_model_arguments, build_model, told
from precast.examples.decoder.generation import Generation, generate

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 when `--compare` finds a difference, or an error's own."""
    return told(lambda: _run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Generate tokens greedily over a paged KV cache.")
    add_model_arguments(parser)
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate (default: 32)")
    parser.add_argument(
        "--prompt-ids",
        type=int,
        nargs="+",
        action="append",
        help="token ids of a prompt; repeat it for more requests",
    )
    parser.add_argument("--compare", action="store_true", help="run eager code too, and fail unless tokens are equal")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.compare and not options.artifact:
        raise UsageError("Nothing to compare", "without --artifact, eager code is all that runs", "add --artifact KEY")
    module = build_model(options)
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


def _show(label: str, generation: Generation) -> None:
    for tokens in generation.tokens:
        print(f"{label}: {' '.join(map(str, tokens))}")
    rate = generation.decode_tokens_per_s
    print(f"{label}: prefill {generation.prefill_s * 1e3:.1f} ms, decode {rate:.1f} tokens per second")


if __name__ == "__main__":
    sys.exit(main())
