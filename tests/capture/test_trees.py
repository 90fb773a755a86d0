"""Trees of tensors keep their form, and their other values."""

from typing import NamedTuple

import torch

from precast.capture.trees import map_tensors


class Pair(NamedTuple):
    first: torch.Tensor
    second: object


def test_each_tensor_is_replaced_from_left_to_right() -> None:
    tree = (torch.tensor(1), [torch.tensor(2), {"a": torch.tensor(3)}], Pair(torch.tensor(4), "x"), None, 5)
    seen: list[int] = []

    def number(tensor: torch.Tensor) -> str:
        seen.append(int(tensor))
        return f"t{int(tensor)}"

    made = map_tensors(number, tree)
    assert made == ("t1", ["t2", {"a": "t3"}], Pair("t4", "x"), None, 5)
    assert seen == [1, 2, 3, 4]
    assert type(made[2]) is Pair


def test_a_bare_tensor_and_a_bare_value() -> None:
    assert map_tensors(lambda t: t + 1, torch.tensor(1)) == 2
    assert map_tensors(lambda t: t + 1, "x") == "x"
