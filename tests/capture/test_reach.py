"""What a batch can reach with any sizes; every case against all sets of sizes is in `test_closing`."""

import pytest
from tests.capture.batches import limits_of

from precast.capture.dispatch import Batch
from precast.capture.modes import CUDAGraphMode
from precast.capture.reach import reach

PAIR, FULL, PIECEWISE = CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
NONE, DECODE_ONLY = CUDAGraphMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY
LIMITS = {"max_num_batched_tokens": 64, "max_num_seqs": 12, "num_ubatches": 2, "ubatch_decode_tokens": 4}
SPLIT = Batch(12, 20, max_query_len=2, num_ubatches=2)


@pytest.mark.parametrize(
    ("mode", "sizes", "batch", "best"),
    [
        (PAIR, [], Batch(12, 12, 1, max_query_len=1), FULL),
        (PAIR, [], Batch(12, 24, 2, max_query_len=2), PIECEWISE),
        (PAIR, [], Batch(13, 13, 1, max_query_len=1), PIECEWISE),
        (DECODE_ONLY, [], Batch(3, 9), NONE),
        (PAIR, [], Batch(4, 65), NONE),
        (PAIR, [], Batch(4, 4, 1, 1, 1), NONE),
        (PAIR, [], Batch(4, 4, 1, 0, 1, 2), FULL),
        (PAIR, [], Batch(4, 4, 1, 0, 1, 3), NONE),
        (FULL, [], SPLIT, FULL),
        # The size after 20 tokens stays 22, which 12 requests do not share evenly.
        (FULL, [22], SPLIT, NONE),
        (FULL, [24], SPLIT, FULL),
    ],
)
def test_known_cases(mode: CUDAGraphMode, sizes: list[int], batch: Batch, best: CUDAGraphMode) -> None:
    assert reach(mode, sizes, limits_of(LIMITS), batch) is best
