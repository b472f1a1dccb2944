package symmem_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
)

// TestFormulaNames checks the names of formulas. A formula is the order in which a reduction
// combines the values of the ranks.
func TestFormulaNames(t *testing.T) {
	for name, want := range map[string]symmem.Formula{
		"default":      symmem.FormulaDefault,
		"any":          symmem.FormulaAny,
		"0":            symmem.FormulaAny,
		"ranks":        symmem.FormulaRankOrder,
		"1":            symmem.FormulaRankOrder,
		"tree":         symmem.FormulaTree,
		"rounded-tree": symmem.FormulaRoundedTree,
	} {
		got, err := symmem.ParseFormula(name)
		if err != nil || got != want {
			t.Errorf("ParseFormula(%q) = %v, %v; want %v", name, got, err, want)
		}

		if again, err := symmem.ParseFormula(got.String()); err != nil || again != want {
			t.Errorf("ParseFormula(%q) = %v, %v; want %v", got.String(), again, err, want)
		}
	}

	if _, err := symmem.ParseFormula("unknown"); !errors.Is(err, symmem.ErrInvalid) {
		t.Errorf("ParseFormula of an unknown name: got %v, want ErrInvalid", err)
	}

	const unknown = symmem.Formula(9)
	if got := unknown.String(); got != "Formula(?)" {
		t.Errorf("Formula(9).String() = %q, want %q", got, "Formula(?)")
	}

	_, err := symmem.Open(t.Context(), symmem.Options{Size: 1, Deterministic: unknown})
	if !errors.Is(err, symmem.ErrInvalid) {
		t.Errorf("Open with an unknown formula: got %v, want ErrInvalid", err)
	}
}

// TestOptionsOverrideFormulaEnvironment opens three ranks with a formula in the environment that
// needs a power of two. With another formula in the options, Open must succeed.
func TestOptionsOverrideFormulaEnvironment(t *testing.T) {
	t.Setenv("SYMMEM_DETERMINISTIC", "tree")
	_, err := symmem.OpenLocal(t.Context(), 3, symmem.Options{Backend: "host"})
	want := "the reduction formula tree requires 2, 4, 8, ... ranks, but the group has 3"
	if !errors.Is(err, symmem.ErrUnsupported) || !strings.Contains(err.Error(), want) {
		t.Errorf("a tree of three ranks: got %v, want ErrUnsupported with %q", err, want)
	}

	runRanks(t, 3, symmem.Options{Deterministic: symmem.FormulaAny}, func(r *rank) {
		r.checkSum(r.World(), r.window(r.pool(), 4096))
	})
	t.Setenv("SYMMEM_DETERMINISTIC", "sorted") // not a formula
	_, err = symmem.Open(t.Context(), symmem.Options{Size: 1})
	if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), "SYMMEM_DETERMINISTIC: ") {
		t.Errorf("Open: got %v, want ErrInvalid for SYMMEM_DETERMINISTIC", err)
	}
}

// TestDeterministicModeRejectsAdoptedCommunicator adopts a communicator of another library, whose
// order of reductions symmem cannot choose.
func TestDeterministicModeRejectsAdoptedCommunicator(t *testing.T) {
	rt, err := symmem.Open(t.Context(), withBackend(symmem.Options{
		Size: 1, Deterministic: symmem.FormulaRankOrder,
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const handle = 1 // not a communicator: the call must fail before it uses the handle
	_, err = rt.Interop().AdoptCommunicator(handle, "theirs", nil)
	const option = "Options.Deterministic"
	if !errors.Is(err, symmem.ErrUnsupported) || !strings.Contains(err.Error(), option) {
		t.Errorf("got %v, want ErrUnsupported with the name of %s", err, option)
	}
}

// rejectReduction rejects calls like a backend that cannot reduce in a given order.
func rejectReduction(*driver.Call) error {
	return fmt.Errorf("NCCL chooses the order: %w", driver.ErrUnsupported)
}

// TestDeterministicCallNeedsDirectPath routes all-reduces in a group whose plain and window paths
// reject the call. The direct path can take registered memory of any size. It takes unregistered
// memory only if that fits into the exchange memory, through which the ranks pass data.
func TestDeterministicCallNeedsDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		const (
			noOtherPath   = "and no other path can take the call"
			orderRejected = "NCCL chooses the order" + notSupported // as by rejectReduction
			noPath        = ""                                      // the call is rejected
			fittingCount  = 2 << 10                                 // 8 KiB, as the exchange memory
			largeCount    = 1 << 18                                 // 1 MiB
		)
		registered, unregistered := r.window(r.pool(), mib).Memory(), r.alloc(r.pool(), mib).Memory()
		g := symmem.WithPathChecks(r.World(), rejectReduction, rejectReduction, checkSmallExchange)
		for _, row := range []struct {
			name       string
			memory     symmem.Memory
			count      int64
			choice     symmem.PathChoice
			wantPath   string
			wantReason string
		}{
			{
				"large, registered", registered, largeCount, symmem.PathDefault,
				"direct", bothInWindows + noOtherPath,
			},
			{
				"fitting, unregistered", unregistered, fittingCount, symmem.PathDefault,
				"direct", notInWindow + ", " + noOtherPath,
			},
			{
				"large, unregistered", unregistered, largeCount, symmem.PathDefault,
				noPath, orderRejected + "; not direct: 8KiB of exchange memory" + notSupported,
			},
			{"plain path", registered, 1 << 10, symmem.PathPlain, noPath, orderRejected},
			{"window path", registered, 1 << 10, symmem.PathWindow, noPath, orderRejected},
		} {
			// The third result, which ranks compare, does not matter here.
			path, reason, _ := symmem.Route(g, symmem.Call{
				Type: symmem.Float32, Count: row.count, Send: row.memory, Recv: row.memory,
				Path: row.choice,
			})
			if path != row.wantPath || reason != row.wantReason {
				r.failf("%s: got path %q, because of %q; want %q, because of %q", row.name, path, reason,
					row.wantPath, row.wantReason)
			}
		}
	})
}

// TestAllReduceEqualsReduceScatterAllGather compares the results of an AllReduce bit by bit with
// those of a ReduceScatter and an AllGather. The sums depend on the order of additions.
func TestAllReduceEqualsReduceScatterAllGather(t *testing.T) {
	// The odd number makes parts begin at addresses with little alignment.
	const ranks, elementsPerRank = 4, 3001
	requireRanks(t, ranks)
	for _, f := range []symmem.Formula{
		symmem.FormulaRankOrder, symmem.FormulaTree, symmem.FormulaRoundedTree,
	} {
		t.Run(f.String(), func(t *testing.T) {
			rts, err := symmem.OpenLocal(t.Context(), ranks, withBackend(symmem.Options{Deterministic: f}))
			if err != nil {
				t.Fatal(err)
			}

			eachRank(rts, func(rt *symmem.Runtime) {
				r := &rank{Runtime: rt, t: t, ctx: t.Context()}
				defer rt.Close()
				types := []symmem.DataType{symmem.Float32, symmem.BFloat16, symmem.Float64}
				for _, dataType := range types {
					for _, op := range driver.ReductionsOf(dataType) {
						r.compareSplitReduction(dataType, op, elementsPerRank)
					}
				}

				r.reduceZeroElements()
			})
		})
	}
}

// reduceZeroElements fails the test unless an AllReduce of no elements succeeds.
func (r *rank) reduceZeroElements() {
	const count = 0
	b, stream := r.alloc(r.pool(), mib), r.DefaultStream()
	m := b.Memory()
	r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, stream))
	r.ok(stream.Synchronize(r.ctx))
	r.ok(b.Free())
}

// compareSplitReduction fails the test unless an AllReduce has the same result as a ReduceScatter
// and an AllGather. It returns without a check if the backend does not support the reduction.
func (r *rank) compareSplitReduction(
	dataType symmem.DataType, op symmem.ReduceOp, elementsPerRank int64,
) {
	w, p := r.World(), r.pool()
	const seed = 7 // any number gives random data
	count := int64(w.Size()) * elementsPerRank
	size := count * int64(dataType.Size())
	data := formula.Input(dataType, seed, w.Rank(), w.Size(), count)
	// reduceData is for the AllReduce, and gatherData for the ReduceScatter and the AllGather.
	var reduceData, gatherData symmem.Memory
	for _, m := range []*symmem.Memory{&reduceData, &gatherData} {
		b := r.window(p, size)
		defer func() { r.ok(b.Free()) }()
		var err error
		*m, err = b.Memory().Slice(0, size) // the buffer may be larger
		r.ok(err)
		r.ok(r.DefaultStream().Copy(*m, symmem.Host(data)))
	}

	ownSize := size / int64(w.Size())
	ownPart, err := gatherData.Slice(int64(w.Rank())*ownSize, ownSize)
	r.ok(err)
	call := symmem.Call{
		Operation: symmem.OpAllReduce, Type: dataType, Op: op, Factor: formula.Factor(op),
		Count: count, Send: reduceData, Recv: reduceData,
	}
	err = r.Interop().Do(r.ctx, w, call, nil)
	if errors.Is(err, symmem.ErrUnsupported) {
		return // no rank has a kernel for this call
	}

	r.ok(err)
	call.Operation, call.Count = symmem.OpReduceScatter, elementsPerRank
	call.Send, call.Recv = gatherData, ownPart
	r.ok(r.Interop().Do(r.ctx, w, call, nil))
	r.ok(w.AllGather(r.ctx, ownPart, gatherData, elementsPerRank, dataType, nil))
	reduced, gathered := make([]byte, size), make([]byte, size)
	r.ok(r.DefaultStream().Copy(symmem.Host(reduced), reduceData))
	r.ok(r.DefaultStream().Copy(symmem.Host(gathered), gatherData))
	r.synchronize()
	if !bytes.Equal(reduced, gathered) {
		r.failf("%v of %v: the results have different bits", op, dataType)
	}
}
