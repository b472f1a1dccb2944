package symmem_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"symmem"
)

// AgreeFloat distinguishes 0 and -0.
func TestAgreeFloatMismatch(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.World()
		for _, value := range []float64{0.1, -1e300, math.Inf(1), math.SmallestNonzeroFloat64} {
			r.ok(g.AgreeFloat(r.ctx, "rate", value))
		}

		nan := math.NaN()
		if r.Rank() == 0 {
			nan = math.Copysign(nan, -1)
		}

		r.ok(g.AgreeFloat(r.ctx, "loss", nan)) // all NaNs are equal
		const deviantRank = 2
		for _, c := range []struct {
			usual        float64
			usualEvent   string  // in the error
			deviant      float64 // of deviantRank
			deviantEvent string
		}{
			{
				usual: 0.1, usualEvent: "Agree of 0.1",
				deviant: math.Nextafter(0.1, 1), deviantEvent: "Agree of 0.10000000000000002",
			},
			{
				usual: 0, usualEvent: "Agree of 0.0",
				deviant: math.Copysign(0, -1), deviantEvent: "Agree of -0.0",
			},
			{
				usual: 1e300, usualEvent: "Agree of 1e+300",
				deviant: math.NaN(), deviantEvent: "Agree of NaN",
			},
		} {
			rate := c.usual
			if r.Rank() == deviantRank {
				rate = c.deviant
			}

			err := g.AgreeFloat(r.ctx, "rate", rate)
			d := r.wantDivergence(err)
			if !slices.Equal(d.Deviant, []int{deviantRank}) {
				r.failf("%v and %v: got the deviants %v, want rank %d", c.usual, c.deviant, d.Deviant,
					deviantRank)
			}

			usualSide, deviantSide := d.Sides[0], d.Sides[1]
			if usualSide.Event != c.usualEvent || deviantSide.Event != c.deviantEvent {
				r.failf("%v and %v: got the sides %+v, want the events %q and %q", c.usual, c.deviant,
					d.Sides, c.usualEvent, c.deviantEvent)
			}
		}

		// An integer differs from an equal float.
		var err error
		if r.Rank() == deviantRank {
			err = g.Agree(r.ctx, "rate", 3)
		} else {
			err = g.AgreeFloat(r.ctx, "rate", 3)
		}

		d := r.wantDivergence(err)
		usualSide, deviantSide := d.Sides[0], d.Sides[1]
		if usualSide.Event != "Agree of 3.0" || deviantSide.Event != "Agree of 3" {
			r.failf("got %+v, want Agree of 3.0 and Agree of 3", d.Sides)
		}

		r.ok(g.AgreeFloat(r.ctx, "rate", 3)) // the group is still usable
	})
}

// An error quotes only the beginning of a long string, but different strings have different events
// in the error.
func TestAgreeStringMismatch(t *testing.T) {
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g := r.World()
		long := strings.Repeat("configuration\n", 1000)
		for _, text := range []string{"", "adam", "\x00\xff", long} {
			r.ok(g.AgreeString(r.ctx, "optimizer", text))
		}

		const deviantRank = 1
		const maxEventBytes = 400 // less than len(long)
		for _, c := range []struct {
			usual, deviant  string // deviant is the text of deviantRank
			wantEventPrefix string // of deviantRank
		}{
			{usual: "adam", deviant: "sgd\n", wantEventPrefix: `Agree of "sgd\n"`},
			{usual: "", deviant: "\x00", wantEventPrefix: `Agree of "\x00"`},
			{usual: long + "a", deviant: long + "b", wantEventPrefix: `Agree of "configuration\n`},
			{usual: "1", deviant: "1 ", wantEventPrefix: `Agree of "1 "`},
		} {
			text := c.usual
			if r.Rank() == deviantRank {
				text = c.deviant
			}

			err := g.AgreeString(r.ctx, "optimizer", text)
			d := r.wantDivergence(err)
			if !slices.Equal(d.Deviant, []int{deviantRank}) || len(d.Sides) != 2 {
				r.failf("got the deviants %v and the sides %+v, want rank %d and two sides", d.Deviant,
					d.Sides, deviantRank)
			}

			usualEvent, deviantEvent := d.Sides[0].Event, d.Sides[1].Event
			if deviantEvent == usualEvent {
				r.failf("both sides have the event %q, want different events", deviantEvent)
			}

			hasPrefix := strings.HasPrefix(deviantEvent, c.wantEventPrefix)
			if !hasPrefix || len(deviantEvent) > maxEventBytes {
				r.failf("the deviant has the event %q, want the prefix %q and at most %d bytes",
					deviantEvent, c.wantEventPrefix, maxEventBytes)
			}
		}

		// A float differs from the text of the number.
		var err error
		if r.Rank() == deviantRank {
			err = g.AgreeFloat(r.ctx, "optimizer", 3)
		} else {
			err = g.AgreeString(r.ctx, "optimizer", "3")
		}

		d := r.wantDivergence(err)
		usualSide, deviantSide := d.Sides[0], d.Sides[1]
		if usualSide.Event != `Agree of "3"` || deviantSide.Event != "Agree of 3.0" {
			r.failf("got %+v, want Agree of \"3\" and Agree of 3.0", d.Sides)
		}

		const wantPrevious = `"optimizer": Agree of "1"` // from the last row of the table
		if previous := usualSide.Before[0]; !strings.HasPrefix(previous, wantPrevious) {
			r.failf("the previous event is %q, want the prefix %q", previous, wantPrevious)
		}

		r.ok(g.AgreeString(r.ctx, "optimizer", "3")) // the group is still usable
		const noName = ""
		r.wantErr(g.AgreeString(r.ctx, noName, "3"), symmem.ErrInvalid)
	})
}
