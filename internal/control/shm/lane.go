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

// lane is an independent sequence of exchanges. An exchange has one or more steps.
//
// In each step, every rank posts a chunk of up to 8 KiB to shared memory. If rank 0 passes 10 KiB
// and rank 1 passes 3 KiB, the exchange has two steps, and the second chunk of rank 1 is empty.
// Chunks alternate between two slots, because a fast rank may post the next chunk before the others
// have read the last one.
type lane struct {
	mu   ranked.Mutex[laneMu] // serializes exchanges and guards the fields below
	step uint64               // last step posted by this rank
	err  error                // if set, the lane is disabled: ranks may be in different steps
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
		return exchangeReports(ctx, g, payload)
	}

	if err := g.Cause(); err != nil {
		return nil, err
	}

	l := &g.lanes[laneID]
	e := exchange{g: g, laneID: laneID, lane: l, payload: payload}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, fmt.Errorf("%s after a fault: %w", e.callText(), l.err)
	}

	payloads, err := e.performSteps(ctx)
	if err == nil {
		return payloads, nil
	}

	if laneID == driver.LaneControl { // on other lanes, only the lane is disabled
		err = g.fail(err)
	}

	l.err = err
	return nil, err
}

// exchange is one call of Exchange.
type exchange struct {
	g       *Group
	laneID  driver.Lane
	lane    *lane
	payload []byte // of this rank
	// ignoreFaults keeps collectChunks waiting after a rank has failed. Join sets it.
	ignoreFaults bool

	received [][]byte // received parts of the payloads, by group rank
	sizes    []uint64 // of whole payloads in bytes, by group rank
}

func (e *exchange) callText() string { return control.ExchangeName(e.g.cfg, e.laneID) }

func (e *exchange) performSteps(ctx context.Context) ([][]byte, error) {
	rankCount := len(e.g.blocks)
	e.received = make([][]byte, rankCount)
	e.sizes = make([]uint64, rankCount)
	for offset := 0; ; offset += chunkBytes {
		if err := e.postChunk(offset); err != nil {
			return nil, err
		}

		isFirst := offset == 0
		if err := e.collectChunks(ctx, isFirst); err != nil {
			return nil, err
		}

		isComplete := uint64(offset+chunkBytes) >= slices.Max(e.sizes)
		if isComplete {
			return e.received, nil
		}
	}
}

// postChunk begins the next step with this rank's chunk at offset. The chunk is empty if offset is
// beyond the end of the payload.
func (e *exchange) postChunk(offset int) error {
	if e.g.peerFailed() {
		return e.g.peerFault(e.callText)
	}

	e.lane.step++
	s := e.slot(e.g.ownBlock)
	start := min(offset, len(e.payload))
	end := min(start+chunkBytes, len(e.payload))
	copy(s.data[:], e.payload[start:end])
	spin.StoreRelease64(&s.payloadBytes, uint64(len(e.payload)))
	if e.laneID == driver.LaneControl {
		spin.StoreRelease64(&e.g.ownBlock.status.exchanges, e.lane.step)
	}

	spin.StoreRelease64(&s.step, e.lane.step) // last, because other ranks wait for it
	e.g.wakeSleepers()
	return nil
}

// slot returns the current step's slot in a rank's block.
func (e *exchange) slot(b *block) *slot { return &b.lanes[e.laneID][e.lane.step%2] }

// collectChunks waits for the chunks of all ranks in the current step, and adds them to received.
func (e *exchange) collectChunks(ctx context.Context, isFirst bool) error {
	err := e.g.waitSlowly(ctx, &slowWait{
		word:         func(b *block) *uint64 { return &e.slot(b).step },
		want:         e.lane.step,
		awaited:      e.g.OtherRanks(),
		isExchange:   e.laneID == driver.LaneControl,
		callText:     e.callText,
		ignoreFaults: e.ignoreFaults,
	})
	if err != nil {
		return err
	}

	for rank, b := range e.g.blocks {
		if err := e.appendChunk(rank, e.slot(b), isFirst); err != nil {
			return err
		}
	}

	return nil
}

// appendChunk adds a chunk of a group rank to received. It checks the size of the payload, because
// a faulty rank may write any value.
func (e *exchange) appendChunk(rank int, s *slot, isFirst bool) error {
	payloadBytes := spin.LoadAcquire64(&s.payloadBytes)
	if payloadBytes > driver.MaxPayload {
		return fmt.Errorf("the payload of rank %d has %d bytes, more than the limit of %d",
			e.g.cfg.Ranks[rank], payloadBytes, driver.MaxPayload)
	}

	if isFirst {
		e.sizes[rank] = payloadBytes
		e.received[rank] = make([]byte, 0, payloadBytes)
	} else if payloadBytes != e.sizes[rank] {
		return fmt.Errorf("the payload of rank %d changed from %d to %d bytes during an exchange",
			e.g.cfg.Ranks[rank], e.sizes[rank], payloadBytes)
	}

	remaining := int(payloadBytes) - len(e.received[rank])
	chunk := s.data[:min(remaining, chunkBytes)]
	e.received[rank] = append(e.received[rank], chunk...)
	return nil
}

// Decide returns the first proposal of any rank. Decide(nil) proposes nothing. Decide returns its
// argument if the first proposal is invalid, the argument is too large or the group is closed.
func (g *Group) Decide(proposal []byte) []byte {
	if len(proposal) > driver.MaxPayload {
		return proposal
	}

	if g.BeginUse() != nil {
		return proposal
	}

	defer g.EndUse()
	decider := &g.blocks[0].decision.decider // shared by all ranks
	if proposal != nil && atomic.LoadUint32(decider) == 0 {
		propose(g, decider, proposal)
	}

	rank := int(atomic.LoadUint32(decider)) - 1  // -1 without a decision
	isValid := 0 <= rank && rank < len(g.blocks) // a faulty rank may write any value
	if !isValid {
		return proposal
	}

	d := &g.blocks[rank].decision
	size := spin.LoadAcquire64(&d.size)
	if size > driver.MaxPayload {
		return proposal
	}

	return append([]byte{}, d.data[:size]...)
}

// propose writes a proposal to this rank's block, and makes this rank the decider if there is none.
func propose(g *Group, decider *uint32, proposal []byte) {
	g.faultLogs.mu.Lock() // also serializes this rank's proposals
	defer g.faultLogs.mu.Unlock()
	if atomic.LoadUint32(decider) != 0 {
		return // others may be reading an earlier proposal of this rank
	}

	d := &g.ownBlock.decision
	copy(d.data[:], proposal)
	spin.StoreRelease64(&d.size, uint64(len(proposal)))
	atomic.CompareAndSwapUint32(decider, 0, uint32(g.cfg.Rank)+1) // fails if another rank was faster
}
