package symmem

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/ledger"
)

// history reads a pool's ledger for an agreement, while the pool keeps allocating.
type history struct{ pool *Pool }

func (h history) Snapshot() ledger.Snapshot {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	return h.pool.ledger.Snapshot()
}

func (h history) DigestAt(position uint64) (uint64, bool) {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	return h.pool.ledger.DigestAt(position)
}

func (h history) EventAt(position uint64) (ledger.Event, bool) {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	return h.pool.ledger.EventAt(position)
}

// pools are those whose domain holds the group, by id.
func (g *Group) pools() []*Pool {
	var all []*Pool
	for _, p := range g.rt.allPools() {
		if p.domain != nil && p.domain.contains(g) && !p.isClosed() {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *Pool) int { return cmp.Compare(a.id, b.id) })
	return all
}

// histories are those of the group's pools.
func (g *Group) histories() []agreement.Ledger {
	var all []agreement.Ledger
	for _, p := range g.pools() {
		all = append(all, p.history(nil))
	}
	return all
}

// sharedHistories are the histories of the pools that every rank has now. Ranks that are at
// different points of their programs have made, or closed, different pools, and that is no
// divergence.
func (g *Group) sharedHistories(
	ctx context.Context, exchange agreement.Exchange,
) ([]agreement.Ledger, error) {
	var mine []agreement.Ledger
	for _, p := range g.pools() {
		if !(suspectPool{p}).suspect(g) {
			mine = append(mine, p.history(nil))
		}
	}
	payload := make([]byte, 0, 8*len(mine))
	for _, l := range mine {
		payload = binary.LittleEndian.AppendUint64(payload, l.ID)
	}
	got, err := exchange(ctx, payload)
	if err != nil {
		return nil, err
	}
	ranks, holders := 0, map[uint64]int{}
	for _, ids := range got {
		if ids != nil {
			ranks++
		}
		for ; len(ids) >= 8; ids = ids[8:] {
			holders[binary.LittleEndian.Uint64(ids)]++
		}
	}
	return slices.DeleteFunc(mine, func(l agreement.Ledger) bool {
		return holders[l.ID] < ranks
	}), nil
}

// Check compares the histories of all pools whose domain holds the group, now, at any level but
// CheckOff. It is collective: every rank calls it in the same place of its program, so that equal
// histories have equal lengths, too. At any level it returns the fault of a group that has failed,
// also one that a kernel has reported and no call has returned yet.
func (g *Group) Check(ctx context.Context) error {
	ctx = orBackground(ctx)
	if g.rt.Check() == CheckOff {
		g.comm.CheckPeers()
		return g.Cause(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return aligner{g}.meet(ctx, &meeting{tag: "check", pools: g.pools(), ledgers: g.histories})
}

// agree compares ledgers over the control lane, at a point that all ranks reach in the same place
// of their program. g.mu is held.
func (g *Group) agree(ctx context.Context, tag string, ledgers ...agreement.Ledger) error {
	if err := g.Cause(ctx); err != nil {
		return err
	}
	outcome, err := g.compare(ctx, g.lane(driver.LaneControl), agreement.Config{
		Mode: agreement.Exact, Tag: tag, Ledgers: ledgers,
	})
	if err != nil {
		return g.awaitCause(err)
	}
	return g.noteOutcome(outcome)
}

// lane is the exchange over a lane.
func (g *Group) lane(lane driver.Lane) agreement.Exchange {
	return func(ctx context.Context, payload []byte) ([][]byte, error) {
		return g.comm.Exchange(ctx, lane, payload)
	}
}

// compare runs an agreement over an exchange.
func (g *Group) compare(
	ctx context.Context, exchange agreement.Exchange, c agreement.Config,
) (*agreement.Outcome, error) {
	c.Rank, c.Ranks, c.Group, c.Names = g.rank, len(g.ranks), g.id, g.names()
	machine, err := agreement.New(c)
	if err != nil {
		return nil, err
	}
	return agreement.Run(ctx, exchange, machine)
}

// noteOutcome notes what was agreed, or fails the group with what was found. Every rank of the
// exchange has the same outcome, but may be interrupted by the failure of another before it knows.
// So the ranks exchange reports, as after any fault, and find the same again.
func (g *Group) noteOutcome(v *agreement.Outcome) error {
	if err := g.divergence(v); err != nil {
		g.comm.Abort(err)
		return g.awaitCause(g.comm.Cause())
	}
	g.noteAgreed(v)
	return nil
}

// noteAgreed notes what was agreed.
func (g *Group) noteAgreed(v *agreement.Outcome) {
	g.agreed.Add(1)
	for _, p := range g.rt.allPools() {
		p.noteAgreed(v.Agreed, g)
	}
}

// checkInBackground compares histories in the background, so that a divergence is reported even if
// the program never registers again. It ends with the group.
func (g *Group) checkInBackground() {
	timer := time.NewTicker(g.rt.opts.CheckInterval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-g.life.Done():
			return
		}
		if err := g.compareInBackground(); err != nil {
			return
		}
	}
}

func (g *Group) compareInBackground() error {
	exchange := g.lane(driver.LaneBackground)
	ledgers, err := g.sharedHistories(g.life, exchange)
	if err != nil {
		return err
	}
	outcome, err := g.compare(g.life, exchange, agreement.Config{
		Mode: agreement.Prefix, Tag: "background", Ledgers: ledgers,
	})
	if err != nil {
		return err
	}
	if g.rt.Check() == CheckOff {
		return nil
	}
	if err := g.divergence(outcome); err != nil {
		g.comm.Abort(err) // the program is told by its next call
		return err
	}
	g.noteAgreed(outcome)
	return nil
}

// startBackgroundCheck starts the comparison in the background if the level asks for it. It then
// always completes, since all ranks take part in it, and a difference is acted on unless the level
// is CheckOff.
func (g *Group) startBackgroundCheck() {
	if g.rt.Check() != CheckRegistration || g.rt.opts.CheckInterval <= 0 || len(g.ranks) < 2 {
		return
	}
	g.state.Lock()
	defer g.state.Unlock()
	if !g.checkingInBackground && g.life.Err() == nil {
		g.checkingInBackground = true
		g.background.Go(g.checkInBackground)
	}
}

// divergence returns what an agreement of the group has found as an error, or nil.
func (g *Group) divergence(v *agreement.Outcome) error {
	return divergenceOf(v, g.ID(), g.ranks)
}

// names are how agreements of the group call its ranks and pools in errors.
func (g *Group) names() agreement.Names {
	return agreement.Names{Members: g.ranks, Pool: g.rt.poolName}
}

// Agree compares a number across the ranks of the group. If it differs, every rank gets the same
// DivergenceError, of kind DivergedValue, with each rank's value, call site and last ten values,
// and the group stays usable. A missing rank is a fault of the group, as everywhere: a TimeoutError
// after Options.Timeout or at the deadline of the context, or a RankLostError.
//
// The name describes the value, such as "batch size". It has 1 to MaxValueName bytes, and a group
// has at most MaxValueNames of them; otherwise Agree returns ErrInvalid before anything is sent.
// The n-th call under a name on one rank is matched with the n-th on the others, from any
// goroutine; names do not wait for each other. Agree works on the host only: it uses no stream and
// no GPU, and orders no work of streams. The end of the context is a fault of the group, too.
//
// Agree, AgreeFloat, AgreeString, Any, All, Min, Max and Sum share their names. Ranks that make
// different ones of these calls under one name get the DivergenceError, too.
func (g *Group) Agree(ctx context.Context, name string, value int64) error {
	_, err := g.values.combine(ctx, valueCall{operation: ValueAgree, name: name, value: value})
	return err
}

// AgreeFloat compares a floating-point number: see Agree. Values are equal if their bits are equal,
// and all NaNs are equal.
func (g *Group) AgreeFloat(ctx context.Context, name string, value float64) error {
	c := valueCall{operation: ValueAgreeFloat, name: name, value: floatBits(value)}
	_, err := g.values.combine(ctx, c)
	return err
}

// AgreeString compares a text of any length, such as a configuration: see Agree. Ranks exchange its
// digest; where they differ, the error quotes the beginning of each text.
func (g *Group) AgreeString(ctx context.Context, name, value string) error {
	return g.values.agreeString(ctx, name, value, 0)
}

// Step compares the step of the program that begins on each rank, such as "decode(batch=8)", a text
// of 1 to MaxStep bytes, and the number of collectives of this group that each rank has launched
// since its previous step, including replays by Graph.Launch. If ranks differ they get the
// DivergenceError of Agree, with both on each side, and the group stays usable. Between steps a
// rank may only wait in collectives that all others launch as well: a rank inside a collective that
// the others have not launched is named at once, by the fault of the group. SYMMEM_STEP_GUARD=0, on
// all ranks, turns Step off: it then returns Cause.
func (g *Group) Step(ctx context.Context, what string) error {
	return g.values.step(ctx, what, 0)
}

// Any reports whether any rank has said true. See Agree.
func (g *Group) Any(ctx context.Context, name string, value bool) (bool, error) {
	c := valueCall{operation: ValueAny, name: name, value: truth(value)}
	got, err := g.values.combine(ctx, c)
	return got != 0, err
}

// All reports whether all ranks have said true. See Agree.
func (g *Group) All(ctx context.Context, name string, value bool) (bool, error) {
	c := valueCall{operation: ValueAll, name: name, value: truth(value)}
	got, err := g.values.combine(ctx, c)
	return got != 0, err
}

// Min returns the least value of all ranks. See Agree.
func (g *Group) Min(ctx context.Context, name string, value int64) (int64, error) {
	return g.values.combine(ctx, valueCall{operation: ValueMin, name: name, value: value})
}

// Max returns the greatest value of all ranks. See Agree.
func (g *Group) Max(ctx context.Context, name string, value int64) (int64, error) {
	return g.values.combine(ctx, valueCall{operation: ValueMax, name: name, value: value})
}

// Sum returns the sum of the values of all ranks, which wraps around as int64 does. See Agree.
func (g *Group) Sum(ctx context.Context, name string, value int64) (int64, error) {
	return g.values.combine(ctx, valueCall{operation: ValueSum, name: name, value: value})
}

// agreeOnCaptures returns, on all ranks, an ErrCapturing that names the ranks on which a step was
// refused because a stream is captured. g.mu is held.
func agreeOnCaptures(ctx context.Context, g *Group, refused error) error {
	var mine []byte
	if refused != nil {
		mine = []byte{1}
	}
	got, err := g.comm.Exchange(ctx, driver.LaneControl, mine)
	if err != nil {
		return g.awaitCause(err)
	}
	var capturing []int
	for r, theirs := range got {
		if len(theirs) > 0 {
			capturing = append(capturing, g.ranks[r])
		}
	}
	if len(capturing) > 0 {
		return fmt.Errorf("%s: %w", driver.RanksOf(capturing, g.ranks), ErrCapturing)
	}
	return nil
}
