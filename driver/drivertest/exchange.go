package drivertest

import (
	"context"
	"testing"

	"symmem/driver"
	"symmem/internal/control/controltest"
)

// In an exchange, each rank of a group sends a small payload to all ranks. If rank 0 sends "a" and
// rank 1 sends "b", both receive "a" and "b". Exchanges on different lanes do not wait for each
// other.

var exchangeRequirements = []requirement{
	{"every rank gets the payloads of all ranks, by group rank", testPayloads},
	{"payloads may differ in size", testPayloadSizes},
	{"a payload that is too large causes an error without side effects", testPayloadTooLarge},
	{"a nonexistent lane causes an error without side effects", testNonexistentLane},
	{"lanes do not wait for each other", testLanes},
	{"exchanges and collectives can be interleaved", testMixed},
	{"a canceled exchange makes its group fail", testExchangeCanceled},
}

func testPayloads(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{})
	const chunkBytes = 8 << 10 // backends may split larger payloads
	sizes := []int{0, 1, chunkBytes, chunkBytes + 1, driver.MaxPayload, 100, 0}
	for _, lane := range []driver.Lane{driver.LaneControl, driver.LaneBackground} {
		w.onEachRank(func(r *rank) {
			for round, size := range sizes {
				r.must(exchangePayloads(r, lane, round, []int{size, size, size}))
			}
		})
	}

	// Exchanges on LaneFault succeed, but make the group fail for other calls.
	faultWorld := newWorld(t, h, 3, options{ignoreCloseErrors: true})
	faultWorld.onEachRank(func(r *rank) {
		for round, size := range []int{1, chunkBytes + 1} {
			r.must(exchangePayloads(r, driver.LaneFault, round, []int{size, size, size}))
		}
	})
}

func testPayloadSizes(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{})
	w.onEachRank(func(r *rank) {
		for round := range 30 {
			unequalSizes := []int{0, 1 << (round % 16), 3000 * (round % 7)}
			r.must(exchangePayloads(r, driver.LaneControl, round, unequalSizes))
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

		mustNotHaveFailed(r)
	})
}

func testNonexistentLane(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{})
	w.onEachRank(func(r *rank) {
		const nonexistent = driver.Lanes // number of lanes
		if _, err := r.group.Exchange(w.ctx, nonexistent, nil); err == nil {
			r.failf("Exchange on a nonexistent lane succeeded, want an error")
		}

		mustNotHaveFailed(r)
	})
}

// mustNotHaveFailed checks that exchanges of a group of two ranks succeed.
func mustNotHaveFailed(r *rank) {
	const round = 1
	r.must(exchangePayloads(r, driver.LaneControl, round, []int{5, 5}))
}

// While rank 0 waits in an exchange on the background lane, both ranks make other calls. Rank 1
// joins this exchange last.
func testLanes(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{checkCalls: true})
	otherCallsDone := make(chan struct{})
	exchangeInBackground := func(r *rank) error {
		if r.number == 1 {
			<-otherCallsDone
		}

		const round = 1
		return exchangePayloads(r, driver.LaneBackground, round, []int{9, 10000})
	}
	w.onEachRank(func(r *rank) {
		result := make(chan error, 1)
		go func() { result <- exchangeInBackground(r) }()
		for round := range 20 {
			r.must(exchangePayloads(r, driver.LaneControl, round, []int{20000, 3}))
			r.must(r.launchAndWait(r.group, r.stream, barrier))
		}

		if r.number == 1 {
			close(otherCallsDone)
		}

		r.must(<-result)
	})
}

func testMixed(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{checkCalls: true})
	w.onEachRank(func(r *rank) {
		for round := range 200 {
			r.must(r.queueCall(r.group, r.stream, barrier))
			r.must(exchangePayloads(r, driver.LaneControl, round, []int{round, 3, 9000}))
		}

		r.must(r.stream.Synchronize(w.ctx))
	})
}

func testExchangeCanceled(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{ignoreCloseErrors: true})
	canceled, cancel := context.WithCancel(w.ctx)
	cancel()
	first, second := w.ranks[0].group, w.ranks[1].group
	_, err := first.Exchange(canceled, driver.LaneControl, nil)
	wantError(t, "the canceled exchange", err, context.Canceled)
	_, err = second.Exchange(w.ctx, driver.LaneControl, nil)
	wantError(t, "the other rank's exchange", err, driver.ErrFault)
	_, err = first.Exchange(w.ctx, driver.LaneControl, nil)
	if err == nil {
		t.Error("an exchange after the canceled one succeeded, want an error")
	}
}

// exchangePayloads exchanges payloads between all ranks, and checks them. Rank i sends sizes[i]
// bytes, whose values depend on the round.
func exchangePayloads(r *rank, lane driver.Lane, round int, sizes []int) error {
	exchange := func(payload []byte) ([][]byte, error) {
		return r.group.Exchange(r.world.ctx, lane, payload)
	}
	return controltest.ExchangeAndCheck(exchange, r.number, round, sizes)
}
