"""Fuses vLLM's all-reduce with the RMSNorm that follows it, in compiled code.

vLLM's pass manager rewrites the graph of a compiled model. The plug-in adds a pass that replaces an
all-reduce followed by `rms_norm` or `fused_add_rms_norm` by one operator. This module is imported
only after vLLM, whose classes it uses.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from vllm import ir
from vllm.compilation.passes import pass_manager
from vllm.compilation.passes.inductor_pass import enable_fake_mode
from vllm.compilation.passes.vllm_inductor_pass import VllmInductorPass

from symmem._torch.pytorch import pattern_matcher
from symmem.engines.takeover import Takeover

EPSILONS = (1e-5, 1e-6)
"""The epsilons of models. Each needs its own pattern, because a pattern contains a constant."""

OWN_PASS = "AllReduceFusionPass"
"""The name of vLLM's pass with the same purpose, which uses FlashInfer."""


_takeovers: dict[str, Takeover] = {}
"""The takeovers of groups for tensor parallelism, by the name of the group."""


def install(group: str, takeover: Takeover) -> None:
    """Fuse norms with the all-reduces of a group where the program enables this fusion."""
    _takeovers[group] = takeover
    _add_to_passes()


@functools.cache
def _add_to_passes() -> None:
    """Make vLLM's pass managers add the pass."""
    manager = pass_manager.PostGradPassManager
    configure = manager.configure

    @functools.wraps(configure)
    def configure_with_norms(self: Any, config: Any) -> None:
        configure(self, config)
        if not config.compilation_config.pass_config.fuse_allreduce_rms:
            return
        names = [type(each).__name__ for each in self.passes]
        place = names.index(OWN_PASS) if OWN_PASS in names else len(names)
        self.passes[place:place] = [
            NormPass(config, group) for group, of in _takeovers.items() if of.group is not None
        ]

    manager.configure = configure_with_norms


def all_reduce_rms_norm(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum rows over all ranks, add the residual, and return the normalized sum and the sum."""
    found = _takeovers[group].all_reduce_rms_norm(input, residual, weight, eps)
    if found is not None:
        return found
    reduced = torch.ops.vllm.all_reduce(input, group)
    normed, added = ir.ops.fused_add_rms_norm(reduced, residual, weight, eps)
    return normed, added


def _fake(
    input: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, group: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(input), torch.empty_like(residual)


# torch.library.custom_op would add overhead to each call.
_torch_library: Any = torch.library
_library = _torch_library.Library("symmem", "FRAGMENT")
_NAME = "vllm_all_reduce_rms_norm"
_library.define(
    f"{_NAME}(Tensor input, Tensor residual, Tensor weight, float eps, str group) "
    "-> (Tensor, Tensor)"
)
_library.impl(_NAME, all_reduce_rms_norm, "CompositeExplicitAutograd")
_library.impl(_NAME, _torch_library.fallthrough_kernel, "Autograd")
torch.library.register_fake(f"symmem::{_NAME}", _fake, lib=_library)


class NormPass(VllmInductorPass):  # type: ignore[misc]
    """Replaces an all-reduce and a norm with `all_reduce_rms_norm`.

    Attributes:
        matched_count: the number of replacements in the last graph.
    """

    def __init__(self, config: Any, group: str):
        super().__init__(config)
        self.matched_count = 0
        self._patterns = pattern_matcher().PatternMatcherPass(pass_name="symmem_norms")
        self._register(group, self.model_dtype or torch.bfloat16)

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Rewrite a graph."""
        self.matched_count = self._patterns.apply(graph)

    @enable_fake_mode  # type: ignore[untyped-decorator]
    def _register(self, group: str, dtype: torch.dtype) -> None:
        def rows(count: int) -> torch.Tensor:
            return torch.empty(count, 16, dtype=dtype, device=self.device)

        example = rows(5), rows(5), torch.empty(16, dtype=dtype, device=self.device)
        for eps in EPSILONS:
            for patterns in (_with_residual(group, eps), _without_residual(group, eps)):
                count = 3 if patterns[0].__name__ == "added" else 2
                pattern_matcher().register_replacement(
                    *patterns,
                    [*example[-count:]],
                    pattern_matcher().fwd_only,
                    self._patterns,
                    extra_check=_fits,
                )


def _with_residual(group: str, eps: float) -> tuple[Any, Any]:
    """Return the pattern and the replacement for a norm that adds a residual."""

    def added(residual: Any, input: Any, weight: Any) -> Any:
        reduced = torch.ops.vllm.all_reduce(input, group)
        return ir.ops.fused_add_rms_norm(reduced, residual, weight, eps)

    def replacement(residual: Any, input: Any, weight: Any) -> Any:
        return torch.ops.symmem.vllm_all_reduce_rms_norm(input, residual, weight, eps, group)

    return added, replacement


def _without_residual(group: str, eps: float) -> tuple[Any, Any]:
    """Return the pattern and the replacement for a norm without a residual."""

    def plain(input: Any, weight: Any) -> Any:
        reduced = torch.ops.vllm.all_reduce(input, group)
        return ir.ops.rms_norm(reduced, weight, eps), reduced

    def replacement(input: Any, weight: Any) -> Any:
        zeros = torch.zeros_like(input)
        return torch.ops.symmem.vllm_all_reduce_rms_norm(input, zeros, weight, eps, group)

    return plain, replacement


def _fits(match: Any) -> bool:
    """Return whether the tensors of a match have one type. Some models have float32 weights."""
    tensors = [n for n in match.kwargs.values() if isinstance(n, torch.fx.Node)]
    return len({n.meta["val"].dtype for n in tensors}) == 1
