package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPairsAreKeptWhoseNeighboursTookTheLeast(t *testing.T) {
	all := &sides{
		Ours:   []float64{9, 9, 1, 7, 1, 9, 9, 9},
		Theirs: []float64{9, 9, 1, 5, 1, 9, 9, 9},
	}
	quiet := all.quietest()
	if !slices.Equal(quiet.Ours, []float64{7, 9}) || !slices.Equal(quiet.Theirs, []float64{5, 9}) {
		t.Errorf("kept %v next to %v, want the pair between the quiet ones and one next to them",
			quiet.Ours, quiet.Theirs)
	}
}

func TestOnePairIsKept(t *testing.T) {
	one := (&sides{Ours: []float64{5}, Theirs: []float64{4}}).quietest()
	if over := one.over(); !slices.Equal(over, []float64{1}) || medianError(over) != 0 {
		t.Errorf("the differences are %v with an error of %v, want 1 and none", over, medianError(over))
	}
}

// TestQuietPairsAreNoBetterForTheSideThatStumbles: where every third batch of ours takes longer and
// phases slow both sides, what is kept has as many of these as there are.
func TestQuietPairsAreNoBetterForTheSideThatStumbles(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	const trials, pairs = 300, 168
	kept, stumbles := 0, 0
	for range trials {
		all := &sides{}
		for i := range pairs {
			base := 6000 + 50*random.NormFloat64()
			if i/20%2 == 1 {
				base += 3000
			}
			ours := base + 200
			if random.IntN(3) == 0 {
				ours += 400
			}
			all.Ours, all.Theirs = append(all.Ours, ours), append(all.Theirs, base)
		}
		for _, over := range all.quietest().over() {
			kept++
			if over > 400 {
				stumbles++
			}
		}
	}
	if share := float64(stumbles) / float64(kept); math.Abs(share-1.0/3) > 0.03 {
		t.Errorf("%.3f of what is kept stumbles, want a third", share)
	}
}

func TestNoProcessorIsSharedWhileThereAreEnough(t *testing.T) {
	allowed := []int{7, 3, 9, 1, 4, 0, 2, 8, 5, 6}
	for ranks := 1; ranks <= len(allowed); ranks++ {
		taken := map[int]bool{}
		for rank := range ranks {
			mine := deal(allowed, rank, ranks, 4)
			if want := max(1, min(4, len(allowed)/ranks)); len(mine) != want {
				t.Errorf("%d ranks: one has %d processors, want %d", ranks, len(mine), want)
			}
			for _, processor := range mine {
				if taken[processor] {
					t.Errorf("%d ranks: two have processor %d", ranks, processor)
				}
				taken[processor] = true
			}
		}
	}
}
