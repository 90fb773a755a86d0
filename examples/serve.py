"""Serve requests that join and leave, in one continuous batch over one paged cache.

python examples/serve.py examples/configs/tiny-llama --compare
python examples/serve.py examples/configs/llama-3.2-1b --artifact KEY --mode FULL_AND_PIECEWISE --tokens 128
"""

import argparse
import sys
from collections.abc import Sequence
from random import Random

from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.errors import UsageError
from precast.examples.decoder.command_line import add_model_arguments, build_model, told
from precast.examples.decoder.generation import generate
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.runner import artifact_runner, eager_runner
from precast.examples.decoder.scheduler import Request
from precast.examples.decoder.server import Served, Server, serve
from precast.examples.decoder.serving import DecoderState

__all__ = ["main"]

_MODES = tuple(CUDAGraphMode.__members__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 when `--compare` finds a difference, or an error's own."""
    return told(lambda: _run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Serve random prompts in one continuous batch.")
    add_model_arguments(parser)
    parser.add_argument(
        "--mode", choices=_MODES, help="CUDA graphs (default: FULL_AND_PIECEWISE of an artifact on a GPU)"
    )
    parser.add_argument("--requests", type=int, default=16, help="requests in all (default: 16)")
    parser.add_argument("--join-every", type=int, default=2, help="steps between two that join (default: 2)")
    parser.add_argument("--longest-prompt", type=int, default=96, help="most tokens of a prompt (default: 96)")
    parser.add_argument("--tokens", type=int, default=32, help="most tokens of an answer (default: 32)")
    parser.add_argument("--seed", type=int, default=0, help="decides prompts and lengths (default: 0)")
    parser.add_argument("--max-num-seqs", type=int, default=8, help="requests of a step (default: 8)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=64, help="tokens of a step (default: 64)")
    parser.add_argument("--kv-blocks", type=int, help="blocks of the KV cache (default: enough for every request)")
    parser.add_argument("--block-size", type=int, default=16, help="tokens per block (default: 16)")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="decode each request alone in eager code too, and fail unless tokens are equal (with random weights, "
        "bfloat16 rounds two tokens to equal: add --set dtype=float32)",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    for name in ("requests", "longest_prompt", "tokens", "block_size"):
        if getattr(options, name) < 1:
            raise UsageError(
                f"--{name.replace('_', '-')} must be at least 1", f"got {getattr(options, name)}", "raise it"
            )
    module = build_model(options)
    limits = BatchLimits(max_num_batched_tokens=options.max_num_batched_tokens, max_num_seqs=options.max_num_seqs)
    requests = _requests(options, module.config.vocab_size)
    state = _state(options, module, limits)
    mode = None if options.mode is None else CUDAGraphMode[options.mode]
    if options.artifact:
        runner = artifact_runner(options.artifact, module, state, limits, mode=mode, cache_dir=options.cache_dir)
    else:
        runner = eager_runner(module, state, limits, mode=mode)
    arrivals = [(at * options.join_every, request) for at, request in enumerate(requests)]
    served = serve(Server(module, state, limits, runner), arrivals)
    _show(served, runner)
    return _compare(module, requests, served) if options.compare else 0


def _requests(options: argparse.Namespace, vocabulary: int) -> list[Request]:
    chance = Random(options.seed)  # noqa: S311 - prompts are no secrets
    return [
        Request(
            f"request {number}",
            tuple(chance.randrange(vocabulary) for _ in range(chance.randint(1, options.longest_prompt))),
            chance.randint(1, options.tokens),
        )
        for number in range(options.requests)
    ]


def _state(options: argparse.Namespace, module: DecoderModel, limits: BatchLimits) -> DecoderState:
    longest = min(options.longest_prompt + options.tokens, module.config.max_position_embeddings)
    blocks = options.kv_blocks
    if blocks is None:
        blocks = limits.max_num_seqs * -(-longest // options.block_size)
    return DecoderState(module, limits, num_blocks=blocks, max_length=longest, block_size=options.block_size)


def _show(served: Served, runner: GraphManager) -> None:
    count = sum(map(len, served.answers.values()))
    print(
        f"{len(served.answers)} requests, {count} tokens in {served.seconds:.3f} s: "
        f"{served.tokens_per_s:.1f} tokens per second, {served.preemptions} preemptions"
    )
    for mode, found in served.counts.items():
        rows = found.tokens + found.padding
        print(f"{mode.name}: {found.steps} steps, {rows} rows, {found.padding} of them padded ({found.waste:.1%})")
    for reason, steps in runner.dispatcher.counts().misses.items():
        print(f"without a graph: {steps} steps, {reason}")
    if missing := runner.counts().uncaptured:
        print(f"without the graph that dispatch named: {missing} steps or pieces")


def _compare(module: DecoderModel, requests: Sequence[Request], served: Served) -> int:
    different = []
    for request in requests:
        alone = generate(module, [request.prompt], request.max_tokens).tokens[0]
        if served.answers[request.name] != alone:
            different.append(request.name)
            print(f"{request.name}: served {served.answers[request.name]}, alone {alone}")
    print(f"{len(different)} of {len(requests)} different" if different else f"all {len(requests)} equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
