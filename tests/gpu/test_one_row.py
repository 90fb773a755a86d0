"""The kernel for products of one row against cuBLAS, and through Inductor as pieces get it."""

# mypy: allow-subclassing-any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precast.aot.passes import mark_given, one_row_products, separate_adds
from precast.aot.torch_seams.passes import pass_options

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class Block(nn.Module):
    """A product whose sum goes on, as the residual stream does."""

    def forward(self, x: Tensor, stream: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = stream + F.linear(x, weight)
        return total, total * torch.rsqrt(total.float().pow(2).mean(-1, keepdim=True)).to(total.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 4096), (6144, 4096), (4096, 14336), (12, 512), (128, 1536)])
@pytest.mark.parametrize("rows", [1, 3])
def test_compiled_products_agree_with_eager(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x, stream, weight = (
        torch.randn(shape, generator=generator, device="cuda").to(dtype)
        for shape in ((rows, inputs), (rows, outputs), (outputs, inputs))
    )
    weight *= inputs**-0.5
    block = Block()
    torch._dynamo.reset()
    options = pass_options([mark_given], [separate_adds, one_row_products])
    with torch.no_grad():
        compiled = torch.compile(block, fullgraph=True, dynamic=False, options=options)(x, stream, weight)
        exact = block(x.double(), stream.double(), weight.double())
    for found, wanted in zip(compiled, exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)
