package symmem_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"symmem"
)

// TestAgreeFloatMismatch checks that zeros with different signs differ and all NaNs are equal.
func TestAgreeFloatMismatch(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.World()
		for _, value := range []float64{0.1, -1e300, math.Inf(1), math.SmallestNonzeroFloat64} {
			r.ok(g.AgreeFloat(r.ctx, "rate", value))
		}
		r.ok(g.AgreeFloat(r.ctx, "loss", math.Copysign(math.NaN(), float64(r.Rank()-1))))
		odd := r.Rank() == 2
		for _, c := range []struct {
			usual, odd float64
			events     [2]string
		}{
			{0.1, math.Nextafter(0.1, 1), [2]string{"Agree of 0.1", "Agree of 0.10000000000000002"}},
			{0, math.Copysign(0, -1), [2]string{"Agree of 0.0", "Agree of -0.0"}},
			{1e300, math.NaN(), [2]string{"Agree of 1e+300", "Agree of NaN"}},
		} {
			rate := map[bool]float64{false: c.usual, true: c.odd}[odd]
			d := r.wantDivergence(g.AgreeFloat(r.ctx, "rate", rate))
			if !slices.Equal(d.Deviant, []int{2}) || d.Sides[0].Event != c.events[0] ||
				d.Sides[1].Event != c.events[1] {
				r.failf("got the sides %+v, want rank 2 to deviate and the events %q", d.Sides, c.events)
			}
		}
		var err error
		if odd {
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
		for _, c := range []struct{ usual, odd, event string }{
			{"adam", "sgd\n", `Agree of "sgd\n"`},
			{"", "\x00", `Agree of "\x00"`},
			{long + "a", long + "b", `Agree of "configuration\n`},
			{"1", "1 ", `Agree of "1 "`},
		} {
			text := c.usual
			if r.Rank() == 1 {
				text = c.odd
			}
			d := r.wantDivergence(g.AgreeString(r.ctx, "optimizer", text))
			if !slices.Equal(d.Deviant, []int{1}) || len(d.Sides) != 2 ||
				d.Sides[0].Event == d.Sides[1].Event || !strings.HasPrefix(d.Sides[1].Event, c.event) ||
				len(d.Sides[1].Event) > 400 {
				r.failf("got the sides %+v, want rank 1 to deviate with an event %s...", d.Sides,
					c.event)
			}
		}
		var err error
		if r.Rank() == 1 {
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
