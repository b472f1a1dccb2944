package controltest

import (
	"context"
	"testing"

	"symmem/driver"
)

var exchangeRequirements = []requirement{
	{"if the context is canceled, Exchange returns and the plane fails", testCanceledExchange},
	{"in a group of one, the rank receives its own payload", testSingleRank},
}

func (g *localGroup) exchangeAndCheck(i int, lane driver.Lane, round int, sizes []int) error {
	return ExchangeAndCheck(func(payload []byte) ([][]byte, error) {
		return g.planes[i].Exchange(g.ctx, lane, payload)
	}, i, round, sizes)
}

func testCanceledExchange(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	ctx, cancel := context.WithCancel(g.ctx)
	cancel()
	_, err := g.planes[0].Exchange(ctx, driver.LaneControl, nil)
	checkError(t, "the canceled exchange", err, context.Canceled)
	checkError(t, "the cause", g.planes[0].Cause(), context.Canceled)
	_, err = g.planes[1].Exchange(g.ctx, driver.LaneControl, nil)
	checkError(t, "the exchange on the other rank", err, driver.ErrFault)
	_, err = g.planes[0].Exchange(g.ctx, driver.LaneControl, nil)
	checkError(t, "the next exchange", err, context.Canceled)
}

func testSingleRank(t *testing.T, join Join) {
	g := newGroup(t, join, 1, hangTimeout)
	for lane := range driver.Lanes {
		must(t, g.exchangeAndCheck(0, lane, 1, []int{5}))
	}

	g = newGroup(t, join, 1, hangTimeout)
	must(t, g.planes[0].Compare(g.planes[0].Submit(), &driver.Call{Digest: 7}))
	must(t, g.gatherAndCheck(0, "alone", 1))
}
