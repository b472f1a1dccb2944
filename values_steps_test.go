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

const stepProgramsVariable = "SYMMEM_TEST_STEPS" // number of random programs

// The ranks begin three steps with equal names, and then a step with different names.
func TestStepMismatch(t *testing.T) {
	const deviantRank, usualRank = 1, 2
	const usual, deviant = "decode(batch=8)", "prefill(tokens=100)"
	const equalSteps = 3
	const afterBarrier = ", after 1 collective" // ends the events of all steps
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
		nextLine := callerLine()
		d := r.wantDivergence(err)
		sides := d.Ranks() // by rank
		if !slices.Equal(d.Deviant, []int{deviantRank}) {
			r.failf("got the deviants %v, want rank %d: %v", d.Deviant, deviantRank, err)
		}

		if site := sides[deviantRank].Site; !isLineBefore(site, nextLine) {
			r.failf("rank %d deviates at %s, want the line before %s", deviantRank, site, nextLine)
		}

		if got, want := sides[deviantRank].Event, deviant+afterBarrier; got != want {
			r.failf("rank %d has the event %q, want %q", deviantRank, got, want)
		}

		if got, want := sides[usualRank].Event, usual+afterBarrier; got != want {
			r.failf("rank %d has the event %q, want %q", usualRank, got, want)
		}

		want := fmt.Sprintf("ranks differ in step %d: ranks 0,2 have %s", equalSteps+1, usual)
		if !strings.Contains(err.Error(), want) {
			r.failf("got the error %q, want one that contains %q", err, want)
		}

		wantPrevious := "step " + usual + afterBarrier + " at "
		if previous := sides[0].Before[0]; !strings.HasPrefix(previous, wantPrevious) {
			r.failf("the previous event of rank 0 is %q, want the prefix %q", previous, wantPrevious)
		}

		r.ok(g.Step(r.ctx, usual)) // the group is still usable
		tooLong := strings.Repeat("w", symmem.MaxStep+1)
		for _, invalid := range []string{"", tooLong} {
			r.wantErr(g.Step(r.ctx, invalid), symmem.ErrInvalid)
		}
	})
}

// An error about a step contains the number of collectives since the previous step. Each replay of
// a graph counts.
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
		err := g.Step(r.ctx, nameByRank(r))
		want := fmt.Sprintf("decode 0, after %d collectives", replays)
		if got := r.wantDivergence(err).Ranks()[0].Event; got != want {
			r.failf("rank 0 has the event %q, want %q", got, want)
		}

		r.ok(graph.Close())
	})
}

// nameByRank returns a different name on each rank.
func nameByRank(r *rank) string { return fmt.Sprint("decode ", r.Rank()) }

func TestStepGuardVariableDisablesSteps(t *testing.T) {
	t.Setenv("SYMMEM_STEP_GUARD", "0")
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.ok(r.World().Step(r.ctx, nameByRank(r)))
	})
}

type stepMistake struct {
	kind stepMistakeKind
	rank int
	step int
}

type stepMistakeKind int

const (
	wrongName stepMistakeKind = iota
	extraCall
	missingCall

	lastMistakeKind = missingCall
)

// If one rank makes a mistake in a step, this step or the next one fails with an error that names
// the rank.
func TestRandomStepMismatch(t *testing.T) {
	const ranks, maxSteps = 3, 6
	programCount := stepPrograms(t)
	runRanks(t, ranks, symmem.Options{}, func(r *rank) {
		for program := range programCount {
			const seed = 23 // arbitrary, but the same on all ranks
			draw := rand.New(rand.NewPCG(seed, uint64(program)))
			steps := 1 + draw.IntN(maxSteps)
			var mistake stepMistake
			mistake.rank = draw.IntN(ranks)
			mistake.kind = stepMistakeKind(draw.IntN(int(lastMistakeKind) + 1))
			mistake.step = draw.IntN(steps)
			const color = 0 // of all ranks
			g := r.split(r.World(), color)
			// One more step finds a mistake in the last one.
			err := runSteps(r, g, draw, steps+1, mistake)
			d := r.wantDivergence(err)
			if !slices.Equal(d.Deviant, []int{mistake.rank}) {
				r.failf("program %d: got %v, want it to blame rank %d: %+v", program, err, mistake.rank,
					mistake)
			}

			if !strings.Contains(err.Error(), "steps_test.go:") {
				r.failf("program %d: got %v, want a line of this file", program, err)
			}

			// Wait until the program has failed on all ranks.
			r.ok(r.World().Agree(r.ctx, "program", int64(program)))
			r.ok(g.Close())
		}
	})
}

func stepPrograms(t *testing.T) int {
	t.Helper()
	const defaultPrograms = 100
	text := os.Getenv(stepProgramsVariable)
	if text == "" {
		return defaultPrograms
	}

	programs, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("the variable %s: %v", stepProgramsVariable, err)
	}

	return programs
}

// runSteps runs steps with random names and numbers of barriers until a call fails.
func runSteps(r *rank, g *symmem.Group, draw *rand.Rand, steps int, mistake stepMistake) error {
	const names, maxCalls = 5, 3
	for step := range steps {
		name := fmt.Sprint("step ", draw.IntN(names))
		calls := 1 + draw.IntN(maxCalls)
		if step == mistake.step && r.Rank() == mistake.rank {
			switch mistake.kind {
			case wrongName:
				name += "?"
			case extraCall:
				calls++
			case missingCall:
				calls--
			}
		}

		if err := g.Step(r.ctx, name); err != nil {
			return err
		}

		for range calls {
			if err := g.Barrier(r.ctx, nil); err != nil {
				return err
			}

			if err := r.DefaultStream().Synchronize(r.ctx); err != nil {
				return err
			}
		}
	}

	return nil
}
