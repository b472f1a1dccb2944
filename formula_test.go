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

// A formula is the order in which a reduction combines the values of the ranks. For example, ranks
// 0 to 3 contribute a, b, c and d. The sum is ((a+b)+c)+d with the formula "ranks", and
// (a+b)+(c+d) with the formula "tree". Each addition rounds its result, so the two sums may have
// different bits. The formula "any" permits any order.
//
// A path is a way in which a call runs. A backend may have up to three paths: plain, window and
// direct. A call with a formula can take only a path that supports this formula.

// TestFormulaNames parses the names of all formulas, and the name that each formula returns. An
// unknown name or formula must be refused.
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

// TestOptionsOverrideFormulaEnvironment opens three ranks while the environment selects the formula
// tree, which needs 2, 4, 8, ... ranks. Opening must fail, but succeed if the options select
// another formula. It must also fail if the text in the environment is not the name of a formula.
func TestOptionsOverrideFormulaEnvironment(t *testing.T) {
	t.Setenv("SYMMEM_DETERMINISTIC", "tree")
	_, err := symmem.OpenLocal(t.Context(), 3, symmem.Options{Backend: "host"})
	const want = "the reduction formula tree requires 2, 4, 8, ... ranks, but the group has 3"
	if !errors.Is(err, symmem.ErrUnsupported) || !strings.Contains(err.Error(), want) {
		t.Errorf("a tree of three ranks: got %v, want ErrUnsupported with %q", err, want)
	}

	runRanks(t, 3, symmem.Options{Deterministic: symmem.FormulaAny}, func(r *rank) {
		const bytes = 4096 // of the summed buffer
		r.checkSum(r.World(), r.window(r.pool(), bytes))
	})

	t.Setenv("SYMMEM_DETERMINISTIC", "sorted") // not a formula
	_, err = symmem.Open(t.Context(), symmem.Options{Size: 1})
	const wantVariable = "SYMMEM_DETERMINISTIC: "
	if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), wantVariable) {
		t.Errorf("Open with the formula sorted: got %v, want ErrInvalid with %q", err, wantVariable)
	}
}

// TestDeterministicModeRejectsAdoptedCommunicator adopts the communicator of another library in a
// world with a formula. symmem cannot choose the order in which this library reduces, so the call
// must fail.
func TestDeterministicModeRejectsAdoptedCommunicator(t *testing.T) {
	rt, err := symmem.Open(t.Context(), withBackend(symmem.Options{
		Size: 1, Deterministic: symmem.FormulaRankOrder,
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const handle = 1 // is no communicator, but the call must fail before it uses the handle
	_, err = rt.Interop().AdoptCommunicator(handle, "theirs", nil)
	const option = "Options.Deterministic" // selects the formula
	if !errors.Is(err, symmem.ErrUnsupported) || !strings.Contains(err.Error(), option) {
		t.Errorf("AdoptCommunicator: got %v, want ErrUnsupported with the name of %s", err, option)
	}
}

// rejectReduction rejects every call, like a path that cannot reduce in a given order.
func rejectReduction(*driver.Call) error {
	return fmt.Errorf("NCCL chooses the order: %w", driver.ErrUnsupported)
}

// routeRow is a case of TestDeterministicCallNeedsDirectPath: an all-reduce and its expected path.
type routeRow struct {
	name       string
	memory     symmem.Memory // contains the elements and gets their sums
	count      int64         // of float32 elements
	choice     symmem.PathChoice
	wantPath   string // or noPath if the call must be rejected
	wantReason string // for the path or for the rejection
}

const noPath = ""

// newRouteRows returns calls on registered and on unregistered memory. Both memories have 1 MiB.
func newRouteRows(registered, unregistered symmem.Memory) []routeRow {
	const (
		anyCount     = 1 << 10 // in cases in which the count does not matter
		fittingCount = 2 << 10 // 8 KiB, as much as fits into the exchange memory
		largeCount   = 1 << 18 // 1 MiB

		noOtherPath   = "and no other path can take the call"
		orderRejected = "NCCL chooses the order" + notSupported // the error of rejectReduction
	)
	return []routeRow{
		{
			name:       "large, registered",
			memory:     registered,
			count:      largeCount,
			choice:     symmem.PathDefault,
			wantPath:   "direct",
			wantReason: bothInWindows + noOtherPath,
		},
		{
			name:       "fitting, unregistered",
			memory:     unregistered,
			count:      fittingCount,
			choice:     symmem.PathDefault,
			wantPath:   "direct",
			wantReason: notInWindow + ", " + noOtherPath,
		},
		{
			name:       "large, unregistered",
			memory:     unregistered,
			count:      largeCount,
			choice:     symmem.PathDefault,
			wantPath:   noPath,
			wantReason: orderRejected + "; not direct: 8KiB of exchange memory" + notSupported,
		},
		{
			name:       "plain path",
			memory:     registered,
			count:      anyCount,
			choice:     symmem.PathPlain,
			wantPath:   noPath,
			wantReason: orderRejected,
		},
		{
			name:       "window path",
			memory:     registered,
			count:      anyCount,
			choice:     symmem.PathWindow,
			wantPath:   noPath,
			wantReason: orderRejected,
		},
	}
}

// TestDeterministicCallNeedsDirectPath asks for the paths of all-reduces that the plain path and
// the window path reject. The direct path takes registered memory of any size. It takes
// unregistered memory only if the elements fit into 8 KiB of exchange memory, through which the
// ranks pass them.
func TestDeterministicCallNeedsDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: writeDirectTable(t)}, func(r *rank) {
		registered := r.window(r.pool(), mib).Memory()
		unregistered := r.alloc(r.pool(), mib).Memory()
		g := symmem.WithPathChecks(r.World(), rejectReduction, rejectReduction, checkSmallExchange)
		for _, row := range newRouteRows(registered, unregistered) {
			// The third result, a digest that ranks compare, does not matter here.
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

// TestAllReduceEqualsReduceScatterAllGather computes each reduction in two ways: with an AllReduce,
// and with a ReduceScatter and an AllGather of its results. With a formula, both ways must have the
// same bits.
func TestAllReduceEqualsReduceScatterAllGather(t *testing.T) {
	const ranks = 4
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
				r.compareAllReductions()
				r.reduceZeroElements()
			})
		})
	}
}

// compareAllReductions calls compareReduction for each reduction of three data types.
func (r *rank) compareAllReductions() {
	// With this odd number, the parts of most ranks begin at addresses with little alignment.
	const elementsPerRank = 3001
	types := []symmem.DataType{symmem.Float32, symmem.BFloat16, symmem.Float64}
	for _, dataType := range types {
		for _, op := range driver.ReductionsOf(dataType) {
			r.compareReduction(dataType, op, elementsPerRank)
		}
	}
}

// compareReduction fails the test unless an AllReduce has the same result as a ReduceScatter and
// an AllGather. It returns without a check if the backend does not support the reduction.
func (r *rank) compareReduction(
	dataType symmem.DataType, op symmem.ReduceOp, elementsPerRank int64,
) {
	w := r.World()
	p := r.pool()
	const seed = 7 // any number gives random data
	count := int64(w.Size()) * elementsPerRank
	size := count * int64(dataType.Size())
	data := formula.Input(dataType, seed, w.Rank(), w.Size(), count)
	// Both memories contain the data at first. reduced gets the result of the AllReduce, and
	// gathered the result of the other two operations.
	var reduced, gathered symmem.Memory
	for _, m := range []*symmem.Memory{&reduced, &gathered} {
		b := r.window(p, size)
		defer func() { r.ok(b.Free()) }()
		var err error
		*m, err = b.Memory().Slice(0, size) // the buffer may be larger
		r.ok(err)
		r.ok(r.DefaultStream().Copy(*m, symmem.Host(data)))
	}

	call := symmem.Call{
		Operation: symmem.OpAllReduce, Type: dataType, Op: op, Factor: formula.Factor(op),
		Count: count, Send: reduced, Recv: reduced,
	}
	ownSize := size / int64(w.Size())
	ownPart, err := gathered.Slice(int64(w.Rank())*ownSize, ownSize)
	r.ok(err)
	err = r.Interop().Do(r.ctx, w, call, nil)
	if errors.Is(err, symmem.ErrUnsupported) {
		return // all ranks return here: the backend cannot run this call on any rank
	}

	r.ok(err)
	call.Operation = symmem.OpReduceScatter
	call.Count = elementsPerRank
	call.Send = gathered
	call.Recv = ownPart
	r.ok(r.Interop().Do(r.ctx, w, call, nil))
	r.ok(w.AllGather(r.ctx, ownPart, gathered, elementsPerRank, dataType, nil))
	if !bytes.Equal(read[uint8](r, reduced), read[uint8](r, gathered)) {
		r.failf("%v of %v: the results have different bits, want the same", op, dataType)
	}
}

// reduceZeroElements fails the test unless an AllReduce of no elements succeeds.
func (r *rank) reduceZeroElements() {
	const count = 0
	b := r.alloc(r.pool(), mib)
	m := b.Memory()
	stream := r.DefaultStream()
	r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, stream))
	r.ok(stream.Synchronize(r.ctx))
	r.ok(b.Free())
}
