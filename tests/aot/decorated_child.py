"""A serving process with a decorated class: `python -m tests.aot.decorated_child VALUE...` calls one instance a value.

It prints what each instance returned, what was traced and compiled meanwhile, and whether Dynamo was imported. With
`--exported` first, payloads are exported programs.
"""

# mypy: allow-subclassing-any

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from tests.aot.exported import exported_payloads
from torch import Tensor, nn

from precast import Settings, support_torch_compile
from precast.aot.torch_seams.watch import CompileWatch


@support_torch_compile(settings=Settings(max_num_batched_tokens=16, jobs=1))
class Net(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.kinds = {"a", "b", int, float, (1, "c")}  # sets have another order in every process
        self.weight = nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x * self.weight) * self.value + 1


def main(args: list[str]) -> dict[str, Any]:
    """Call an instance for each value, at two token counts."""
    exported = args[0] == "--exported"
    payloads: AbstractContextManager[list[str]] = exported_payloads() if exported else nullcontext([])
    with payloads as made, CompileWatch() as watch, torch.inference_mode():
        results = []
        for value in map(float, args[exported:]):
            net = Net(value)
            results.append([net(torch.ones(count, 4)).unique().tolist() for count in (3, 16)])
        counts = watch.counts()
    return {"results": results, "counts": counts, "compiled": len(made), "dynamo": "torch._dynamo" in sys.modules}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))  # noqa: T201
