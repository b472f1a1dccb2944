package controltest

import (
	"context"
	"testing"

	"symmem/driver"
)

var exchangeContracts = []contract{
	{"canceling its context ends an exchange and makes the plane fail", testExchangeCancelled},
	{"in a group of one, the rank receives its own payload", testAlone},
}

func (w *world) exchangeAndCheck(i int, lane driver.Lane, round int, sizes []int) error {
	return ExchangeAndCheck(func(payload []byte) ([][]byte, error) {
		return w.planes[i].Exchange(w.ctx, lane, payload)
	}, i, round, sizes)
}

func testExchangeCancelled(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err := w.planes[0].Exchange(ctx, driver.LaneControl, nil)
	checkError(t, "the canceled exchange", err, context.Canceled)
	checkError(t, "the cause", w.planes[0].Cause(), context.Canceled)
	_, err = w.planes[1].Exchange(w.ctx, driver.LaneControl, nil)
	checkError(t, "the exchange on the other rank", err, driver.ErrFault)
	_, err = w.planes[0].Exchange(w.ctx, driver.LaneControl, nil)
	checkError(t, "the next exchange", err, context.Canceled)
}

func testAlone(t *testing.T, join Join) {
	w := newWorld(t, join, 1, patience)
	for lane := range driver.Lanes {
		must(t, w.exchangeAndCheck(0, lane, 1, []int{5}))
	}
	w = newWorld(t, join, 1, patience)
	must(t, w.planes[0].Compare(w.planes[0].Submit(), &driver.Call{Digest: 7}))
	must(t, w.gatherAndCheck(0, "alone", 1))
}
