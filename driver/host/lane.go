package host

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem/driver"
	"symmem/internal/spin"
)

// lane is this rank's end of a channel for small messages.
type lane struct {
	mu   sync.Mutex // one exchange at a time
	step uint64     // last step posted; guarded by mu
	// absent marks the group ranks that did not come to the fault lane; guarded by mu.
	absent []bool
}

var laneNames = [driver.Lanes]string{"agreement", "background agreement", "fault report"}

// Exchange sends payload to every rank and returns everybody's.
func (c *communicator) Exchange(
	ctx context.Context, id driver.Lane, payload []byte,
) ([][]byte, error) {
	if id < 0 || id >= driver.Lanes || len(payload) > driver.MaxPayload {
		return nil, fmt.Errorf("exchanging %d bytes on lane %d: at most %d bytes on %d lanes",
			len(payload), id, driver.MaxPayload, driver.Lanes)
	}
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	if id == driver.LaneFault {
		c.fail(driver.ErrFault)
	} else if err := c.Cause(); err != nil {
		return nil, err
	}
	l := &c.lanes[id]
	l.mu.Lock()
	defer l.mu.Unlock()
	x := exchange{c: c, id: id, lane: l, payload: payload}
	got, err := x.run(ctx)
	if err != nil && id == driver.LaneControl {
		// The lane is out of step now, whatever ended the wait.
		c.fail(err)
	}
	return got, err
}

// exchange is one exchange under way: payloads larger than a slot take several steps, and every
// rank makes as many as the largest payload needs.
type exchange struct {
	c       *communicator
	id      driver.Lane
	lane    *lane
	payload []byte
	got     [][]byte
	totals  []uint64
}

func (x *exchange) run(ctx context.Context) ([][]byte, error) {
	ranks := len(x.c.blocks)
	x.got, x.totals = make([][]byte, ranks), make([]uint64, ranks)
	for at := 0; ; at += chunkBytes {
		if err := x.post(at); err != nil {
			return nil, err
		}
		if err := x.collect(ctx, at == 0); err != nil {
			return nil, err
		}
		if uint64(at+chunkBytes) >= x.longest() {
			return x.got, nil
		}
	}
}

func (x *exchange) longest() uint64 {
	var longest uint64
	for _, n := range x.totals {
		longest = max(longest, n)
	}
	return longest
}

func (x *exchange) post(at int) error {
	x.lane.step++
	if x.id == driver.LaneFault && x.lane.step > faultSteps {
		return fmt.Errorf("the fault lane has taken %d steps: %w", faultSteps, driver.ErrClosed)
	}
	s := x.slot(x.c.me)
	copy(s.data[:], x.payload[min(at, len(x.payload)):])
	spin.StoreRelease64(&s.total, uint64(len(x.payload)))
	if x.id == driver.LaneControl {
		spin.StoreRelease64(&x.c.me.board.exchanges, x.lane.step)
	}
	spin.StoreRelease64(&s.step, x.lane.step)
	x.c.ring()
	return nil
}

// slot returns a rank's slot for the current step.
func (x *exchange) slot(b *block) *slot {
	if x.id == driver.LaneFault {
		return &b.fault[x.lane.step-1]
	}
	return &b.lanes[x.id][x.lane.step&1]
}

// collect waits for this step of everybody and takes what came.
func (x *exchange) collect(ctx context.Context, first bool) error {
	if err := x.await(ctx); err != nil {
		return err
	}
	for r, b := range x.c.blocks {
		if x.lane.absent[r] {
			x.got[r] = nil
			continue
		}
		if err := x.take(r, x.slot(b), first); err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) take(r int, s *slot, first bool) error {
	total := spin.LoadAcquire64(&s.total)
	if total > driver.MaxPayload || (!first && total != x.totals[r]) {
		return fmt.Errorf("rank %d announces a message of %d bytes: at most %d",
			x.c.cfg.Ranks[r], total, driver.MaxPayload)
	}
	if first {
		x.totals[r], x.got[r] = total, make([]byte, 0, total)
	}
	left := int(total) - len(x.got[r])
	x.got[r] = append(x.got[r], s.data[:min(left, chunkBytes)]...)
	return nil
}

// await waits for the slots of all ranks that are not absent. On the fault lane a rank that does
// not come becomes absent instead of failing the exchange.
func (x *exchange) await(ctx context.Context) error {
	w := &waiting{
		word: func(b *block) *uint64 { return &x.slot(b).step }, want: x.lane.step,
		exchange: x.id == driver.LaneControl, tolerant: x.id == driver.LaneFault,
		doing: func() string { return laneNames[x.id] + " of group " + x.c.cfg.ID },
	}
	for {
		w.from = x.present()
		if len(x.c.missing(w)) == 0 {
			return nil
		}
		err := x.c.linger(ctx, w)
		if err == nil || x.id != driver.LaneFault {
			return err
		}
		if !x.excuse(err, x.c.missing(w)) {
			return err
		}
	}
}

func (x *exchange) present() []int {
	var ranks []int
	for r := range x.c.blocks {
		if r != x.c.cfg.Rank && !x.lane.absent[r] {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// excuse marks ranks as absent after a wait for them has failed, and reports whether the exchange
// can go on without them.
func (x *exchange) excuse(err error, missing []int) bool {
	var lost *driver.RankLostError
	var late *driver.TimeoutError
	switch {
	case errors.As(err, &lost):
		missing = x.c.lost(missing)
	case !errors.As(err, &late):
		return false
	}
	for _, r := range missing {
		x.lane.absent[r], x.totals[r] = true, 0
	}
	return true
}
