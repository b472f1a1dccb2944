package drivertest

import (
	"context"
	"testing"

	"symmem/driver"
)

var exchangeRequirements = []requirement{
	{"every rank gets the payloads of all ranks, by group rank", testPayloads},
	{"payloads may differ in size", testPayloadSizes},
	{"a payload that is too large causes an error without side effects", testPayloadTooLarge},
	{"lanes do not wait for each other", testLanes},
	{"exchanges and collectives can be interleaved", testMixed},
	{"a canceled exchange makes its group fail", testExchangeCanceled},
}

func testPayloads(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{})
	for _, lane := range []driver.Lane{driver.LaneControl, driver.LaneBackground} {
		w.onEachRank(func(r *rank) {
			for round, bytes := range []int{0, 1, 8 << 10, 8<<10 + 1, driver.MaxPayload, 100, 0} {
				r.must(r.exchangePayloads(lane, round, []int{bytes, bytes, bytes}))
			}
		})
	}
	// An exchange on LaneFault makes the group fail.
	faultWorld := newWorld(t, h, 3, options{allowFaults: true})
	faultWorld.onEachRank(func(r *rank) {
		for round, bytes := range []int{1, 8<<10 + 1} {
			r.must(r.exchangePayloads(driver.LaneFault, round, []int{bytes, bytes, bytes}))
		}
	})
}

func testPayloadSizes(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{})
	w.onEachRank(func(r *rank) {
		for round := range 30 {
			sizes := []int{0, 1 << (round % 16), 3000 * (round % 7)}
			r.must(r.exchangePayloads(driver.LaneControl, round, sizes))
		}
	})
}

func testPayloadTooLarge(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{})
	w.onEachRank(func(r *rank) {
		large := make([]byte, driver.MaxPayload+1)
		if _, err := r.group.Exchange(w.ctx, driver.LaneControl, large); err == nil {
			r.failf("Exchange of more than MaxPayload bytes succeeded, want an error")
		}
		if _, err := r.group.Exchange(w.ctx, driver.Lanes, nil); err == nil {
			r.failf("Exchange on a nonexistent lane succeeded, want an error")
		}
		r.must(r.exchangePayloads(driver.LaneControl, 1, []int{5, 5}))
	})
}

// testLanes makes rank 0 wait on the background lane. Calls on the control lane, and collectives,
// must complete during the wait.
func testLanes(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	release := make(chan struct{})
	background := func(r *rank) error {
		if r.number == 1 {
			<-release
		}
		return r.exchangePayloads(driver.LaneBackground, 1, []int{9, 10000})
	}
	w.onEachRank(func(r *rank) {
		result := make(chan error, 1)
		go func() { result <- background(r) }()
		for round := range 20 {
			r.must(r.exchangePayloads(driver.LaneControl, round, []int{20000, 3}))
			r.must(r.launchAndWait(r.group, r.stream, driver.Call{Operation: driver.Barrier}))
		}
		if r.number == 1 {
			close(release)
		}
		r.must(<-result)
	})
}

func testMixed(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		for round := range 200 {
			r.must(r.queueCall(r.group, r.stream, driver.Call{Operation: driver.Barrier}))
			r.must(r.exchangePayloads(driver.LaneControl, round, []int{round, 3, 9000}))
		}
		r.must(r.stream.Synchronize(w.ctx))
	})
}

func testExchangeCanceled(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{allowFaults: true})
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err := w.ranks[0].group.Exchange(ctx, driver.LaneControl, nil)
	wantError(t, "the canceled exchange", err, context.Canceled)
	_, err = w.ranks[1].group.Exchange(w.ctx, driver.LaneControl, nil)
	wantError(t, "the other rank's exchange", err, driver.ErrFault)
	_, err = w.ranks[0].group.Exchange(w.ctx, driver.LaneControl, nil)
	if err == nil {
		t.Error("an exchange after the canceled one succeeded, want an error")
	}
}
