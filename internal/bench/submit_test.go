package bench

import (
	"slices"
	"testing"
)

func TestTheQuietestPairsAreThoseThatTogetherTookTheLeast(t *testing.T) {
	all := &sides{
		ours:   []float64{9, 1, 3, 8, 2, 7, 6, 5},
		theirs: []float64{0, 9, 3, 8, 2, 7, 6, 5},
	}
	quiet := all.quietest()
	if !slices.Equal(quiet.ours, []float64{2, 3}) || !slices.Equal(quiet.theirs, []float64{2, 3}) {
		t.Errorf("kept %v beside %v, want the pairs of 2 and 3", quiet.ours, quiet.theirs)
	}
}

func TestOnePairIsKept(t *testing.T) {
	one := (&sides{ours: []float64{5}, theirs: []float64{4}}).quietest()
	if over := one.over(); !slices.Equal(over, []float64{1}) || doubt(over) != 0 {
		t.Errorf("the differences are %v with a noise of %v, want 1 and none", over, doubt(over))
	}
}
