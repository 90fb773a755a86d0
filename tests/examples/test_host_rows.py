"""Metadata on the CPU: rows of tokens, the block table, and the one copy per tensor."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from precast.examples.decoder.host_rows import HostBlockTable, send, send_window, spread

requests_of = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 9)), max_size=6)


@given(requests=requests_of)
def test_tokens_are_laid_out_one_request_after_another(requests: list[tuple[int, int, int]]) -> None:
    starts, counts, owners = ([r[at] for r in requests] for at in range(3))

    owners_of, positions = spread(starts, counts, owners)

    assert owners_of.tolist() == [owner for _, count, owner in requests for _ in range(count)]
    assert positions.tolist() == [start + n for start, count, _ in requests for n in range(count)]


def test_padding_follows_the_values_and_later_rows_are_left_alone() -> None:
    target = torch.full((6,), 9, dtype=torch.int32)

    send(torch.tensor([1, 2]), target, 4, padding=-1)

    assert target.tolist() == [1, 2, -1, -1, 9, 9]


def test_a_window_of_the_table_is_copied() -> None:
    target = torch.full((3, 4), 9, dtype=torch.int32)

    send_window(torch.arange(12, dtype=torch.int32).view(3, 4), target, 2, 3)

    assert target.tolist() == [[0, 1, 2, 9], [4, 5, 6, 9], [9, 9, 9, 9]]


def test_the_table_knows_what_its_rows_hold() -> None:
    table = HostBlockTable()
    made = table.update([(0, (5, 6)), (2, (7,))], (3, 4))

    assert table.update([(0, (5, 6, 8))], (3, 4)) is made
    assert made.tolist() == [[5, 6, 8, 0], [0, 0, 0, 0], [7, 0, 0, 0]]
    assert table.has(0, (5, 6, 8))
    assert table.has(2, (7,))
    assert not table.has(0, (5, 6))
    assert not table.has(1, ())
