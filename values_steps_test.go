package symmem_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"symmem"
)

const stepProgramsVariable = "SYMMEM_TEST_STEPS" // number of programs

// A step is a named part of a program. Rank 1 begins a different fourth step.
func TestStepMismatch(t *testing.T) {
	const deviantRank, usual, deviant = 1, "decode(batch=8)", "prefill(tokens=100)"
	const equalSteps, afterBarrier = 3, ", after 1 collective"
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.World()
		for range equalSteps {
			r.ok(g.Step(r.ctx, usual))
			r.ok(g.Barrier(r.ctx, nil))
		}

		name := usual
		if r.Rank() == deviantRank {
			name = deviant
		}

		err := g.Step(r.ctx, name)
		line := callerLine() // the line after the call
		d := r.wantDivergence(err)
		sides := d.Ranks() // by rank
		if !slices.Equal(d.Deviant, []int{deviantRank}) {
			r.failf("got the deviants %v, want rank %d: %v", d.Deviant, deviantRank, err)
		}

		if site := sides[deviantRank].Site; !isLineBefore(site, line) {
			r.failf("rank %d deviates at %s, want the line before %s", deviantRank, site, line)
		}

		if got, want := sides[deviantRank].Event, deviant+afterBarrier; got != want {
			r.failf("rank %d has the event %q, want %q", deviantRank, got, want)
		}

		if got, want := sides[2].Event, usual+afterBarrier; got != want {
			r.failf("rank 2 has the event %q, want %q", got, want)
		}

		want := "ranks differ in step 4: ranks 0,2 have " + usual
		if !strings.Contains(err.Error(), want) {
			r.failf("got the error %q, want one that contains %q", err, want)
		}

		wantBefore := "step " + usual + afterBarrier + " at "
		if before := sides[0].Before[0]; !strings.HasPrefix(before, wantBefore) {
			r.failf("rank 0's event before is %q, want the prefix %q", before, wantBefore)
		}

		r.ok(g.Step(r.ctx, usual)) // the group is still usable
		tooLong := strings.Repeat("w", symmem.MaxStep+1)
		for _, invalid := range []string{"", tooLong} {
			r.wantErr(g.Step(r.ctx, invalid), symmem.ErrInvalid)
		}
	})
}

// An error about a step counts the collectives of the previous step, including each replay of a
// graph.
func TestStepsCountReplays(t *testing.T) {
	const count, replays = 8, 3
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		g := r.World()
		b := r.window(r.pool(), 4096)
		graph := r.capture(func(s *symmem.Stream) {
			m := b.Memory()
			r.ok(g.AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s))
		})
		r.ok(g.Step(r.ctx, "warm up"))
		for range replays {
			r.ok(graph.Launch(r.DefaultStream()))
		}

		r.synchronize()
		err := g.Step(r.ctx, fmt.Sprint("decode ", r.Rank())) // fails, because the names differ
		const want = "decode 0, after 3 collectives"
		if got := r.wantDivergence(err).Ranks()[0].Event; got != want {
			r.failf("rank 0 has the event %q, want %q", got, want)
		}

		r.ok(graph.Close())
	})
}

func TestStepGuardVariableDisablesSteps(t *testing.T) {
	t.Setenv("SYMMEM_STEP_GUARD", "0")
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.ok(r.World().Step(r.ctx, fmt.Sprint("decode ", r.Rank()))) // names differ
	})
}

// One rank makes a mistake in a random step. At the next step at the latest, an error names this
// rank.
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
			const seed = 23 // arbitrary, but the same on all ranks
			draw := rand.New(rand.NewPCG(seed, uint64(program)))
			const maxSteps, mistakes = 6, 3
			steps := 1 + draw.IntN(maxSteps)
			wrongRank := draw.IntN(ranks)
			mistake := draw.IntN(mistakes)
			wrongStep := draw.IntN(steps)
			g := r.split(r.World(), 0)
			var err error
			// One more step, without a mistake, finds a mistake in the last one.
			for step := 0; step <= steps && err == nil; step++ {
				name := fmt.Sprint("step ", draw.IntN(5))
				calls := 1 + draw.IntN(3)
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
			if !slices.Equal(d.Deviant, []int{wrongRank}) {
				r.failf("program %d: got %v, want it to blame rank %d (mistake %d in step %d)", program,
					err, wrongRank, mistake, wrongStep)
			}

			if !strings.Contains(err.Error(), "steps_test.go:") {
				r.failf("program %d: got %v, want a line of this file", program, err)
			}

			r.ok(r.World().Agree(r.ctx, "program", int64(program))) // every rank has failed
			r.ok(g.Close())
		}
	})
}
