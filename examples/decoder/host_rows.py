"""What a batch's metadata is built in on the CPU, and how it gets to the device: one copy per tensor, none awaited.

A decode step takes milliseconds on a GPU. Copying row by row, or waiting for each copy, costs as much as the step.

Shapes: R rows of the block table, M blocks per request, T rows of a batch.
"""

# ruff: noqa: N803, N806 - dimension suffixes are capitals

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["HostBlockTable", "send", "send_window", "spread"]


class HostBlockTable:
    """The block table on the CPU: only a row whose blocks changed has to be converted again."""

    __slots__ = ("_held", "_table_RM")

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, ...]] = {}
        # Made at the first batch: a context may be made under fake tensors, which are never filled.
        self._table_RM: Tensor | None = None

    def has(self, row: int, blocks: tuple[int, ...]) -> bool:
        """Tell whether a row holds just these blocks."""
        held = self._held.get(row)
        return held is blocks or held == blocks

    def update(self, rows: Iterable[tuple[int, tuple[int, ...]]], shape: Sequence[int]) -> Tensor:
        """Write the blocks of some rows.

        Args:
            rows: Numbers of the rows that changed, and the blocks of each in order of position.
            shape: R and M, of the table on the device.

        Returns:
            The table, int32 [R, M]; what a row holds after its blocks is stale.
        """
        if self._table_RM is None:
            self._table_RM = torch.zeros(*shape, dtype=torch.int32, device="cpu")
        for row, blocks in rows:
            self._table_RM[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32, device="cpu")
            self._held[row] = blocks
        return self._table_RM


def spread(starts: Sequence[int], counts: Sequence[int], owners: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Lay the tokens of requests out one after another.

    Args:
        starts: Position of each request's first token.
        counts: Tokens of each request.
        owners: A number of each request.

    Returns:
        For each token its request's number and its own position, both int64 [T] on the CPU.
    """
    starts_R, counts_R, owners_R = (
        torch.tensor([*v], dtype=torch.int64, device="cpu") for v in (starts, counts, owners)
    )
    # A request's first position less the row where it begins: added to a row's number, that is the row's position.
    shifts_R = starts_R - (counts_R.cumsum(0) - counts_R)
    owners_T, shifts_T = (torch.repeat_interleave(v, counts_R) for v in (owners_R, shifts_R))
    return owners_T, torch.arange(len(owners_T), device="cpu") + shifts_T


def send(values_T: Tensor, target_T: Tensor, rows: int, padding: int = 0) -> None:
    """Copy values to the first rows of a tensor, and padding to the rows after them.

    Args:
        values_T: Integers on the CPU.
        target_T: Where they go, on any device; its dtype may be narrower.
        rows: Rows that are written; at least as many as there are values.
        padding: What the rows after the values become.
    """
    padded_T = torch.full((rows,), padding, dtype=target_T.dtype, device="cpu", pin_memory=target_T.is_cuda)
    padded_T[: len(values_T)] = values_T
    # torch keeps pinned memory until the copies from it are done, so the next batch cannot overwrite this one.
    target_T[:rows].copy_(padded_T, non_blocking=True)


def send_window(table_RM: Tensor, target_RM: Tensor, rows: int, width: int) -> None:
    """Copy the first columns of the first rows of the CPU's block table.

    Args:
        table_RM: The table on the CPU.
        target_RM: The table on the device, of the same shape and dtype.
        rows: Rows to copy.
        width: Columns to copy.
    """
    window_RM = table_RM[:rows, :width]
    if target_RM.is_cuda:
        # One copy of adjacent bytes; the device spreads them over its wider rows.
        pinned_RM = torch.empty((rows, width), dtype=table_RM.dtype, device="cpu", pin_memory=True)
        window_RM = pinned_RM.copy_(window_RM).to(target_RM.device, non_blocking=True)
    target_RM[:rows, :width].copy_(window_RM)
