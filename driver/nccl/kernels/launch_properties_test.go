package kernels

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"symmem/driver"
	"symmem/internal/reduce"
)

// reductions returns the reductions that the kernels support.
func reductions() []driver.ReduceOp {
	return slices.DeleteFunc(driver.ReductionsOf(driver.Int32), func(op driver.ReduceOp) bool {
		return op.Kernel() == 0
	})
}

// drawLaunch draws a call of rank 0 that can be passed to Choose. Small and large counts are
// equally likely.
func drawLaunch(t *rapid.T) Launch {
	ranks := rapid.IntRange(2, MaxRanks).Draw(t, "ranks")
	size := int64(1) << rapid.IntRange(0, 30).Draw(t, "power")
	call := &driver.Call{
		Operation: driver.Operation(
			min(rapid.IntRange(0, 20).Draw(t, "operation"), int(driver.ReduceScatterRMSNorm))),
		DataType: rapid.SampledFrom(reduce.DataTypes()).Draw(t, "type"),
		ReduceOp: rapid.SampledFrom(reductions()).Draw(t, "reduction"),
		Root:     rapid.IntRange(0, ranks-1).Draw(t, "root"),
		Count:    rapid.Int64Range(0, size).Draw(t, "count"),
	}
	if !rapid.Bool().Draw(t, "in place") {
		call.Recv = 1 << 40
	}

	if call.Operation.HasNorm() {
		call.DataType, call.ReduceOp = driver.BFloat16, driver.Sum
		units := rapid.Int64Range(1, driver.MaxHidden/driver.NormUnit).Draw(t, "units of hidden")
		hidden := driver.NormUnit * units
		call.Norm = &driver.Norm{Rows: call.Count / hidden, Hidden: hidden}
		call.Count = call.Norm.Rows * hidden
	}

	return Launch{
		Call: call, Ranks: ranks, Symmetric: rapid.Bool().Draw(t, "symmetric"),
		Formula: rapid.SampledFrom([]driver.Formula{
			driver.AnyFormula, driver.RankOrder, driver.Tree, driver.RoundedTree,
		}).Draw(t, "formula"),
		Multiprocessors: rapid.IntRange(1, 200).Draw(t, "multiprocessors"),
	}
}

// chooseAll calls Choose on all ranks, and checks that it succeeds on all of them or on none.
func chooseAll(t *rapid.T, input Launch) []Launch {
	var all []Launch
	var refusal string
	for input.Rank = range input.Ranks {
		l, err := choose(input)
		switch {
		case err == nil:
			all = append(all, l)
		case input.Rank > 0 && err.Error() != refusal:
			t.Fatalf("Choose on rank %d = %v, want %q as on lower ranks", input.Rank, err, refusal)
		default:
			refusal = err.Error()
		}
	}

	if len(all) != 0 && len(all) != input.Ranks {
		t.Fatalf("Choose found a kernel on %d of %d ranks, want all or none", len(all), input.Ranks)
	}

	return all
}

func TestAllRanksChooseTheSameKernel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := chooseAll(t, drawLaunch(t))
		for r, l := range all {
			l.Rank, l.sendRanks, l.recvRanks = 0, all[0].sendRanks, all[0].recvRanks
			if l != all[0] {
				t.Fatalf("Choose on rank %d chose %+v, want %+v as on rank 0", r, l, all[0])
			}
		}
	})
}

// TestSendSetsMatchReceiveSets checks that a rank waits for lines from a peer if and only if the
// peer sends lines to that rank. A rank that waited for other lines would hang.
func TestSendSetsMatchReceiveSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := chooseAll(t, drawLaunch(t))
		for src := range all {
			for dst := range all {
				sends, waits := all[src].sendRanks>>dst&1, all[dst].recvRanks>>src&1
				if src != dst && sends != waits {
					t.Fatalf("rank %d to rank %d: bit %d in sendRanks but %d in recvRanks, want the same bit",
						src, dst, sends, waits)
				}
			}
		}
	})
}

// TestLinesFitIntoExchangeMemory checks that a call writes only to its half of exchange memory.
func TestLinesFitIntoExchangeMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		input := drawLaunch(t)
		for _, l := range chooseAll(t, input) {
			ranks := int64(input.Ranks)
			room, lines, part := int64(halfBytes), int64(lineLines), l.pieceBytes
			switch {
			case l.Bulk:
				continue
			case strings.HasPrefix(l.Kernel, "wide"), strings.HasPrefix(l.Kernel, "unrolled"):
				lines = wideLines
			case strings.HasPrefix(l.Kernel, "line_two_shot"):
				room, part = halfBytes/2, l.sendStride
				if l.sendStride%8 != 0 || l.sendStride*ranks < l.pieceBytes {
					t.Fatalf("%s has %d parts of %d bytes, want multiples of 8 that hold %d bytes", l.Kernel,
						ranks, l.sendStride, l.pieceBytes)
				}
			}

			need := ranks * countChunks(part, lines) * lines * lineBytes
			if need > room {
				t.Fatalf("%s of %d bytes needs %d bytes of exchange memory, want at most %d", l.Kernel,
					l.pieceBytes, need, room)
			}
		}
	})
}

func TestGridsFitOnTheGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		input := drawLaunch(t)
		for _, l := range chooseAll(t, input) {
			limit := gridSize{min(input.Multiprocessors, maxBulkBlocks), 512}
			switch {
			case l.Fused && l.Bulk:
				limit.threads = maxPulledHidden / driver.NormUnit
			case l.Fused:
				limit = gridSize{maxNormBlocks(&input), (maxRowWarps + 1) * warp}
			case !l.Bulk:
				limit = input.resident(familyOf(l.Kernel))
			}

			if l.Blocks < 1 || l.Blocks > limit.blocks {
				t.Fatalf("%s has %d blocks, want 1 to %d", l.Kernel, l.Blocks, limit.blocks)
			}

			// One warp exchanges headers, so at least one more is needed for data.
			if l.Threads%warp != 0 || l.Threads < 2*warp || l.Threads > limit.threads {
				t.Fatalf("%s has %d threads per block, want whole warps, from %d to %d threads", l.Kernel,
					l.Threads, 2*warp, limit.threads)
			}
		}
	})
}

// TestEveryReductionHasAKernel checks every type and reduction for which CanReduce returns true.
// There must be a kernel for every size, formula and kind of memory, and the pieces of a call
// must cover the buffer.
func TestEveryReductionHasAKernel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		input := drawLaunch(t)
		input.Operation = rapid.SampledFrom([]driver.Operation{
			driver.AllReduce, driver.ReduceScatter, driver.Reduce,
		}).Draw(t, "reduces")
		trees := input.Formula == driver.Tree || input.Formula == driver.RoundedTree
		l, err := choose(input)
		if !CanReduce(input.DataType, input.ReduceOp) {
			if !errors.Is(err, errNoKernel) {
				t.Fatalf("Choose for %v of %v = %+v, %v; want errNoKernel", input.ReduceOp, input.DataType, l,
					err)
			}

			return
		}

		if power := input.Ranks&(input.Ranks-1) == 0; trees && !power {
			if err == nil || !strings.Contains(err.Error(), "must be a power of two") {
				t.Fatalf("Choose for a tree of %d ranks = %+v, %v; want an error about powers of two",
					input.Ranks, l, err)
			}

			return
		}

		if err != nil {
			t.Fatal(err)
		}

		end := int64(0) // end of the previous piece
		for i := range l.PieceCount {
			piece := l.arguments(&Transport{}, i)
			offset, bytes := int64(piece.send-l.Send), piece.bytes
			if offset != end || int64(piece.recv-l.Recv) != end {
				t.Fatalf("piece %d of %d is at offset %d, want %d", i, l.PieceCount, offset, end)
			}

			if l.PieceCount > 1 && (bytes <= 0 || bytes > l.pieceBytes || end%pieceUnit != 0) {
				t.Fatalf("piece %d of %d, at offset %d, has %d bytes, want 1 to %d at a multiple of %d", i,
					l.PieceCount, end, bytes, l.pieceBytes, pieceUnit)
			}

			end += bytes
		}

		if size := input.Count * int64(input.DataType.Size()); end != size {
			t.Fatalf("the %d pieces have %d bytes, want %d", l.PieceCount, end, size)
		}
	})
}

// TestFormulasSelectKernels checks that RankOrder selects the same kernels as AnyFormula. A tree
// formula must select another kernel only if its results can differ from those of RankOrder.
func TestFormulasSelectKernels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		input := drawLaunch(t)
		input.Formula = driver.AnyFormula
		unconstrained := chooseAll(t, input)
		input.Formula = driver.RankOrder
		for r, l := range chooseAll(t, input) {
			if l.Formula = driver.AnyFormula; l != unconstrained[r] {
				t.Fatalf("Choose with RankOrder on rank %d chose %+v, want %+v as with AnyFormula", r, l,
					unconstrained[r])
			}
		}
	})
	for _, c := range []struct {
		formula  driver.Formula
		dataType driver.DataType
		op       driver.ReduceOp
		ranks    int
		order    uint32
	}{
		{driver.Tree, driver.Float32, driver.Sum, 2, 0},
		{driver.Tree, driver.Float32, driver.Sum, 4, orderTree},
		{driver.Tree, driver.Float16, driver.Avg, 8, orderTree},
		{driver.Tree, driver.Float64, driver.Prod, 8, orderTree},
		{driver.Tree, driver.Float32, driver.Max, 4, 0},
		{driver.Tree, driver.Int32, driver.Sum, 4, 0},
		{driver.RoundedTree, driver.Float32, driver.Sum, 4, orderTree},
		{driver.RoundedTree, driver.BFloat16, driver.Sum, 4, orderTree | orderRounded},
		{driver.RoundedTree, driver.Float16, driver.Min, 4, 0},
		{driver.RoundedTree, driver.Float16, driver.Sum, 2, 0},
		{driver.RoundedTree, driver.Float16, driver.Avg, 2, orderTree | orderRounded},
	} {
		l, err := choose(Launch{
			Call: &driver.Call{
				Operation: driver.AllReduce, DataType: c.dataType, ReduceOp: c.op, Count: 100,
			},
			Ranks: c.ranks, Multiprocessors: 132, Formula: c.formula,
		})
		if got := l.reduction & (orderTree | orderRounded); err != nil || got != c.order {
			t.Errorf("Choose(%+v) chose order %d, %v; want %d, nil", c, got, err, c.order)
		}

		if c.order != 0 && l.Kernel != "wide_any" {
			t.Errorf("Choose(%+v) chose %s, want wide_any", c, l.Kernel)
		}
	}
}

// TestOnlyLargeCallsNeedWindows checks that the kernel of a small call does not depend on whether
// its buffers are in windows or in place.
func TestOnlyLargeCallsNeedWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		input := drawLaunch(t)
		all := chooseAll(t, input)
		if len(all) == 0 || all[0].Bulk || all[0].PieceCount > 1 {
			return
		}

		input.Symmetric = !input.Symmetric
		input.Recv ^= 1 << 40 // switch between in place and out of place
		again := chooseAll(t, input)
		input.Operation = input.Operation.WithoutNorm() // it uses the same kernel
		early := input.Symmetric && all[0].pieceBytes > input.lineLimit()
		all[0].Symmetric = input.Symmetric
		if len(again) == 0 || again[0] != all[0] && !(early && again[0].Bulk) {
			t.Fatalf("in other memory, Choose chose %+v, want %+v", again, all[0])
		}
	})
}
