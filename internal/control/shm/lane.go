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

// lane is this rank's end of a channel for small payloads.
type lane struct {
	mu   ranked.Mutex[laneMu] // serializes exchanges
	step uint64               // last step posted; guarded by mu
	// err is the error of the first failed exchange. All later ones fail too, because the ranks may
	// be in different steps. It is guarded by mu.
	err error
	// absent marks the group ranks that report nothing more on the fault lane. It is guarded by mu.
	absent []bool
	// read is the number of slots read from each rank's fault log. It is guarded by mu.
	read map[*block]uint64
}

// Exchange sends payload to every rank and returns the payloads of all ranks.
func (g *Group) Exchange(
	ctx context.Context, id driver.Lane, payload []byte,
) ([][]byte, error) {
	if err := control.CheckExchange(id, payload); err != nil {
		return nil, err
	}
	if err := g.BeginUse(); err != nil {
		return nil, err
	}
	defer g.EndUse()
	if id == driver.LaneFault {
		g.fail(&driver.PeerError{InCall: control.ExchangeName(g.cfg, id)})
	} else if err := g.Cause(); err != nil {
		return nil, err
	}
	l := &g.lanes[id]
	l.mu.Lock()
	defer l.mu.Unlock()
	e := exchange{g: g, id: id, lane: l, payload: payload}
	if id == driver.LaneFault {
		return e.report(ctx)
	}
	if l.err != nil {
		return nil, fmt.Errorf("%s after a fault: %w", e.callText(), l.err)
	}
	got, err := e.run(ctx)
	if err != nil && id == driver.LaneControl {
		err = g.fail(err)
	}
	l.err = err
	return got, err
}

// exchange is the state of one exchange. Every rank performs as many steps as the largest payload
// needs.
type exchange struct {
	g            *Group
	id           driver.Lane
	lane         *lane
	payload      []byte
	got          [][]byte
	totals       []uint64
	ignoreFaults bool // whether the exchange continues after a peer's fault
}

func (e *exchange) run(ctx context.Context) ([][]byte, error) {
	ranks := len(e.g.blocks)
	e.got, e.totals = make([][]byte, ranks), make([]uint64, ranks)
	for offset := 0; ; offset += chunkBytes {
		if err := e.post(offset); err != nil {
			return nil, err
		}
		if err := e.collect(ctx, offset == 0); err != nil {
			return nil, err
		}
		if uint64(offset+chunkBytes) >= slices.Max(e.totals) {
			return e.got, nil
		}
	}
}

func (e *exchange) post(offset int) error {
	if e.g.peerFailed() {
		return e.g.peerFault(e.callText)
	}
	e.lane.step++
	s := e.slot(e.g.me)
	copy(s.data[:], e.payload[min(offset, len(e.payload)):])
	spin.StoreRelease64(&s.total, uint64(len(e.payload)))
	if e.id == driver.LaneControl {
		spin.StoreRelease64(&e.g.me.status.exchanges, e.lane.step)
	}
	spin.StoreRelease64(&s.step, e.lane.step)
	e.g.wakeSleepers()
	return nil
}

func (e *exchange) callText() string { return control.ExchangeName(e.g.cfg, e.id) }

func (e *exchange) slot(b *block) *slot { return &b.lanes[e.id][e.lane.step&1] }

func (e *exchange) collect(ctx context.Context, first bool) error {
	err := e.g.waitSlowly(ctx, &slowWait{
		word: func(b *block) *uint64 { return &e.slot(b).step }, want: e.lane.step,
		awaited: e.g.Others(), exchange: e.id == driver.LaneControl, callText: e.callText,
		ignoreFaults: e.ignoreFaults,
	})
	if err != nil {
		return err
	}
	for r, b := range e.g.blocks {
		if err := e.appendChunk(r, e.slot(b), first); err != nil {
			return err
		}
	}
	return nil
}

func (e *exchange) appendChunk(r int, s *slot, first bool) error {
	total := spin.LoadAcquire64(&s.total)
	if total > driver.MaxPayload {
		return fmt.Errorf("the payload of rank %d, of %d bytes, exceeds the limit of %d",
			e.g.cfg.Ranks[r], total, driver.MaxPayload)
	}
	if !first && total != e.totals[r] {
		return fmt.Errorf("the payload of rank %d changed from %d to %d bytes during an exchange",
			e.g.cfg.Ranks[r], e.totals[r], total)
	}
	if first {
		e.totals[r], e.got[r] = total, make([]byte, 0, total)
	}
	left := int(total) - len(e.got[r])
	e.got[r] = append(e.got[r], s.data[:min(left, chunkBytes)]...)
	return nil
}

// Decide proposes a cause for the group's failure and returns the one that the ranks agreed on.
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
		return // Another goroutine of this rank has decided, and its proposal must not change.
	}
	own := &g.me.decision
	copy(own.data[:], proposal)
	spin.StoreRelease64(&own.size, uint64(len(proposal)))
	atomic.CompareAndSwapUint32(decider, 0, uint32(g.cfg.Rank)+1)
}
