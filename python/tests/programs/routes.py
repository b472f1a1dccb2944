"""The exchange of rows by experts. It runs on GPUs, or on the host backend."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from harness import ON_GPU, RANK, SIZE, check, device, main, raises

import symmem

DEVICE = device()
EXPERTS, TOP_K, MAX_TOKENS, HIDDEN, SCALES = 5, 3, 9, 64, 2


class Tokens(NamedTuple):
    """The inputs of a rank."""

    rows: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    scales: torch.Tensor


def draw(rank: int, dtype: torch.dtype, seed: int = 0) -> Tokens:
    """Draw the tokens of a rank; all ranks draw the same ones."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    count = (7, 0, MAX_TOKENS, 1)[(rank + seed) % 4]
    rows = torch.randn(count, HIDDEN, generator=generator)
    ids = torch.randint(-1, EXPERTS + 1, (count, TOP_K), generator=generator, dtype=torch.int32)
    weights = torch.rand(count, TOP_K, generator=generator)
    scales = torch.rand(count, SCALES, generator=generator)
    return Tokens(rows.to(dtype), ids, weights, scales)


def owners() -> torch.Tensor:
    """Return the rank of each expert, and -1 for the ids -1 and EXPERTS."""
    sizes = [EXPERTS // SIZE + (r < EXPERTS % SIZE) for r in range(SIZE)]
    ranks = [r for r, size in enumerate(sizes) for _ in range(size)]
    return torch.tensor([*ranks, -1, -1])  # an index of -1 is the last element


def sent(tokens: Tokens, rank: int) -> torch.Tensor:
    """Return the numbers of the tokens that have an expert on a rank."""
    return (owners()[tokens.ids.long()] == rank).any(-1).nonzero().flatten()


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.equal(got.cpu().view(torch.uint8), want.view(torch.uint8))


def verify(got: symmem.Dispatched, dtype: torch.dtype, seed: int) -> None:
    for r in range(SIZE):
        tokens = draw(r, dtype, seed)
        chosen = sent(tokens, RANK)
        n = len(chosen)
        assert got.counts[r] == n, (got.counts, r, n)
        assert same(got.rows[r, :n], tokens.rows[chosen])
        assert same(got.weights[r, :n], tokens.weights[chosen])
        ids = tokens.ids[chosen]
        ids = torch.where(owners()[ids.long()] == RANK, ids, -1)
        assert same(got.ids[r, :n], ids)
        assert bool((got.ids[r, n:] == -1).all())
        if got.scales is not None:
            assert same(got.scales[r, :n], tokens.scales[chosen])
    assert got.counts[SIZE] == int((draw(RANK, dtype, seed).ids == EXPERTS).sum())


def on_device(tokens: Tokens) -> Tokens:
    return Tokens(*(t.to(DEVICE) for t in tokens))


def computed(got: symmem.Dispatched) -> torch.Tensor:
    """Return symmetric rows that are the received ones, plus the number of this rank."""
    rows = symmem.full(tuple(got.rows.shape), float("nan"), dtype=torch.bfloat16, group="world")
    for r in range(SIZE):
        n = int(got.counts[r])
        rows[r, :n] = (got.rows[r, :n].float() + RANK).bfloat16()
    return rows


def combined(tokens: Tokens) -> torch.Tensor:
    """Return the sums of the rows that all ranks compute."""
    total = torch.zeros(tokens.rows.shape, dtype=torch.float32)
    for r in range(SIZE):
        chosen = sent(tokens, r)
        total[chosen] += (tokens.rows[chosen].float() + r).bfloat16().float()
    return total.bfloat16()


@check
def symmem_opens() -> None:
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    symmem.init(backend="nccl" if ON_GPU else "host", timeout=60)


@check
def rows_reach_their_experts_and_return() -> None:
    for seed, dtype in enumerate((torch.bfloat16, torch.float8_e4m3fn, torch.bfloat16)):
        own = draw(RANK, dtype, seed)
        rows, ids, weights, scales = on_device(own)
        scales = scales if seed != 2 else None
        got = symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS, scales)
        verify(got, dtype, seed)
        back = symmem.combine_tokens(computed(got), ids, EXPERTS)
        assert same(back, combined(own)), seed


@check
def graphs_hold_exchanges() -> None:
    if not ON_GPU:
        return
    dtype = torch.bfloat16
    rows, ids, weights, scales = on_device(draw(RANK, dtype, 3))
    workspace = symmem.dispatch_workspace(TOP_K, HIDDEN, MAX_TOKENS, dtype, SCALES)
    symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS, scales, None, workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = symmem.dispatch_tokens(
            rows, ids, weights, EXPERTS, MAX_TOKENS, scales, None, workspace
        )
    for seed in (7, 11):  # with the same numbers of tokens
        for to, new in zip((rows, ids, weights, scales), draw(RANK, dtype, seed), strict=True):
            to.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        verify(got, dtype, seed)


@check
def compiled_exchanges_equal_eager_ones() -> None:
    dtype = torch.bfloat16
    own = draw(RANK, dtype)
    rows, ids, weights, scales = on_device(own)
    workspace = symmem.dispatch_workspace(TOP_K, HIDDEN, MAX_TOKENS, dtype, SCALES)
    out = torch.empty_like(rows)

    def exchange(x: torch.Tensor) -> torch.Tensor:
        got = symmem.dispatch_tokens(
            x, ids, weights, EXPERTS, MAX_TOKENS, scales, "world", workspace
        )
        return symmem.combine_tokens(got.rows, ids, EXPERTS, "world", out) + 0

    def exchange_out_of_place(x: torch.Tensor) -> torch.Tensor:
        got = symmem.dispatch_tokens(x, ids, weights, EXPERTS, MAX_TOKENS, scales, "world")
        return torch.ops.symmem.combine(got.rows, ids, EXPERTS, "world") + 0

    want = exchange(rows)
    for function in (exchange, exchange_out_of_place):
        torch._dynamo.reset()
        got = torch.compile(function, backend="aot_eager", fullgraph=True)(rows)
        assert torch.equal(got, want), function


@check
def combined_rows_have_gradients() -> None:
    own = on_device(draw(RANK, torch.bfloat16))
    got = symmem.dispatch_tokens(*own[:3], EXPERTS, MAX_TOKENS)
    rows = computed(got).nan_to_num_().requires_grad_()
    factors = torch.arange(own.rows.shape[0], device=DEVICE)[:, None] + 1
    (torch.ops.symmem.combine(rows, own.ids, EXPERTS, "world") * factors).sum().backward()
    for r in range(SIZE):
        chosen = sent(draw(r, torch.bfloat16), RANK)
        want = torch.zeros(MAX_TOKENS, HIDDEN)
        want[: len(chosen)] = chosen[:, None] + 1.0
        assert rows.grad is not None
        assert torch.equal(rows.grad[r].cpu().float(), want), r
    ids = own.ids.clone()
    sums = torch.ops.symmem.combine(rows, ids, EXPERTS, "world").sum()
    ids.fill_(-1)  # a backward pass would use these ids
    e = raises(RuntimeError, sums.backward)
    assert "modified by an inplace operation" in str(e), e


@check
def operators_have_correct_schemas() -> None:
    dtype = torch.bfloat16
    rows, ids, weights, scales = on_device(draw(RANK, dtype))
    workspace = symmem.dispatch_workspace(TOP_K, HIDDEN, MAX_TOKENS, dtype, SCALES)
    ops = torch.ops.symmem
    dispatch = (workspace, rows, ids, weights, scales, EXPERTS, MAX_TOKENS, "world")
    torch.library.opcheck(ops.dispatch_.default, dispatch, test_utils="test_faketensor")
    back = symmem.zeros(SIZE, MAX_TOKENS, HIDDEN, dtype=dtype, group="world")
    combine = (torch.empty_like(rows), back, ids, EXPERTS, "world")
    torch.library.opcheck(ops.combine_.default, combine, test_utils="test_faketensor")
    torch.library.opcheck(ops.dispatch.default, dispatch[1:], test_utils="test_faketensor")
    torch.library.opcheck(ops.combine.default, combine[1:], test_utils="test_faketensor")


def own_experts() -> tuple[int, int]:
    """Return the first expert of this rank, and the number of its experts."""
    owned = [e for e in range(EXPERTS) if owners()[e] == RANK]
    return owned[0], len(owned)


def expert_rows(got: symmem.Dispatched) -> list[list[tuple[int, int, int]]]:
    """Return the ranks, places and indices of the ids of each expert of this rank."""
    first, own = own_experts()
    found = [(got.ids == first + e).nonzero().tolist() for e in range(own)]
    return [[tuple(one) for one in each] for each in found]


def layer(tokens: Tokens) -> torch.Tensor:
    """Return the output of a layer whose expert e multiplies rows by e + 1."""
    total = torch.zeros(tokens.rows.shape)
    for r in range(SIZE):
        sums = torch.zeros(tokens.rows.shape)
        for k in range(TOP_K):
            is_here = owners()[tokens.ids[:, k].long()] == r
            rows = (tokens.rows.float() * (tokens.ids[:, k, None] + 1)).bfloat16().float()
            sums += torch.where(is_here[:, None], rows * tokens.weights[:, k, None], 0)
        total += sums.bfloat16().float()
    return total.bfloat16()


@check
def rows_are_permuted_by_expert() -> None:
    for seed, (dtype, align) in enumerate(((torch.bfloat16, 8), (torch.float8_e4m3fn, 128))):
        rows, ids, weights, scales = on_device(draw(RANK, dtype, seed))
        got = symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS, scales)
        permuted = symmem.permute_tokens(got, EXPERTS, align)
        assert isinstance(permuted, symmem.Permuted)
        experts = torch.full_like(permuted.experts, -1)
        places = torch.full_like(permuted.places, -1)
        at = 0
        for e, pairs in enumerate(expert_rows(got)):
            assert permuted.firsts[e] == at
            assert permuted.counts[e] == len(pairs)
            for i, (r, place, k) in enumerate(pairs):
                experts[at + i], places[r, place, k] = e, at + i
                assert same(permuted.rows[at + i], got.rows[r, place].cpu())
                assert permuted.weights[at + i] == got.weights[r, place, k]
                assert permuted.scales is not None
                assert got.scales is not None
                assert torch.equal(permuted.scales[at + i], got.scales[r, place])
            at += -(-len(pairs) // align) * align
        assert bool((permuted.firsts[own_experts()[1] :] == at).all())
        assert torch.equal(permuted.experts, experts)
        assert torch.equal(permuted.places, places)


@check
def layers_with_permuted_rows_compute_the_sums() -> None:
    first, _ = own_experts()
    own = draw(RANK, torch.bfloat16, 1)
    rows, ids, weights, _ = on_device(own)
    got = symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS)
    permuted = symmem.permute_tokens(got, EXPERTS)
    factors = torch.where(permuted.experts < 0, float("nan"), permuted.experts + first + 1.0)
    computed = (permuted.rows.float() * factors[:, None]).bfloat16()
    sums = symmem.unpermute_tokens(computed, permuted, EXPERTS)
    assert same(symmem.combine_tokens(sums, ids, EXPERTS), layer(own))


@check
def graphs_can_permute() -> None:
    if not ON_GPU:
        return
    dtype = torch.bfloat16
    rows, ids, weights, _ = on_device(draw(RANK, dtype, 3))
    workspace = symmem.dispatch_workspace(TOP_K, HIDDEN, MAX_TOKENS, dtype)
    out = symmem.empty(SIZE, MAX_TOKENS, HIDDEN, dtype=dtype, group="world")

    def exchange() -> torch.Tensor:
        got = symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS, None, None, workspace)
        permuted = symmem.permute_tokens(got, EXPERTS)
        factors = permuted.experts[:, None] + own_experts()[0] + 1
        symmem.unpermute_tokens((permuted.rows * factors), permuted, EXPERTS, out=out)
        return symmem.combine_tokens(out, ids, EXPERTS)

    exchange()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        back = exchange()
    for seed in (7, 11):
        own = draw(RANK, dtype, seed)
        for to, new in zip((rows, ids, weights), own, strict=False):
            to.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        assert same(back, layer(own)), seed


@check
def compiled_permutations_equal_eager_ones() -> None:
    rows, ids, weights, _ = on_device(draw(RANK, torch.bfloat16))

    def exchange(x: torch.Tensor) -> torch.Tensor:
        got = symmem.dispatch_tokens(x, ids, weights, EXPERTS, MAX_TOKENS, None, "world")
        permuted = symmem.permute_tokens(got, EXPERTS, 16, "world")
        back = symmem.unpermute_tokens(permuted.rows, permuted, EXPERTS, 16, "world")
        return torch.ops.symmem.combine(back, ids, EXPERTS, "world") + 0

    want = exchange(rows)
    torch._dynamo.reset()
    got = torch.compile(exchange, backend="aot_eager", fullgraph=True)(rows)
    assert torch.equal(got, want)


@check
def exchanges_reject_backward_passes() -> None:
    rows, ids, weights, scales = on_device(draw(RANK, torch.bfloat16))

    def exchange(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        got = symmem.dispatch_tokens(x, ids, w, EXPERTS, MAX_TOKENS, s, "world")
        permuted = symmem.permute_tokens(got, EXPERTS, 8, "world")
        computed = permuted.rows.detach()
        sums = symmem.unpermute_tokens(computed, permuted, EXPERTS, 8, "world")
        assert got.scales is not None
        assert permuted.scales is not None
        parts = [got.rows, permuted.rows, got.scales, permuted.scales]
        return [part + 0 for part in (*parts, got.weights, permuted.weights, sums)]

    def unpermute(x: torch.Tensor) -> torch.Tensor:
        got = symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS, None, "world")
        workspace = symmem.permute_tokens(got, EXPERTS, 8, "world").workspace
        form = (EXPERTS, MAX_TOKENS, TOP_K, HIDDEN, 0, torch.bfloat16, 8, "world")
        return torch.ops.symmem.unpermute(x, workspace, *form) + 0

    permuted = symmem.permute_tokens(
        symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS), EXPERTS, 8
    )
    for compiles in (False, True):
        for leaf, followed in ((0, (0, 1)), (1, (4, 5, 6)), (2, (2, 3))):
            torch._dynamo.reset()
            run = torch.compile(exchange, backend="aot_eager") if compiles else exchange
            inputs = [rows.clone(), weights.clone(), scales.clone()]
            inputs[leaf].requires_grad_()
            for i, result in enumerate(run(*inputs)):
                assert result.requires_grad == (i in followed), (compiles, leaf, i)
                if result.requires_grad:
                    total = result.float().sum()
                    raises(symmem.UnsupportedError, lambda t=total: t.backward(retain_graph=True))
            with torch.no_grad():
                assert not any(result.requires_grad for result in run(*inputs))
        torch._dynamo.reset()
        add = torch.compile(unpermute, backend="aot_eager") if compiles else unpermute
        x = torch.zeros_like(permuted.rows).requires_grad_()
        raises(symmem.UnsupportedError, add(x).sum().backward)


@check
def permutations_have_correct_schemas() -> None:
    rows, ids, weights, scales = on_device(draw(RANK, torch.bfloat16))
    got = symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS, scales)
    permuted = symmem.permute_tokens(got, EXPERTS)
    form = (EXPERTS, MAX_TOKENS, TOP_K, HIDDEN, SCALES, torch.bfloat16, 128, "world")
    computed, out = permuted.rows.clone(), torch.empty_like(got.rows)
    ops = torch.ops.symmem
    for operator, tensors in (
        (ops.permute_, (permuted.workspace, got.workspace)),
        (ops.permute, (got.workspace,)),
        (ops.unpermute_, (out, computed, permuted.workspace)),
        (ops.unpermute, (computed, permuted.workspace)),
    ):
        torch.library.opcheck(operator.default, (*tensors, *form), test_utils="test_faketensor")


@check
def mismatched_permutations_are_refused() -> None:
    rows, ids, weights, _ = on_device(draw(RANK, torch.bfloat16))
    got = symmem.dispatch_tokens(rows, ids, weights, EXPERTS, MAX_TOKENS)
    permuted = symmem.permute_tokens(got, EXPERTS)
    for align in (0, 4097, 1 << 50):
        e = raises(symmem.InvalidError, lambda a=align: symmem.permute_tokens(got, EXPERTS, a))
        assert f"aligned to {align} rows" in str(e), e
    for experts in (-100, 1 << 50):
        e = raises(symmem.InvalidError, lambda n=experts: symmem.permute_tokens(got, n))
        assert f"{experts} experts; want 1 to 512" in str(e), e
    small = permuted.workspace[:128]
    e = raises(
        symmem.OutOfRangeError,
        lambda: symmem.permute_tokens(got, EXPERTS, workspace=small),
    )
    assert "workspace has 128 bytes" in str(e), e
    few = permuted.rows[:1]
    e = raises(symmem.OutOfRangeError, lambda: symmem.unpermute_tokens(few, permuted, EXPERTS))
    assert "rows has 1 rows" in str(e), e
    e = raises(
        symmem.InvalidError,
        lambda: symmem.unpermute_tokens(permuted.rows.float(), permuted, EXPERTS),
    )
    assert "rows has dtype torch.float32" in str(e), e
    out = torch.empty(SIZE, MAX_TOKENS + 1, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    e = raises(
        symmem.InvalidError,
        lambda: symmem.unpermute_tokens(permuted.rows, permuted, EXPERTS, out=out),
    )
    assert "out has shape" in str(e), e
    for experts, align in ((EXPERTS, 16), (EXPERTS - SIZE, 128)):
        e = raises(
            symmem.InvalidError,
            lambda e=experts, a=align: symmem.unpermute_tokens(permuted.rows, permuted, e, a),
        )
        assert "pass the experts and align of permute_tokens" in str(e), e
    alone = [dist.new_group([r]) for r in range(SIZE)][RANK]
    for run in (
        lambda: symmem.permute_tokens(got, EXPERTS, group=alone),
        lambda: symmem.unpermute_tokens(permuted.rows, permuted, EXPERTS, group=alone),
    ):
        e = raises(symmem.InvalidError, run)
        assert f"has places for {SIZE} ranks, but the group has 1" in str(e), e


@check
def mismatched_tensors_are_refused() -> None:
    rows = torch.zeros(2, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    ids = torch.zeros(2, TOP_K, dtype=torch.int32, device=DEVICE)
    weights = torch.zeros(2, TOP_K, device=DEVICE)
    for change, text in (
        ({"ids": ids.long()}, "ids has dtype torch.int64; want torch.int32"),
        ({"ids": ids[:1]}, "ids has shape (1, 3); want (2, 3)"),
        ({"weights": weights.half()}, "weights has dtype torch.float16"),
        ({"weights": weights[:, :1]}, "weights has shape (2, 1)"),
        ({"rows": rows[0]}, "want matrices"),
        (
            {"rows": torch.zeros(2, 8, dtype=torch.complex64, device=DEVICE)},
            "rows are complex; pass torch.view_as_real(rows).flatten(1)",
        ),
        ({"scales": weights[:1]}, "scales has shape (1, 3); want (2, 3)"),
        ({"workspace": rows}, "not the result of symmem.dispatch_workspace"),
        ({"experts": 513}, "513 experts"),
        ({"max_tokens": 1}, "2 tokens"),
        ({"rows": rows[:, :5].contiguous()}, "rows have 10 bytes"),
    ):
        arguments = {
            "rows": rows,
            "ids": ids,
            "weights": weights,
            "experts": 4,
            "max_tokens": 4,
            **change,
        }
        e = raises(symmem.InvalidError, lambda a=arguments: symmem.dispatch_tokens(**a))
        assert text in str(e), e
    small = torch.zeros(1024, dtype=torch.uint8, device=DEVICE)
    e = raises(
        symmem.OutOfRangeError,
        lambda: symmem.dispatch_tokens(rows, ids, weights, 4, 400, workspace=small),
    )
    assert "workspace has 1024 bytes" in str(e), e
    e = raises(
        symmem.InvalidError,
        lambda: symmem.combine_tokens(rows.view(1, 2, HIDDEN).expand(9, 2, HIDDEN), ids, 4),
    )
    assert "rows has places for 9 ranks" in str(e), e


@check
def operators_refuse_mismatched_tensors() -> None:
    ops = torch.ops.symmem
    rows = torch.zeros(2, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    back = torch.zeros(SIZE, 4, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    ids = torch.zeros(2, TOP_K, dtype=torch.int64, device=DEVICE)
    weights = torch.zeros(2, TOP_K, device=DEVICE)
    workspace = torch.zeros(1 << 16, dtype=torch.uint8, device=DEVICE)
    for operator, arguments in (
        (ops.combine, (back, ids, 4)),
        (ops.combine_, (rows, back, ids, 4)),
        (ops.combine_, (rows[:1], back, ids.int(), 4)),
        (ops.dispatch, (rows, ids, weights, None, 4, 4)),
        (ops.dispatch_, (workspace, rows, ids, weights, None, 4, 4)),
    ):
        raises(symmem.InvalidError, lambda run=operator, a=arguments: run(*a, "world"))
    compiled = torch.compile(ops.combine, backend="aot_eager", fullgraph=True)
    e = raises(RuntimeError, lambda: compiled(back, ids, 4, "world"))
    assert "ids has dtype torch.int64; want torch.int32" in str(e), e


@check
def symmem_finalizes() -> None:
    symmem.finalize()
    dist.destroy_process_group()


main()
