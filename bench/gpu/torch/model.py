"""A small tensor-parallel transformer with and without symmem: prefill and decode by CUDA graph.

It has eight layers of attention and a gated MLP, in bfloat16 with random weights; each layer has
two all-reduces. It reports the total gain, to compare with the +4.7 % of sglang #8934 for a large
model.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import common
import torch
import torch.distributed as dist
from common import DEVICE, SIZE, attempt, capture, gather, in_turns, say, settle, verdict
from decode import SLOWER
from torch.nn import functional

import symmem

LAYERS, HIDDEN, HEADS, INNER = 8, 4096, 32, 14336
BATCH, PROMPT, LENGTH = 32, 256, 512
WIDTH = HIDDEN // HEADS
MINE = HEADS // SIZE

Reduce = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def plainly(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply, and sum over ranks with PyTorch's NCCL."""
    out = x @ weight
    dist.all_reduce(out)
    return out


def symmetrically(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply into symmetric memory, and sum over ranks with symmem."""
    with symmem.use():
        out = x @ weight
    symmem.all_reduce(out)
    return out


class Model:
    """This rank's part of the weights and its cache of keys and values."""

    def __init__(self) -> None:
        torch.manual_seed(17 + common.RANK)
        self.layers = [
            {
                "qkv": self._weight(HIDDEN, 3 * MINE * WIDTH),
                "out": self._weight(MINE * WIDTH, HIDDEN),
                "up": self._weight(HIDDEN, 2 * INNER // SIZE),
                "down": self._weight(INNER // SIZE, HIDDEN),
            }
            for _ in range(LAYERS)
        ]
        shape = (LAYERS, 2, BATCH, MINE, LENGTH, WIDTH)
        self.cache = torch.zeros(shape, device=DEVICE, dtype=torch.bfloat16)
        self.position = torch.zeros(1, device=DEVICE, dtype=torch.int64)
        self.places = torch.arange(LENGTH, device=DEVICE)

    def _weight(self, rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=DEVICE, dtype=torch.bfloat16) * rows**-0.5

    def __call__(self, x: torch.Tensor, reduce: Reduce) -> torch.Tensor:
        """Run all layers on the tokens from the current position."""
        for n, weight in enumerate(self.layers):
            normed = functional.rms_norm(x, (HIDDEN,))
            x = x + reduce(self._attend(n, normed @ weight["qkv"]), weight["out"])
            gate, up = (functional.rms_norm(x, (HIDDEN,)) @ weight["up"]).chunk(2, -1)
            x = x + reduce(functional.silu(gate) * up, weight["down"])
        return x

    def _attend(self, layer: int, qkv: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = qkv.shape
        parts = qkv.view(batch, tokens, 3, MINE, WIDTH).permute(2, 0, 3, 1, 4)
        where = self.position + torch.arange(tokens, device=DEVICE)
        self.cache[layer, 0].index_copy_(2, where, parts[1])
        self.cache[layer, 1].index_copy_(2, where, parts[2])
        visible = self.places[None, :] <= where[:, None]
        found = functional.scaled_dot_product_attention(
            parts[0], self.cache[layer, 0], self.cache[layer, 1], attn_mask=visible
        )
        return found.transpose(1, 2).reshape(batch, tokens, MINE * WIDTH)


def prefill(model: Model, tokens: torch.Tensor, reduce: Reduce) -> float:
    """Return the least of five times of the prompt, in seconds."""
    found = []
    for _ in range(5):
        model.position.zero_()
        settle()
        begin = time.monotonic()
        model(tokens, reduce)
        settle()
        found.append(time.monotonic() - begin)
    return max(gather(min(found)))


@torch.inference_mode()
def run() -> None:
    """Compare."""
    model = Model()
    torch.manual_seed(5)
    prompt = torch.randn(BATCH, PROMPT, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    token = torch.randn(BATCH, 1, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    want, found = model(prompt, plainly), model(prompt, symmetrically)
    near = functional.cosine_similarity(want.float(), found.float(), -1).min().item()
    verdict("transformer is right", near > 0.99, f"least cosine {near:.5f}")
    before = prefill(model, prompt, plainly), prefill(model, prompt, symmetrically)
    model.position.fill_(PROMPT)
    model(token, symmetrically)
    graphs = {
        "plain": capture(lambda: model(token, plainly)),
        "ours": capture(lambda: model(token, symmetrically)),
    }
    times = in_turns(graphs)
    steps = LENGTH - PROMPT
    plain = before[0] + steps * times["plain"] / 1e6
    ours = before[1] + steps * times["ours"] / 1e6
    say(f"prefill {before[0] * 1e3:.1f} ms, symmem {before[1] * 1e3:.1f} ms")
    say(f"decode step {times['plain']:.0f} us, symmem {times['ours']:.0f} us")
    gain = plain / ours - 1
    verdict(
        "transformer end to end",
        gain >= -SLOWER,
        f"{BATCH * steps / plain:.0f} tokens/s, symmem {BATCH * steps / ours:.0f}: {gain:+.1%} "
        "(sglang #8934 reports +4.7 %)",
    )


if __name__ == "__main__":
    common.needs_gpus("times of a model")
    common.start(reserve=256 << 20)
    symmem.reserve(1 << 30, stream=common.capture_stream())
    attempt("transformer", run)
    common.leave()
