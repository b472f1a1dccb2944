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

// reductions returns the reductions that the kernels have.
func reductions() []driver.ReduceOp {
	return slices.DeleteFunc(driver.ReductionsOf(driver.Int32), func(op driver.ReduceOp) bool {
		return op.Kernel() == 0
	})
}

// drawLaunch draws a call of rank 0 before Choose. Counts are spread over all magnitudes.
func drawLaunch(t *rapid.T) Launch {
	ranks := rapid.IntRange(2, MaxRanks).Draw(t, "ranks")
	size := int64(1) << rapid.IntRange(0, 30).Draw(t, "power")
	call := &driver.Call{
		Operation: driver.Operation(
			min(rapid.IntRange(0, 20).Draw(t, "operation"), int(driver.AllReduceRMSNorm))),
		DataType: rapid.SampledFrom(reduce.DataTypes()).Draw(t, "type"),
		ReduceOp: rapid.SampledFrom(reductions()).Draw(t, "reduction"),
		Root:     rapid.IntRange(0, ranks-1).Draw(t, "root"),
		Count:    rapid.Int64Range(0, size).Draw(t, "count"),
	}
	if !rapid.Bool().Draw(t, "in place") {
		call.Recv = 1 << 40
	}
	if call.Operation == driver.AllReduceRMSNorm {
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
func chooseAll(t *rapid.T, asked Launch) []Launch {
	var all []Launch
	var refusal string
	for asked.Rank = range asked.Ranks {
		l, err := choose(asked)
		switch {
		case err == nil:
			all = append(all, l)
		case asked.Rank > 0 && err.Error() != refusal:
			t.Fatalf("rank %d: got error %v, want %q as on lower ranks", asked.Rank, err, refusal)
		default:
			refusal = err.Error()
		}
	}
	if len(all) != 0 && len(all) != asked.Ranks {
		t.Fatalf("got a kernel on %d of %d ranks, want all or none", len(all), asked.Ranks)
	}
	return all
}

func TestAllRanksChooseTheSameKernel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := chooseAll(t, drawLaunch(t))
		for r, l := range all {
			l.Rank, l.sendTo, l.recvFrom = 0, all[0].sendTo, all[0].recvFrom
			if l != all[0] {
				t.Fatalf("rank %d: got %+v, want %+v as on rank 0", r, l, all[0])
			}
		}
	})
}

// TestSendSetsMatchReceiveSets checks that a rank waits for lines of a peer exactly if the peer
// sends them. Otherwise the rank would hang.
func TestSendSetsMatchReceiveSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := chooseAll(t, drawLaunch(t))
		for from := range all {
			for to := range all {
				sends, waits := all[from].sendTo>>to&1, all[to].recvFrom>>from&1
				if from != to && sends != waits {
					t.Fatalf("rank %d to rank %d: got bit %d in sendTo and %d in recvFrom, want equal bits",
						from, to, sends, waits)
				}
			}
		}
	})
}

// TestLinesFitIntoExchangeMemory checks that a call writes only to its half of exchange memory.
func TestLinesFitIntoExchangeMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asked := drawLaunch(t)
		for _, l := range chooseAll(t, asked) {
			ranks := int64(asked.Ranks)
			room, lines, part := int64(halfBytes), int64(lineLines), l.pieceBytes
			switch {
			case l.Bulk:
				continue
			case strings.HasPrefix(l.Kernel, "wide"), strings.HasPrefix(l.Kernel, "unrolled"):
				lines = wideLines
			case strings.HasPrefix(l.Kernel, "line_two_shot"):
				room, part = halfBytes/2, l.sendStride
				if l.sendStride%8 != 0 || l.sendStride*ranks < l.pieceBytes {
					t.Fatalf("got %d parts of %d bytes, want multiples of 8 that hold %d", ranks,
						l.sendStride, l.pieceBytes)
				}
			}
			need := ranks * chunks(part, lines) * lines * lineBytes
			if need > room {
				t.Fatalf("%s of %d bytes needs %d bytes of exchange memory, want at most %d", l.Kernel,
					l.pieceBytes, need, room)
			}
		}
	})
}

func TestGridsFitOnTheGPU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asked := drawLaunch(t)
		for _, l := range chooseAll(t, asked) {
			most := gridSize{min(asked.Multiprocessors, maxBulkBlocks), 512}
			switch {
			case l.Fused:
				most = gridSize{rowBlocks(&asked), (mostRowWarps + 1) * warp}
			case !l.Bulk:
				most = asked.resident(familyOf(l.Kernel))
			}
			if l.Blocks < 1 || l.Blocks > most.blocks {
				t.Fatalf("got %d blocks, want at most %d", l.Blocks, most.blocks)
			}
			// One warp exchanges headers, so at least one more is needed for data.
			if l.Threads%warp != 0 || l.Threads < 2*warp || l.Threads > most.threads {
				t.Fatalf("got %d threads, want whole warps and at most %d", l.Threads, most.threads)
			}
		}
	})
}

// TestEveryReductionHasAKernel checks that every size and formula has a kernel in any memory, for
// each type and reduction that Reduces reports. The pieces must cover the buffer.
func TestEveryReductionHasAKernel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asked := drawLaunch(t)
		asked.Operation = rapid.SampledFrom([]driver.Operation{
			driver.AllReduce, driver.ReduceScatter, driver.Reduce,
		}).Draw(t, "reduces")
		trees := asked.Formula == driver.Tree || asked.Formula == driver.RoundedTree
		l, err := choose(asked)
		if !Reduces(asked.DataType, asked.ReduceOp) {
			if !errors.Is(err, errNoKernel) {
				t.Fatalf("%v of %v: got %+v, %v; want errNoKernel", asked.ReduceOp, asked.DataType, l, err)
			}
			return
		}
		if power := asked.Ranks&(asked.Ranks-1) == 0; trees && !power {
			if err == nil || !strings.Contains(err.Error(), "must be a power of two") {
				t.Fatalf("a tree of %d ranks: got %+v, %v; want an error about powers of two",
					asked.Ranks, l, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		at := int64(0)
		for i := range l.Pieces {
			piece := l.arguments(&Transport{}, i)
			from, bytes := int64(piece.send-l.Send), piece.bytes
			if from != at || int64(piece.recv-l.Recv) != at {
				t.Fatalf("piece %d of %d: got offset %d, want %d", i, l.Pieces, from, at)
			}
			if l.Pieces > 1 && (bytes <= 0 || bytes > l.pieceBytes || at%pieceUnit != 0) {
				t.Fatalf("piece %d of %d, at %d, has %d bytes", i, l.Pieces, at, bytes)
			}
			at += bytes
		}
		if whole := asked.Count * int64(asked.DataType.Size()); at != whole {
			t.Fatalf("got %[2]d bytes in %[1]d pieces, want %[3]d", l.Pieces, at, whole)
		}
	})
}

// TestFormulasSelectKernels checks that RankOrder selects the same kernels as AnyFormula. A tree
// must select other kernels only if its results can differ.
func TestFormulasSelectKernels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asked := drawLaunch(t)
		asked.Formula = driver.AnyFormula
		free := chooseAll(t, asked)
		asked.Formula = driver.RankOrder
		for r, l := range chooseAll(t, asked) {
			if l.Formula = driver.AnyFormula; l != free[r] {
				t.Fatalf("rank %d: got %+v, want %+v", r, l, free[r])
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
		if got := l.op & (orderTree | orderRounded); err != nil || got != c.order {
			t.Errorf("%+v: got order %d, error %v; want %d, nil", c, got, err, c.order)
		}
		if c.order != 0 && l.Kernel != "wide_any" {
			t.Errorf("%+v: got %s, want wide_any", c, l.Kernel)
		}
	}
}

// TestOnlyLargeCallsNeedWindows checks that the kernel of a small call does not depend on its
// memory.
func TestOnlyLargeCallsNeedWindows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		asked := drawLaunch(t)
		all := chooseAll(t, asked)
		if len(all) == 0 || all[0].Bulk || all[0].Pieces > 1 {
			return
		}
		asked.Symmetric = !asked.Symmetric
		asked.Recv ^= 1 << 40 // switch between in place and out of place
		again := chooseAll(t, asked)
		if asked.Operation == driver.AllReduceRMSNorm {
			asked.Operation = driver.AllReduce // it uses the same kernel
		}
		early := asked.Symmetric && all[0].pieceBytes > asked.lineLimit()
		all[0].Symmetric = asked.Symmetric
		if len(again) == 0 || again[0] != all[0] && !(early && again[0].Bulk) {
			t.Fatalf("in other memory: got %+v, want %+v", again, all[0])
		}
	})
}
