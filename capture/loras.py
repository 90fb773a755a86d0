"""LoRA cases: the numbers of active adapters that graphs are captured for (vllm-behaviour.md step 8).

A kernel that serves adapters is launched for a fixed number of them, so a graph holds that number. One more than the
most stands for rows without an adapter beside rows that use every adapter.
"""

from collections.abc import Sequence

from precast.capture.limits import LoraLimits

__all__ = ["lora_case", "lora_cases"]


def lora_cases(limits: LoraLimits) -> tuple[int, ...]:
    """Return the numbers of active adapters to capture graphs for, ascending (vllm-behaviour.md step 8).

    Without adapters that is 0 alone. With them, one case that fits every batch, and as asked 0 and the powers of two.
    The case that fits every batch is also what batches of padding run with.
    """
    if limits.max_loras == 0:
        return (0,)
    most = limits.max_loras + 1
    if not limits.specialize:
        return (most,)
    if not limits.specialize_active:
        return (0, most)
    powers = [1 << n for n in range(limits.max_loras.bit_length())]
    return tuple(sorted({0, *powers, most}))


def lora_case(num_active_loras: int, cases: Sequence[int]) -> int | None:
    """Return the case that a batch runs as: the smallest that holds its adapters, else the largest.

    Args:
        num_active_loras: Adapters that the batch uses.
        cases: What `lora_cases` returned.

    Returns:
        The case, or None where adapters are in use and no case has any: such a graph would leave them out.
    """
    if num_active_loras and cases[-1] == 0:
        return None
    return next((c for c in cases if c >= num_active_loras), cases[-1])
