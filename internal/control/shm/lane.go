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

// lane is this rank's state of a driver.Lane, an independent sequence of exchanges.
//
// An exchange transfers payloads through shared memory in steps, with a chunk of up to 8 KiB of
// each payload per step. If rank 0 passes 10 KiB and rank 1 passes 3 KiB, the exchange has two
// steps, and the second chunk of rank 1 is empty. A rank posts chunks in two alternating slots,
// because a faster rank may already post the next step.
type lane struct {
	mu   ranked.Mutex[laneMu] // serializes exchanges and guards the fields below
	step uint64               // last step posted by this rank; on LaneFault, slots written
	err  error                // first error; afterwards, ranks may be in different steps

	// The other fields are for LaneFault, whose exchanges append reports to a log of slots instead.

	absent    []bool            // whether to expect no more reports, by group rank
	slotsRead map[*block]uint64 // slots that this rank has read, by block of the writer
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
		// Ranks exchange reports only after a failure, which this rank may not have noticed.
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

	payloads, err := e.performSteps(ctx)
	if err != nil && laneID == driver.LaneControl {
		err = g.fail(err)
	}

	l.err = err
	return payloads, err
}

// exchange is one call of Exchange.
type exchange struct {
	g            *Group
	laneID       driver.Lane
	lane         *lane
	payload      []byte   // of this rank
	received     [][]byte // chunks so far, by group rank
	sizes        []uint64 // of whole payloads in bytes, by group rank
	ignoreFaults bool     // whether to continue after a rank has failed
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

		end := uint64(offset + chunkBytes)
		isComplete := end >= slices.Max(e.sizes)
		if isComplete {
			return e.received, nil
		}
	}
}

// postChunk begins the next step with this rank's chunk at offset, which may be beyond the end of
// its payload.
func (e *exchange) postChunk(offset int) error {
	if e.g.peerFailed() {
		return e.g.peerFault(e.callText)
	}

	e.lane.step++
	s := e.slot(e.g.ownBlock)
	start := min(offset, len(e.payload))
	copy(s.data[:], e.payload[start:])
	spin.StoreRelease64(&s.payloadBytes, uint64(len(e.payload)))
	if e.laneID == driver.LaneControl {
		spin.StoreRelease64(&e.g.ownBlock.status.exchanges, e.lane.step)
	}

	spin.StoreRelease64(&s.step, e.lane.step) // last, because other ranks wait for it
	e.g.wakeSleepers()
	return nil
}

// slot returns the current step's slot in a rank's block.
func (e *exchange) slot(b *block) *slot { return &b.lanes[e.laneID][e.lane.step&1] }

// collectChunks waits for the current step's chunks of all ranks.
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

	for r, b := range e.g.blocks {
		if err := e.appendChunk(r, e.slot(b), isFirst); err != nil {
			return err
		}
	}

	return nil
}

// appendChunk adds a chunk of group rank r to its received payload. It checks the size of the
// payload, because a faulty rank may write any value.
func (e *exchange) appendChunk(r int, s *slot, isFirst bool) error {
	payloadBytes := spin.LoadAcquire64(&s.payloadBytes)
	if payloadBytes > driver.MaxPayload {
		return fmt.Errorf("the payload of rank %d has %d bytes, more than the limit of %d",
			e.g.cfg.Ranks[r], payloadBytes, driver.MaxPayload)
	}

	if isFirst {
		e.sizes[r] = payloadBytes
		e.received[r] = make([]byte, 0, payloadBytes)
	}

	if payloadBytes != e.sizes[r] {
		return fmt.Errorf("the payload of rank %d changed from %d to %d bytes during an exchange",
			e.g.cfg.Ranks[r], e.sizes[r], payloadBytes)
	}

	remaining := int(payloadBytes) - len(e.received[r])
	chunk := s.data[:min(remaining, chunkBytes)]
	e.received[r] = append(e.received[r], chunk...)
	return nil
}

// Decide makes all ranks agree on one cause of the group's failure, the first proposal of any rank.
// A nil proposal only reads the decision.
//
// It returns proposal if there is no decision, the group is closed or a proposal is too large.
func (g *Group) Decide(proposal []byte) []byte {
	isTooLarge := len(proposal) > driver.MaxPayload
	if isTooLarge || g.BeginUse() != nil {
		return proposal
	}

	defer g.EndUse()
	decider := &g.blocks[0].decision.decider
	if proposal != nil && atomic.LoadUint32(decider) == 0 {
		g.propose(decider, proposal)
	}

	rank := int(atomic.LoadUint32(decider)) - 1
	if rank < 0 || rank >= len(g.blocks) { // no decision, or a faulty rank has written it
		return proposal
	}

	d := &g.blocks[rank].decision
	size := spin.LoadAcquire64(&d.size)
	if size > driver.MaxPayload {
		return proposal
	}

	return append([]byte{}, d.data[:size]...)
}

// propose publishes a proposal, and makes this rank the decider if there is none yet.
func (g *Group) propose(decider *uint32, proposal []byte) {
	mu := &g.lanes[driver.LaneFault].mu // serializes proposals of this rank
	mu.Lock()
	defer mu.Unlock()
	if atomic.LoadUint32(decider) != 0 {
		return // other ranks may already be reading this rank's earlier proposal
	}

	d := &g.ownBlock.decision
	copy(d.data[:], proposal)
	spin.StoreRelease64(&d.size, uint64(len(proposal)))
	atomic.CompareAndSwapUint32(decider, 0, uint32(g.cfg.Rank)+1) // fails if a rank was faster
}
