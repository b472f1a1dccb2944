package controltest

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"symmem/driver"
)

var exchangeRequirements = []requirement{
	{"if the context is canceled, Exchange returns and the plane fails", testCanceledExchange},
	{"in a group of one, the rank receives its own payload", testSingleRank},
}

func testCanceledExchange(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	ctx, cancel := context.WithCancel(g.ctx)
	cancel()
	_, err := g.planes[0].Exchange(ctx, driver.LaneControl, nil)
	checkError(t, "the canceled exchange", err, context.Canceled)
	checkError(t, "Cause", g.planes[0].Cause(), context.Canceled)
	_, err = g.planes[1].Exchange(g.ctx, driver.LaneControl, nil)
	checkError(t, "the exchange on the other rank", err, driver.ErrFault)
	_, err = g.planes[0].Exchange(g.ctx, driver.LaneControl, nil)
	checkError(t, "the next exchange", err, context.Canceled)
}

func testSingleRank(t *testing.T, join Join) {
	g := newGroup(t, join, 1, hangTimeout)
	const rank, round = 0, 1
	p := g.planes[rank]
	must(t, p.Compare(p.Submit(), &barrierCall))
	must(t, g.gatherAndCheck(rank, "loss", round))
	payloadSizes := []int{5}
	for lane := range driver.Lanes { // the last, LaneFault, makes the plane fail
		must(t, g.checkExchange(rank, lane, round, payloadSizes))
	}
}

func (g *localGroup) checkExchange(i int, lane driver.Lane, round int, sizes []int) error {
	return ExchangeAndCheck(func(payload []byte) ([][]byte, error) {
		return g.planes[i].Exchange(g.ctx, lane, payload)
	}, i, round, sizes)
}

// ExchangeAndCheck calls exchange for a group rank, and checks that the result is the Payloads of
// all ranks. sizes are by group rank.
func ExchangeAndCheck(
	exchange func(payload []byte) ([][]byte, error), rank, round int, sizes []int,
) error {
	ownPayload := Payload(rank, round, sizes[rank])
	received, err := exchange(ownPayload)
	if err != nil {
		return err
	}

	if len(received) != len(sizes) {
		return fmt.Errorf("round %d: got %d payloads, want %d", round, len(received), len(sizes))
	}

	for sender, got := range received {
		want := Payload(sender, round, sizes[sender])
		if !bytes.Equal(got, want) {
			return fmt.Errorf("round %d: wrong payload of %d bytes from group rank %d, want %d bytes",
				round, len(got), sender, len(want))
		}
	}

	return nil
}

// Payload returns data that depends on the group rank and the round.
func Payload(rank, round, size int) []byte {
	payload := make([]byte, size)
	for i := range payload {
		payload[i] = byte(7*i + 31*rank + 101*round)
	}

	return payload
}

// CheckReports checks the fault reports of a receiver: a Payload of round 1 from each rank that is
// present, and nil from the others.
func CheckReports(reports [][]byte, receiver, size int, isPresent []bool) error {
	const round = 1
	for sender, present := range isPresent {
		report := reports[sender]
		if !present && report != nil {
			return fmt.Errorf("rank %d got a report from rank %d, which is absent", receiver, sender)
		}

		if present && !bytes.Equal(report, Payload(sender, round, size)) {
			return fmt.Errorf("rank %d got a wrong report of %d bytes from rank %d, want %d bytes",
				receiver, len(report), sender, size)
		}
	}

	return nil
}
