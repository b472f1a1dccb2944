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

// Ranks exchange small payloads through shared memory. Suppose that rank 0 passes 10 KiB to
// Exchange, and rank 1 passes 3 KiB. The payloads are transferred in chunks of at most 8 KiB, so
// this exchange has two steps:
//
//   - In the first step, rank 0 posts the first 8 KiB of its payload, and rank 1 posts its 3 KiB.
//     Each rank waits until the other one has posted, and copies the chunk.
//   - In the second step, rank 0 posts the remaining 2 KiB, and rank 1 posts an empty chunk.
//
// A rank posts a chunk in a slot, which also contains the number of the step. It has two slots, and
// uses them in turn: a faster rank may already post the next step. The steps of later exchanges
// continue the numbers.
//
// Exchanges on different lanes are independent. On driver.LaneFault, ranks exchange reports about
// failures. Its exchanges have no steps: each rank writes its reports to a log of many slots.

// lane is this rank's state of a driver.Lane.
type lane struct {
	mu ranked.Mutex[laneMu] // serializes exchanges and guards the fields below
	// step is the last step that this rank has posted. On LaneFault, it is the number of slots that
	// this rank has written.
	step uint64
	err  error // first error; later exchanges fail, because ranks may be in different steps

	// Only LaneFault uses the following fields.

	absent    []bool            // ranks that are expected to send no more reports, by group rank
	slotsRead map[*block]uint64 // slots that this rank has read, by the block of the rank that wrote
}

// Exchange sends payload to all ranks and returns the payloads of all ranks, as control.Plane
// specifies.
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
		// Ranks report faults only after a failure. So this rank fails, too, if it has not yet.
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
	received     [][]byte // received parts of payloads, by group rank
	sizes        []uint64 // sizes of whole payloads in bytes, by group rank; 0 before the first step
	ignoreFaults bool     // wait even after a rank has failed
}

// callText describes the exchange in errors.
func (e *exchange) callText() string { return control.ExchangeName(e.g.cfg, e.laneID) }

// performSteps runs all steps and returns the payloads of all ranks, by group rank.
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

// postChunk begins the next step: it posts this rank's chunk from offset. The chunk is empty if the
// offset is beyond the end of the payload.
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

	spin.StoreRelease64(&s.step, e.lane.step) // last, because it makes other ranks read the slot
	e.g.wakeSleepers()
	return nil
}

// slot returns the slot for the current step in a block, a rank's part of the shared memory.
func (e *exchange) slot(b *block) *slot { return &b.lanes[e.laneID][e.lane.step&1] }

// collectChunks waits until all ranks have posted the current step, and receives their chunks.
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

// appendChunk adds the chunk in s to the received payload of group rank r. isFirst is set in the
// first step. It returns an error if the size of the payload is too large or has changed.
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

	remaining := int(payloadBytes) - len(e.received[r]) // 0 after the end of the payload
	e.received[r] = append(e.received[r], s.data[:min(remaining, chunkBytes)]...)
	return nil
}

// Decide makes all ranks agree on one cause of the group's failure. It returns the first proposal
// of any rank. It proposes a cause itself, unless proposal is nil.
//
// It returns its argument if no rank has proposed a cause, if the group is closed, or if a proposal
// is too large.
func (g *Group) Decide(proposal []byte) []byte {
	isTooLarge := len(proposal) > driver.MaxPayload
	if isTooLarge || g.BeginUse() != nil {
		return proposal
	}

	defer g.EndUse()
	decider := &g.blocks[0].decision.decider // 1 plus the rank of the first proposal, or 0
	if proposal != nil && atomic.LoadUint32(decider) == 0 {
		g.propose(decider, proposal)
	}

	rank := int(atomic.LoadUint32(decider)) - 1
	isValid := rank >= 0 && rank < len(g.blocks) // a faulty rank may write any value
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

// propose publishes this rank's proposal, and makes this rank the decider if there is none yet.
func (g *Group) propose(decider *uint32, proposal []byte) {
	mu := &g.lanes[driver.LaneFault].mu // serializes proposals of this rank
	mu.Lock()
	defer mu.Unlock()
	if atomic.LoadUint32(decider) != 0 {
		return // if this rank is the decider, other ranks may already read its proposal
	}

	d := &g.ownBlock.decision
	copy(d.data[:], proposal)
	spin.StoreRelease64(&d.size, uint64(len(proposal)))
	// If the swap fails, another rank's proposal was first, and Decide returns that proposal.
	atomic.CompareAndSwapUint32(decider, 0, uint32(g.cfg.Rank)+1)
}
