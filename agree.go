package symmem

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/agreement"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
)

// history gives access to a pool's ledger while the pool continues to allocate.
type history struct {
	mu     *ranked.Spin[poolMu]
	id     uint64
	domain *Group
	ledger *ledger.Ledger
	events *poolEvents
}

// with includes the segments that this rank is about to register.
func (h *history) with(pending []*segment) agreement.Ledger {
	var list agreement.Pending
	for _, s := range pending {
		list = list.Add(s.ordinal, s.bytes)
	}
	return agreement.Ledger{ID: h.id, Source: h, Pending: list}
}

func (h *history) Snapshot() ledger.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.Snapshot()
}

// DigestAt returns the digest of all events before a position, if it is still known.
func (h *history) DigestAt(position uint64) (uint64, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger.DigestAt(position)
}

// EventAt returns an event with its call site, if it is still known.
func (h *history) EventAt(position uint64) (event.Event, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e, isKnown := h.ledger.EventAt(position)
	if isKnown {
		h.events.setCommon(&e, h.ledger.Load(position, &e))
	}
	return e, isKnown
}

// recordAgreed records that histories agree up to a position, unless g lacks ranks of the domain.
func (h *history) recordAgreed(agreed []agreement.AgreedPrefix, g *roster) {
	if h.domain == nil || !g.contains(&h.domain.roster) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range agreed {
		if a.Ledger == h.id {
			h.ledger.Agree(a.Position, a.Digest)
		}
	}
}

// comparison compares the histories of a group's pools across ranks.
type comparison struct {
	roster
	rt          *Runtime
	comm        driver.Communicator
	life        *lifetime
	state       *ranked.Spin[groupState]
	isComparing bool          // in the background; guarded by state
	agreed      atomic.Uint64 // comparisons without a difference
}

func (c *comparison) pools() []*Pool {
	var all []*Pool
	for _, p := range c.rt.registry.allPools() {
		if p.domain != nil && p.domain.contains(&c.roster) && !p.isClosed() {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *Pool) int { return cmp.Compare(a.id, b.id) })
	return all
}

func (c *comparison) histories() []agreement.Ledger {
	var all []agreement.Ledger
	for _, p := range c.pools() {
		all = append(all, p.history.with(nil))
	}
	return all
}

// sharedHistories omits pools that some rank may not have created or closed yet.
func (c *comparison) sharedHistories(
	ctx context.Context, exchange agreement.Exchange,
) ([]agreement.Ledger, error) {
	var own []agreement.Ledger
	for _, p := range c.pools() {
		if !p.suspicion.isSuspectFor(&c.roster) {
			own = append(own, p.history.with(nil))
		}
	}
	payload := make([]byte, 0, 8*len(own))
	for _, l := range own {
		payload = binary.LittleEndian.AppendUint64(payload, l.ID)
	}
	payloads, err := exchange(ctx, payload)
	if err != nil {
		return nil, err
	}
	ranks, rankCounts := 0, map[uint64]int{}
	for _, ids := range payloads {
		if ids != nil {
			ranks++
		}
		for ; len(ids) >= 8; ids = ids[8:] {
			rankCounts[binary.LittleEndian.Uint64(ids)]++
		}
	}
	return slices.DeleteFunc(own, func(l agreement.Ledger) bool {
		return rankCounts[l.ID] < ranks
	}), nil
}

// agree must be called at the same point of all ranks' programs, with Group.mu held.
func (c *comparison) agree(ctx context.Context, tag string, ledgers ...agreement.Ledger) error {
	if err := c.life.cause(ctx); err != nil {
		return err
	}
	outcome, err := c.run(ctx, c.exchangeOn(driver.LaneControl), agreement.Config{
		Mode: agreement.ModeExact, Tag: tag, Ledgers: ledgers,
	})
	if err != nil {
		return c.life.awaitFault(err)
	}
	return c.recordOutcome(outcome)
}

// exchangeOn uses a lane, an independent sequence of exchanges.
func (c *comparison) exchangeOn(lane driver.Lane) agreement.Exchange {
	return func(ctx context.Context, payload []byte) ([][]byte, error) {
		return c.comm.Exchange(ctx, lane, payload)
	}
}

func (c *comparison) run(
	ctx context.Context, exchange agreement.Exchange, a agreement.Config,
) (*agreement.Outcome, error) {
	a.Rank, a.Ranks, a.Group, a.Names = c.rank, len(c.ranks), c.id, c.names()
	machine, err := agreement.New(a)
	if err != nil {
		return nil, err
	}
	return agreement.Run(ctx, exchange, machine)
}

// recordOutcome makes the group fail if the ranks differ, and waits until they agree on the cause,
// because some rank may not have received the outcome.
func (c *comparison) recordOutcome(outcome *agreement.Outcome) error {
	if err := c.divergence(outcome); err != nil {
		c.comm.Abort(err)
		return c.life.awaitFault(c.comm.Cause())
	}
	c.recordAgreed(outcome)
	return nil
}

func (c *comparison) recordAgreed(outcome *agreement.Outcome) {
	c.agreed.Add(1)
	for _, p := range c.rt.registry.allPools() {
		p.history.recordAgreed(outcome.Agreed, &c.roster)
	}
}

// checkInBackground finds divergences even if the program never registers again.
func (c *comparison) checkInBackground() {
	timer := time.NewTicker(c.rt.opts.CheckInterval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.life.ctx.Done():
			return
		}
		if err := c.compareInBackground(); err != nil {
			return
		}
	}
}

func (c *comparison) compareInBackground() error {
	exchange := c.exchangeOn(driver.LaneBackground)
	ledgers, err := c.sharedHistories(c.life.ctx, exchange)
	if err != nil {
		return err
	}
	outcome, err := c.run(c.life.ctx, exchange, agreement.Config{
		Mode: agreement.ModePrefix, Tag: "background", Ledgers: ledgers,
	})
	if err != nil {
		return err
	}
	if c.rt.Check() == CheckOff {
		return nil
	}
	if err := c.divergence(outcome); err != nil {
		c.comm.Abort(err) // the next call of the program returns the error
		return err
	}
	c.recordAgreed(outcome)
	return nil
}

// startInBackground starts comparisons if the check level requires them. They continue if this
// rank's level changes, because the other ranks wait for it.
func (c *comparison) startInBackground() {
	if c.rt.Check() != CheckRegistration || c.rt.opts.CheckInterval <= 0 || len(c.ranks) < 2 {
		return
	}
	c.state.Lock()
	defer c.state.Unlock()
	if !c.isComparing && c.life.ctx.Err() == nil {
		c.isComparing = true
		c.life.background.Go(c.checkInBackground)
	}
}

func (c *comparison) names() agreement.Names {
	return agreement.Names{Members: c.ranks, Pool: c.rt.registry.poolName}
}

// agreeOnCaptures returns an ErrCapturing that names the ranks on which a capture has prevented a
// step. The caller must hold Group.mu.
func agreeOnCaptures(ctx context.Context, g *Group, refusal error) error {
	var own []byte
	if refusal != nil {
		own = []byte{1}
	}
	payloads, err := g.comm.Exchange(ctx, driver.LaneControl, own)
	if err != nil {
		return g.life.awaitFault(err)
	}
	var capturingRanks []int
	for r, payload := range payloads {
		if len(payload) > 0 {
			capturingRanks = append(capturingRanks, g.ranks[r])
		}
	}
	if len(capturingRanks) > 0 {
		return fmt.Errorf("%s: %w", driver.RanksOf(capturingRanks, g.ranks), ErrCapturing)
	}
	return nil
}
