package symmem

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Group is a set of ranks that communicate, numbered from 0 in group order. A Group is safe for
// concurrent use, but collective calls must be made in the same order on every rank.
type Group struct {
	roster
	groupSuspender
	rt   *Runtime
	comm driver.Communicator
	// mu is held while ranks exchange data on the host.
	mu         ranked.Mutex[groupMu]
	splitCount int                     // Split calls so far; guarded by mu
	state      ranked.Spin[groupState] // guards fields of the structs below

	life       *lifetime    // whether and why the group has ended
	comparison *comparison  // compares the histories of pools
	aligner    *aligner     // repairs pools after a fault
	windows    windows      // registered memory
	router     *router      // chooses the paths of calls
	calls      planner      // prepares calls
	values     *values      // compares values of the ranks
	events     *groupEvents // records events

	closing       sync.Once
	poolCount     uint64        // pools with this group as their domain; guarded by rt.mu
	registrations atomic.Uint64 // calls that registered memory
}

// ID returns the name of the group, the same on all of its ranks.
func (g *Group) ID() string { return g.id }

// Rank returns this rank's number in the group.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks.
func (g *Group) Size() int { return len(g.ranks) }

// Ranks lists the world ranks in group order.
func (g *Group) Ranks() []int { return slices.Clone(g.ranks) }

// Timeout returns the limit of each wait for another rank, unless the wait has a deadline.
func (g *Group) Timeout() time.Duration { return g.limit.Get() }

// SetTimeout changes the timeout of later waits on this rank. Kernels in graphs keep the timeout of
// their capture.
func (g *Group) SetTimeout(d time.Duration) error {
	if d <= 0 {
		return invalid("the timeout of group %s must be positive, not %v", g.id, d)
	}

	g.limit.Set(d)
	return nil
}

// Split creates a group of the ranks that pass the same color (0 or more), ordered by key and then
// by rank, with the timeout of g. All ranks of g must call Split or SkipSplit.
func (g *Group) Split(ctx context.Context, color, key int) (*Group, error) {
	ctx = orBackground(ctx)
	if color < 0 {
		return nil, invalid("splitting group %s: color %d is negative; to join no group, call "+
			"SkipSplit", g.id, color)
	}

	defer deliverAll(g.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	own := colorAndKey{Color: int64(color), Key: int64(key)}
	byRank, err := exchangeColors(ctx, g, own)
	if err != nil {
		return nil, err
	}

	groupRanks := ranksWithColor(byRank, own.Color) // ranks in g, in the order of the new group
	r := roster{
		fullID: fmt.Sprintf("%s%s/%d.%d", splitPrefix, g.fullID, g.splitCount, color),
		rank:   slices.Index(groupRanks, g.rank), limit: driver.NewLimit(g.Timeout()),
	}
	for _, groupRank := range groupRanks {
		r.ranks = append(r.ranks, g.ranks[groupRank])
	}

	subgroup, err := g.rt.connect(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("splitting group %s: %w", g.id, err)
	}

	return subgroup, nil
}

// SkipSplit takes part in a Split without joining a group.
func (g *Group) SkipSplit(ctx context.Context) error {
	ctx = orBackground(ctx)
	defer deliverAll(g.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := exchangeColors(ctx, g, colorAndKey{Color: noColor})
	return err
}

// colorAndKey holds a rank's arguments of Split. The ranks exchange it in binary form.
type colorAndKey struct{ Color, Key int64 }

const noColor = -1 // for ranks that join no group

// exchangeColors returns the arguments of all ranks, by group rank. The caller must hold Group.mu.
func exchangeColors(ctx context.Context, g *Group, own colorAndKey) ([]colorAndKey, error) {
	// Check that all ranks are in Split: the payload of another call could look like a color.
	err := g.aligner.realignAndCompare(ctx, &sharedCall{tag: "split", pools: g.comparison.pools()})
	if errors.As(err, new(*realignError)) {
		err = g.comparison.agree(ctx, "split") // a later call realigns the pools
	}

	if err != nil {
		return nil, fmt.Errorf("splitting group %s: %w", g.id, err)
	}

	encoded, _ := binary.Append(nil, binary.LittleEndian, own) // cannot fail
	messages, err := g.comm.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return nil, fmt.Errorf("splitting group %s: %w", g.id, g.life.awaitFault(err))
	}

	byRank := make([]colorAndKey, len(messages))
	for groupRank, message := range messages {
		if len(message) != len(encoded) {
			return nil, fmt.Errorf("splitting group %s: message of rank %d has %d bytes instead of %d",
				g.id, g.ranks[groupRank], len(message), len(encoded))
		}

		// Decode cannot fail, because the size is right.
		_, _ = binary.Decode(message, binary.LittleEndian, &byRank[groupRank])
	}

	g.splitCount++
	return byRank, nil
}

// ranksWithColor returns the group ranks with a color, ordered by key and then by rank.
func ranksWithColor(byRank []colorAndKey, color int64) []int {
	var selected []int
	for groupRank := range byRank {
		if byRank[groupRank].Color == color {
			selected = append(selected, groupRank)
		}
	}

	slices.SortStableFunc(selected, func(a, b int) int {
		return cmp.Compare(byRank[a].Key, byRank[b].Key)
	})
	return selected
}

// Abort makes the group fail on all its ranks with ErrAborted. It does not wait.
func (g *Group) Abort() {
	g.life.abort()
	g.life.markKnown(g.comm.Cause())
}

// Close leaves the group and deregisters its windows on this rank. Close the graphs that contain
// its collectives first. Queued collectives return ErrClosed.
//
// Close waits for this rank's running collective, for at most twice the timeout. After a fault, it
// waits until the ranks have agreed on the cause, for at most three quarters of the timeout.
func (g *Group) Close() (err error) {
	defer deliverAll(g.rt)
	g.closing.Do(func() { err = closeGroup(g) })
	return err
}

// closeGroup implements the first Close.
func closeGroup(g *Group) error {
	hadFailed := g.life.close()
	// Running collectives must end before their windows are deregistered.
	closeErr := g.comm.Close()
	errs := []error{closeErr}
	cause := g.comm.Cause() // Close may have found that a peer had failed
	g.life.markKnown(cause)
	for _, p := range g.rt.registry.allPools() {
		dropErr := p.registrar.dropGroup(g)
		errs = append(errs, dropErr)
	}

	g.life.background.Wait()
	if !hadFailed && !isFault(cause) {
		g.rt.registry.removeGroup(g)
	}

	return joinWithoutDuplicates(errs...)
}

// Err returns the fault that ended the group, or nil until Ended is closed. It does not wait.
func (g *Group) Err() error { return g.life.err() }

// Cause returns the fault that ended the group, or nil. After a fault, it waits until the ranks
// have agreed on its cause or the context ends.
func (g *Group) Cause(ctx context.Context) error { return g.life.cause(ctx) }

// Check compares the histories of all pools whose domain contains the group, unless the level is
// CheckOff. Every rank must call it at the same point of its program.
func (g *Group) Check(ctx context.Context) error {
	ctx = orBackground(ctx)
	if g.rt.Check() == CheckOff {
		g.comm.CheckPeers()
		return g.life.cause(ctx)
	}

	defer deliverAll(g.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.aligner.realignAndCompare(ctx, &sharedCall{
		tag: "check", pools: g.comparison.pools(), histories: g.comparison.histories,
	})
}

// IsSymmetric reports whether memory lies in a single window of the group, or false if g is nil.
func (g *Group) IsSymmetric(m Memory) bool {
	return g != nil && g.windows.contains(m.Address(), m.Bytes())
}

// Handle returns the group's NCCL communicator, an ncclComm_t, or 0. symmem destroys it when the
// group fails or is closed, and treats errors of the caller's calls as a fault of the group.
//
// NCCL requires that all calls on a communicator, including symmem's, come from one thread at a
// time and in the same order on all ranks. The GPU's primary context must be current on the thread.
func (g *Group) Handle() uintptr {
	if native, ok := g.comm.(driver.Native); ok {
		return native.Handle()
	}

	return 0
}

// Failing returns a channel that is closed as soon as this rank has seen a fault, seconds before
// Ended, because the ranks must agree on the cause.
func (g *Group) Failing() <-chan struct{} { return g.life.failing }

// Ended returns a channel that is closed when the group has failed or has been closed. Err then
// returns the reason.
func (g *Group) Ended() <-chan struct{} { return g.life.ctx.Done() }

// Stats returns the group's counters and settings.
func (g *Group) Stats() GroupStats {
	s := GroupStats{
		Windows:       g.windows.table.Load().windowCount,
		Registrations: g.registrations.Load(),
		Agreements:    g.comparison.agreed.Load(),
		Paths:         map[string]uint64{},
		Tuning: Tuning{
			Table: g.router.tuning.Name(), Digest: formatDigest(g.router.tuning),
			Path: PathChoice(g.router.choice.Load()).String(), Machines: g.router.shape.Machines,
		},
	}
	for path, count := range g.comm.Launched() {
		if count > 0 {
			s.Paths[driver.Path(path).String()] = count
		}
	}

	return s
}

// SetPath changes the path of later calls. Existing graphs keep their paths. Every rank must pass
// the same choice. During a capture on any rank, all ranks return ErrCapturing.
func (g *Group) SetPath(ctx context.Context, c PathChoice) error {
	ctx = orBackground(ctx)
	if c <= PathDefault || c > PathTwoLevel {
		return invalid("unknown path choice %v on group %s", c, g.id)
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.refusal(); err != nil {
		return fmt.Errorf("setting the path: %w", err)
	}

	if err := g.comparison.agree(ctx, "path "+c.String()); err != nil {
		return fmt.Errorf("setting the path of group %s: %w", g.id, err)
	}

	previous := g.router.choice.Swap(int32(c))
	exchange := g.comparison.exchangeOn(driver.LaneControl)
	err := g.rt.captures.runWithoutCapture(ctx, exchange, func() error {
		return g.router.prepare(ctx)
	})
	if err != nil {
		g.router.choice.Store(previous)
	}

	g.windows.makePlansStale()
	if err != nil {
		return fmt.Errorf("setting the path of group %s: %w", g.id, g.life.awaitFault(err))
	}

	return nil
}

// Agree compares a number across the ranks of the group. If the numbers differ, every rank returns
// the same DivergenceError of kind DivergedValue, and the group remains usable. If a rank is
// missing or the context is canceled, the group fails.
//
// The name describes the value, such as "batch size". It must have 1 to MaxValueName bytes, and a
// group may use at most MaxValueNames names; otherwise, Agree returns ErrInvalid. The n-th call
// with a name matches the n-th call with that name on the other ranks; methods that compare values
// share the names. Calls with different names do not wait for each other, and none waits for the
// work of streams.
func (g *Group) Agree(ctx context.Context, name string, value int64) error {
	_, err := g.values.combine(ctx, valueCall{operation: ValueAgree, name: name, value: value})
	return err
}

// AgreeFloat is Agree for a float. All NaNs are equal; other values must have the same bits.
func (g *Group) AgreeFloat(ctx context.Context, name string, value float64) error {
	c := valueCall{operation: ValueAgreeFloat, name: name, value: floatBits(value)}
	_, err := g.values.combine(ctx, c)
	return err
}

// AgreeString is Agree for a text of any length. Ranks exchange digests unless these differ.
func (g *Group) AgreeString(ctx context.Context, name, value string) error {
	return g.values.agreeString(ctx, name, value, 0)
}

// Step compares the step that each rank's program is about to begin: a text of 1 to MaxStep bytes,
// such as "decode(batch=8)", and the number of collectives of this group since the previous step.
// If the ranks differ, Step returns a DivergenceError, and the group remains usable. However, the
// group fails if a rank begins a step without a collective in which another rank waits.
//
// With SYMMEM_STEP_GUARD=0 on all ranks, Step compares nothing and returns the result of Cause.
func (g *Group) Step(ctx context.Context, what string) error {
	return g.values.step(ctx, what, 0)
}

// Any reports whether the value of any rank is true. See Agree.
func (g *Group) Any(ctx context.Context, name string, value bool) (bool, error) {
	c := valueCall{operation: ValueAny, name: name, value: boolToInt(value)}
	got, err := g.values.combine(ctx, c)
	return got != 0, err
}

// All reports whether the values of all ranks are true. See Agree.
func (g *Group) All(ctx context.Context, name string, value bool) (bool, error) {
	c := valueCall{operation: ValueAll, name: name, value: boolToInt(value)}
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

// Sum returns the sum of the values of all ranks, which may overflow. See Agree.
func (g *Group) Sum(ctx context.Context, name string, value int64) (int64, error) {
	return g.values.combine(ctx, valueCall{operation: ValueSum, name: name, value: value})
}
