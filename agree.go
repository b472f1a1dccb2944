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

// history gives access to a pool's ledger (the list of its events, which ranks compare) while the
// pool continues to allocate.
type history struct {
	mu     *ranked.Spin[poolMu]
	id     uint64 // of the pool, the same on all ranks
	domain *Group // the group whose ranks share the pool; nil if the pool has no domain
	ledger *ledger.Ledger
	events *poolEvents
}

// with returns the history for a comparison. pending lists the segments that this rank is about to
// register, which the comparison includes.
func (h *history) with(pending []*segment) agreement.Ledger {
	var list agreement.Pending
	for _, s := range pending {
		list = list.Add(s.ordinal, s.bytes)
	}

	return agreement.Ledger{ID: h.id, Source: h, Pending: list}
}

// Snapshot returns the ledger's length and digests, for comparisons.
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
		site := h.ledger.Load(position, &e)
		h.events.setCommon(&e, site)
	}

	return e, isKnown
}

// recordAgreed records up to which position the ranks of a group agree. It does nothing if the
// group lacks ranks of the domain.
func (h *history) recordAgreed(agreed []agreement.AgreedPrefix, g *roster) {
	isWholeDomain := h.domain != nil && g.contains(&h.domain.roster)
	if !isWholeDomain {
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

// pools lists the open pools that the group can use, in the same order on all ranks.
func (c *comparison) pools() []*Pool {
	var all []*Pool
	for _, p := range c.rt.registry.allPools() {
		canUse := p.domain != nil && p.domain.contains(&c.roster)
		if canUse && !p.isClosed() {
			all = append(all, p)
		}
	}

	slices.SortFunc(all, func(a, b *Pool) int { return cmp.Compare(a.id, b.id) })
	return all
}

// histories lists the histories of pools.
func (c *comparison) histories() []agreement.Ledger {
	var all []agreement.Ledger
	for _, p := range c.pools() {
		all = append(all, p.history.with(nil))
	}

	return all
}

// sharedHistories lists the histories that all ranks have, for a comparison in the background. The
// ranks exchange the ids of their pools. It omits pools that some rank has not created yet, or has
// closed already, and pools whose layout may differ after a fault.
func (c *comparison) sharedHistories(
	ctx context.Context, exchange agreement.Exchange,
) ([]agreement.Ledger, error) {
	var own []agreement.Ledger
	for _, p := range c.pools() {
		if !p.suspicion.isSuspectFor(&c.roster) {
			own = append(own, p.history.with(nil))
		}
	}

	const idBytes = 8
	ownIDs := make([]byte, 0, idBytes*len(own))
	for _, l := range own {
		ownIDs = binary.LittleEndian.AppendUint64(ownIDs, l.ID)
	}

	idsByRank, err := exchange(ctx, ownIDs)
	if err != nil {
		return nil, err
	}

	answeringRanks := 0
	rankCounts := map[uint64]int{} // how many ranks have a pool, by id
	for _, ids := range idsByRank {
		if ids != nil {
			answeringRanks++
		}

		for len(ids) >= idBytes {
			rankCounts[binary.LittleEndian.Uint64(ids)]++
			ids = ids[idBytes:]
		}
	}

	shared := slices.DeleteFunc(own, func(l agreement.Ledger) bool {
		return rankCounts[l.ID] < answeringRanks
	})
	return shared, nil
}

// agree compares ledgers exactly. If they or the tags differ, the group fails. All ranks must call
// it at the same point of their programs. The caller must hold Group.mu.
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

// exchangeOn returns an Exchange on a lane: an independent sequence of exchanges.
func (c *comparison) exchangeOn(lane driver.Lane) agreement.Exchange {
	return func(ctx context.Context, payload []byte) ([][]byte, error) {
		return c.comm.Exchange(ctx, lane, payload)
	}
}

// run completes the configuration with the group, and runs the comparison.
func (c *comparison) run(
	ctx context.Context, exchange agreement.Exchange, config agreement.Config,
) (*agreement.Outcome, error) {
	config.Rank, config.Ranks = c.rank, len(c.ranks)
	config.Group, config.Names = c.id, c.names()
	machine, err := agreement.New(config)
	if err != nil {
		return nil, err
	}

	return agreement.Run(ctx, exchange, machine)
}

// recordOutcome makes the group fail if the ranks differ. It then waits until they agree on the
// cause, because some rank may not have received the outcome, and returns the cause.
func (c *comparison) recordOutcome(outcome *agreement.Outcome) error {
	if err := c.divergence(outcome); err != nil {
		c.comm.Abort(err)
		return c.life.awaitFault(c.comm.Cause())
	}

	c.recordAgreed(outcome)
	return nil
}

// recordAgreed records a comparison without a difference.
func (c *comparison) recordAgreed(outcome *agreement.Outcome) {
	c.agreed.Add(1)
	for _, p := range c.rt.registry.allPools() {
		p.history.recordAgreed(outcome.Agreed, &c.roster)
	}
}

// checkInBackground compares histories regularly until the group ends or a comparison fails. It
// thus finds divergences even if the program never registers again.
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
			return // the group has ended, or only LaneBackground has failed: the group still works
		}
	}
}

// compareInBackground compares the parts of histories that all ranks have recorded already. If they
// differ, the group fails.
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
	isEnabled := c.rt.Check() == CheckRegistration && c.rt.opts.CheckInterval > 0
	if !isEnabled || len(c.ranks) < 2 {
		return
	}

	c.state.Lock()
	defer c.state.Unlock()
	if !c.isComparing && c.life.ctx.Err() == nil {
		c.isComparing = true
		c.life.background.Go(c.checkInBackground)
	}
}

// names makes texts contain world ranks and the names of pools.
func (c *comparison) names() agreement.Names {
	return agreement.Names{Members: c.ranks, Pool: c.rt.registry.poolName}
}

// agreeOnCaptures returns an ErrCapturing that names the ranks on which a capture has prevented a
// step, or nil if there are none. refusal is the ErrCapturing of this rank, or nil. The caller must
// hold Group.mu.
func agreeOnCaptures(ctx context.Context, g *Group, refusal error) error {
	var own []byte // empty if this rank does not refuse
	if refusal != nil {
		own = []byte{1} // any byte
	}

	payloads, err := g.comm.Exchange(ctx, driver.LaneControl, own)
	if err != nil {
		return g.life.awaitFault(err)
	}

	var capturingRanks []int
	for groupRank, payload := range payloads {
		if len(payload) > 0 {
			capturingRanks = append(capturingRanks, g.ranks[groupRank])
		}
	}

	if len(capturingRanks) > 0 {
		return fmt.Errorf("%s: %w", driver.RanksOf(capturingRanks, g.ranks), ErrCapturing)
	}

	return nil
}
