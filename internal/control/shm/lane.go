package shm

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/ranked"
	"symmem/internal/spin"
)

// lane is this rank's end of an independent sequence of exchanges.
type lane struct {
	mu   ranked.Mutex[laneMu] // serializes exchanges and guards the fields below
	step uint64               // last step posted
	err  error                // first error, after which ranks may be in different steps
	// absent marks group ranks that send no more fault reports.
	absent []bool
	// slotsRead counts the slots read from each rank's log of fault reports.
	slotsRead map[*block]uint64
}

// Exchange implements control.Plane.
func (g *Group) Exchange(
	ctx context.Context, laneID driver.Lane, payload []byte,
) ([][]byte, error) {
	if err := control.CheckExchange(laneID, payload); err != nil {
		return nil, err
	}
	if err := g.BeginUse(); err != nil {
		return nil, err
	}
	defer g.EndUse()
	if laneID == driver.LaneFault {
		g.fail(&driver.PeerError{InCall: control.ExchangeName(g.cfg, laneID)})
	} else if err := g.Cause(); err != nil {
		return nil, err
	}
	l := &g.lanes[laneID]
	l.mu.Lock()
	defer l.mu.Unlock()
	e := exchange{g: g, laneID: laneID, lane: l, payload: payload}
	if laneID == driver.LaneFault {
		return e.exchangeReports(ctx)
	}
	if l.err != nil {
		return nil, fmt.Errorf("%s after a fault: %w", e.callText(), l.err)
	}
	got, err := e.performSteps(ctx)
	if err != nil && laneID == driver.LaneControl {
		err = g.fail(err)
	}
	l.err = err
	return got, err
}

// exchange performs as many steps as the largest payload needs.
type exchange struct {
	g            *Group
	laneID       driver.Lane
	lane         *lane
	payload      []byte
	received     [][]byte
	sizes        []uint64
	ignoreFaults bool
}

func (e *exchange) performSteps(ctx context.Context) ([][]byte, error) {
	rankCount := len(e.g.blocks)
	e.received, e.sizes = make([][]byte, rankCount), make([]uint64, rankCount)
	for offset := 0; ; offset += chunkBytes {
		if err := e.postChunk(offset); err != nil {
			return nil, err
		}
		if err := e.collectChunks(ctx, offset == 0); err != nil {
			return nil, err
		}
		if uint64(offset+chunkBytes) >= slices.Max(e.sizes) {
			return e.received, nil
		}
	}
}

func (e *exchange) postChunk(offset int) error {
	if e.g.peerFailed() {
		return e.g.peerFault(e.callText)
	}
	e.lane.step++
	s := e.slot(e.g.ownBlock)
	copy(s.data[:], e.payload[min(offset, len(e.payload)):])
	spin.StoreRelease64(&s.payloadBytes, uint64(len(e.payload)))
	if e.laneID == driver.LaneControl {
		spin.StoreRelease64(&e.g.ownBlock.status.exchanges, e.lane.step)
	}
	spin.StoreRelease64(&s.step, e.lane.step)
	e.g.wakeSleepers()
	return nil
}

func (e *exchange) callText() string { return control.ExchangeName(e.g.cfg, e.laneID) }

func (e *exchange) slot(b *block) *slot { return &b.lanes[e.laneID][e.lane.step&1] }

func (e *exchange) collectChunks(ctx context.Context, isFirst bool) error {
	err := e.g.waitSlowly(ctx, &slowWait{
		word: func(b *block) *uint64 { return &e.slot(b).step }, want: e.lane.step,
		awaited: e.g.OtherRanks(), isExchange: e.laneID == driver.LaneControl, callText: e.callText,
		ignoreFaults: e.ignoreFaults,
	})
	if err != nil {
		return err
	}
	for r, b := range e.g.blocks {
		if err := e.appendChunk(r, e.slot(b), isFirst); err != nil {
			return err
		}
	}
	return nil
}

func (e *exchange) appendChunk(r int, s *slot, isFirst bool) error {
	payloadBytes := spin.LoadAcquire64(&s.payloadBytes)
	if payloadBytes > driver.MaxPayload {
		return fmt.Errorf("the payload of rank %d has %d bytes, more than the limit of %d",
			e.g.cfg.Ranks[r], payloadBytes, driver.MaxPayload)
	}
	if !isFirst && payloadBytes != e.sizes[r] {
		return fmt.Errorf("the payload of rank %d changed from %d to %d bytes during an exchange",
			e.g.cfg.Ranks[r], e.sizes[r], payloadBytes)
	}
	if isFirst {
		e.sizes[r], e.received[r] = payloadBytes, make([]byte, 0, payloadBytes)
	}
	remaining := int(payloadBytes) - len(e.received[r])
	e.received[r] = append(e.received[r], s.data[:min(remaining, chunkBytes)]...)
	return nil
}

// Decide proposes a cause of the group's failure, unless proposal is nil, and returns the first
// proposal of any rank.
func (g *Group) Decide(proposal []byte) []byte {
	if len(proposal) > driver.MaxPayload || g.BeginUse() != nil {
		return proposal
	}
	defer g.EndUse()
	decider := &g.blocks[0].decision.decider
	if proposal != nil && atomic.LoadUint32(decider) == 0 {
		g.propose(decider, proposal)
	}
	rank := int(atomic.LoadUint32(decider)) - 1
	if rank < 0 || rank >= len(g.blocks) {
		return proposal
	}
	d := &g.blocks[rank].decision
	size := spin.LoadAcquire64(&d.size)
	if size > driver.MaxPayload {
		return proposal
	}
	return append([]byte{}, d.data[:size]...)
}

func (g *Group) propose(decider *uint32, proposal []byte) {
	mu := &g.lanes[driver.LaneFault].mu
	mu.Lock()
	defer mu.Unlock()
	if atomic.LoadUint32(decider) != 0 {
		return // another proposal, or this rank's, which must not change
	}
	d := &g.ownBlock.decision
	copy(d.data[:], proposal)
	spin.StoreRelease64(&d.size, uint64(len(proposal)))
	atomic.CompareAndSwapUint32(decider, 0, uint32(g.cfg.Rank)+1)
}
