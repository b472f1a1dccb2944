package symmem_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"symmem"
)

// stepProgramsVariable sets the number of programs in TestRandomStepMismatch.
const stepProgramsVariable = "SYMMEM_TEST_STEPS"

func TestStepMismatch(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.World()
		name := "decode(batch=8)"
		for range 3 {
			r.ok(g.Step(r.ctx, name))
			r.ok(g.Barrier(r.ctx, nil))
		}
		if r.Rank() == 1 {
			name = "prefill(tokens=100)"
		}
		err := g.Step(r.ctx, name)
		line := callerLine()
		d := r.wantDivergence(err)
		if !slices.Equal(d.Deviant, []int{1}) || !isLineBefore(d.Ranks()[1].Site, line) ||
			d.Ranks()[1].Event != "prefill(tokens=100), after 1 collective" ||
			d.Ranks()[2].Event != "decode(batch=8), after 1 collective" ||
			!strings.Contains(err.Error(), "ranks differ in step 4: ranks 0,2 have decode(batch=8)") ||
			!strings.HasPrefix(d.Ranks()[0].Before[0], "step decode(batch=8), after 1 collective at ") {
			r.failf("got %v (%+v), want rank 1 to deviate in step 4", err, d)
		}
		r.ok(g.Step(r.ctx, "decode(batch=8)")) // the group is still usable
		for _, invalid := range []string{"", strings.Repeat("w", symmem.MaxStep+1)} {
			r.wantErr(g.Step(r.ctx, invalid), symmem.ErrInvalid)
		}
	})
}

func TestStepsCountReplays(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.World()
		b := r.window(r.pool(), 4096)
		graph := r.capture(func(s *symmem.Stream) {
			m := b.Memory()
			r.ok(g.AllReduce(r.ctx, m, m, 8, symmem.Float32, symmem.Sum, s))
		})
		r.ok(g.Step(r.ctx, "warm up"))
		for range 3 {
			r.ok(graph.Launch(r.DefaultStream()))
		}
		r.synchronize()
		err := g.Step(r.ctx, fmt.Sprint("decode ", r.Rank()))
		if d := r.wantDivergence(err); d.Ranks()[0].Event != "decode 0, after 3 collectives" {
			r.failf("got %+v, want decode 0, after 3 collectives", d)
		}
		r.ok(graph.Close())
	})
}

func TestCheckOffDisablesSteps(t *testing.T) {
	t.Setenv("SYMMEM_STEP_GUARD", "0") // disables the comparison of steps
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.ok(r.World().Step(r.ctx, fmt.Sprint("decode ", r.Rank())))
	})
}

// TestRandomStepMismatch runs random programs of steps and collectives. One rank deviates once: it
// begins a different step, or makes one collective more or less. An error must name that rank.
func TestRandomStepMismatch(t *testing.T) {
	programs := 100
	if text := os.Getenv(stepProgramsVariable); text != "" {
		var err error
		programs, err = strconv.Atoi(text)
		if err != nil {
			t.Fatalf("the variable %s: %v", stepProgramsVariable, err)
		}
	}
	const ranks = 3
	const wrongName, extraCall, missingCall = 0, 1, 2 // kinds of mistakes
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		for program := range programs {
			draw := rand.New(rand.NewPCG(23, uint64(program))) // draws the same numbers on every rank
			steps, wrongRank, mistake := 1+draw.IntN(6), draw.IntN(ranks), draw.IntN(3)
			wrongStep := draw.IntN(steps)
			g := r.split(r.World(), 0)
			var err error
			for step := 0; step <= steps && err == nil; step++ {
				name, calls := fmt.Sprint("step ", draw.IntN(5)), 1+draw.IntN(3)
				if step == wrongStep && r.Rank() == wrongRank {
					switch mistake {
					case wrongName:
						name += "?"
					case extraCall:
						calls++
					case missingCall:
						calls--
					}
				}
				err = g.Step(r.ctx, name)
				for call := 0; call < calls && err == nil; call++ {
					err = g.Barrier(r.ctx, nil)
					if err == nil {
						err = r.DefaultStream().Synchronize(r.ctx)
					}
				}
			}
			d := r.wantDivergence(err)
			if !slices.Equal(d.Deviant, []int{wrongRank}) ||
				!strings.Contains(err.Error(), "steps_test.go:") {
				r.failf("program %d: got %v, want it to blame rank %d (mistake %d in step %d)", program,
					err, wrongRank, mistake, wrongStep)
			}
			r.ok(errors.Join(r.World().Agree(r.ctx, "program", int64(program)), g.Close()))
		}
	})
}
