package symmem_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"symmem"
)

// TestAgreeFloatMismatch compares floats. Zeros with different signs must differ, and all NaNs
// must be equal.
func TestAgreeFloatMismatch(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.World()
		for _, value := range []float64{0.1, -1e300, math.Inf(1), math.SmallestNonzeroFloat64} {
			r.ok(g.AgreeFloat(r.ctx, "rate", value))
		}
		ownNaN := math.Copysign(math.NaN(), float64(r.Rank()-1)) // the signs differ between ranks
		r.ok(g.AgreeFloat(r.ctx, "loss", ownNaN))
		const deviantRank = 2
		for _, c := range []struct {
			usual, deviant float64
			events         [2]string
		}{
			{0.1, math.Nextafter(0.1, 1), [2]string{"Agree of 0.1", "Agree of 0.10000000000000002"}},
			{0, math.Copysign(0, -1), [2]string{"Agree of 0.0", "Agree of -0.0"}},
			{1e300, math.NaN(), [2]string{"Agree of 1e+300", "Agree of NaN"}},
		} {
			rate := c.usual
			if r.Rank() == deviantRank {
				rate = c.deviant
			}
			d := r.wantDivergence(g.AgreeFloat(r.ctx, "rate", rate))
			if !slices.Equal(d.Deviant, []int{deviantRank}) || d.Sides[0].Event != c.events[0] ||
				d.Sides[1].Event != c.events[1] {
				r.failf("got the sides %+v, want rank %d to deviate and the events %q", d.Sides,
					deviantRank, c.events)
			}
		}
		var err error
		if r.Rank() == deviantRank { // makes a different call
			err = g.Agree(r.ctx, "rate", 3)
		} else {
			err = g.AgreeFloat(r.ctx, "rate", 3)
		}
		d := r.wantDivergence(err)
		if d.Sides[0].Event != "Agree of 3.0" || d.Sides[1].Event != "Agree of 3" {
			r.failf("got %+v, want Agree of 3.0 and Agree of 3", d.Sides)
		}
		r.ok(g.AgreeFloat(r.ctx, "rate", 3))
	})
}

// TestAgreeStringMismatch compares strings, some of which differ after the part that errors quote.
func TestAgreeStringMismatch(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.World()
		long := strings.Repeat("configuration\n", 1000)
		for _, text := range []string{"", "adam", "\x00\xff", long} {
			r.ok(g.AgreeString(r.ctx, "optimizer", text))
		}
		const deviantRank = 1
		for _, c := range []struct{ usual, deviant, event string }{
			{"adam", "sgd\n", `Agree of "sgd\n"`},
			{"", "\x00", `Agree of "\x00"`},
			{long + "a", long + "b", `Agree of "configuration\n`},
			{"1", "1 ", `Agree of "1 "`},
		} {
			text := c.usual
			if r.Rank() == deviantRank {
				text = c.deviant
			}
			d := r.wantDivergence(g.AgreeString(r.ctx, "optimizer", text))
			if !slices.Equal(d.Deviant, []int{deviantRank}) || len(d.Sides) != 2 {
				r.failf("got the sides %+v, want two, of which rank %d deviates", d.Sides, deviantRank)
			}
			event := d.Sides[1].Event
			if d.Sides[0].Event == event || !strings.HasPrefix(event, c.event) || len(event) > 400 {
				r.failf("got the sides %+v, want rank %d to deviate with an event %s...", d.Sides,
					deviantRank, c.event)
			}
		}
		var err error
		if r.Rank() == deviantRank { // makes a different call
			err = g.AgreeFloat(r.ctx, "optimizer", 3)
		} else {
			err = g.AgreeString(r.ctx, "optimizer", "3")
		}
		d := r.wantDivergence(err)
		if d.Sides[0].Event != `Agree of "3"` || d.Sides[1].Event != "Agree of 3.0" {
			r.failf("got %+v, want Agree of \"3\" and Agree of 3.0", d.Sides)
		}
		if before := d.Sides[0].Before[0]; !strings.HasPrefix(before, `"optimizer": Agree of "1"`) {
			r.failf("the previous event is %q, want Agree of \"1\"", before)
		}
		r.ok(g.AgreeString(r.ctx, "optimizer", "3"))
		r.wantErr(g.AgreeString(r.ctx, "", "3"), symmem.ErrInvalid)
	})
}
