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

	"symmem/driver"
	"symmem/internal/ranked"
)

// Group is a set of ranks that communicate. Its ranks are numbered from 0 in group order.
//
// States: open; failed, after the first fault that any of its ranks sees (every call returns that
// fault then, the same on every rank); closed. It is safe for concurrent use, but calls that are
// collective must come in the same order on every rank.
//
// The documentation of the package describes, under Collectives, what all of them share: streams,
// errors, and the context, which bounds the registration before a call but not its queued work.
type Group struct {
	roster
	rt   *Runtime
	comm driver.Communicator
	// mu is held during collective control calls.
	mu     ranked.Mutex[groupMu]
	splits int                      // guarded by mu
	state  ranked.Mutex[groupState] // guards state of the parts that follow

	life       *lifetime
	comparison *comparison
	aligner    *aligner
	windows    windows
	router     *router
	calls      planner
	values     *values
	events     *groupEvents

	closing    sync.Once
	poolsMade  uint64        // pools that had this domain; guarded by rt.mu
	registered atomic.Uint64 // calls that registered memory
}

// ID returns the name of the group, the same on all of its ranks: the argument of Join, or a name
// derived from that of the group that was split.
func (g *Group) ID() string { return g.id }

// Rank returns this rank's number in the group.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks.
func (g *Group) Size() int { return len(g.ranks) }

// Ranks lists the world ranks in group order.
func (g *Group) Ranks() []int { return slices.Clone(g.ranks) }

// Split makes groups of the ranks that give the same color, ordered by key and then by rank. It is
// collective over g; a rank that is to be in no group calls SkipSplit instead. A color is not
// negative.
func (g *Group) Split(ctx context.Context, color, key int) (*Group, error) {
	ctx = orBackground(ctx)
	if color < 0 {
		return nil, invalid("splitting group %s: color %d is negative; SkipSplit joins no group", g.id,
			color)
	}
	defer deliverAll(g.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	all, err := g.exchangeColors(ctx, int64(color), int64(key))
	if err != nil {
		return nil, err
	}
	ranks, rank := subgroup(all, g.ranks, g.rank, int64(color))
	id := fmt.Sprintf("%s%s/%d.%d", splitPrefix, g.full, g.splits, color)
	sub, err := g.rt.connect(ctx, id, ranks, rank)
	if err != nil {
		return nil, fmt.Errorf("splitting group %s: %w", g.id, err)
	}
	return sub, nil
}

// SkipSplit takes part in a Split of the other ranks of g, but joins no group.
func (g *Group) SkipSplit(ctx context.Context) error {
	ctx = orBackground(ctx)
	defer deliverAll(g.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.exchangeColors(ctx, noColor, 0)
	return err
}

// noColor is the color of ranks that join no group.
const noColor = -1

// exchangeColors gathers color and key of every rank for a Split. Group.mu is held.
func (g *Group) exchangeColors(ctx context.Context, color, key int64) ([][2]int64, error) {
	// A rank that is in another operation would send something else, and no group would be right.
	err := g.aligner.meet(ctx, &meeting{tag: "split", pools: g.comparison.pools()})
	if errors.As(err, new(*unalignedError)) {
		err = g.comparison.agree(ctx, "split") // the pools are for the first call that uses them
	}
	if err != nil {
		return nil, fmt.Errorf("splitting group %s: %w", g.id, err)
	}
	mine, _ := binary.Append(nil, binary.LittleEndian, [2]int64{color, key}) // which cannot fail
	got, err := g.comm.Exchange(ctx, driver.LaneControl, mine)
	if err != nil {
		return nil, fmt.Errorf("splitting group %s: %w", g.id, g.life.awaitCause(err))
	}
	all := make([][2]int64, len(got))
	for r, message := range got {
		if len(message) != len(mine) {
			return nil, fmt.Errorf("splitting group %s: message of rank %d has %d bytes instead of %d",
				g.id, g.ranks[r], len(message), len(mine))
		}
		_, _ = binary.Decode(message, binary.LittleEndian, &all[r])
	}
	g.splits++
	return all, nil
}

// subgroup picks the ranks of one color, and this rank's place among them.
func subgroup(all [][2]int64, parent []int, me int, color int64) (ranks []int, rank int) {
	var picked []int
	for r := range all {
		if all[r][0] == color {
			picked = append(picked, r)
		}
	}
	slices.SortStableFunc(picked, func(a, b int) int { return cmp.Compare(all[a][1], all[b][1]) })
	for _, r := range picked {
		ranks = append(ranks, parent[r])
	}
	return ranks, slices.Index(picked, me)
}

// Abort fails the group on all its ranks: calls that wait return ErrAborted. It does not wait.
func (g *Group) Abort() {
	g.life.abort()
	_ = g.life.see(g.comm.Cause())
}

// Close leaves the group and deregisters its windows on this rank. Close the graphs captured over
// it first. Collectives that are queued return ErrClosed. A second Close does nothing.
//
// Close waits for the collective that this rank runs, at most for twice Options.Timeout, and after
// a fault until the ranks have determined the cause, in general at most 3 s. It does not wait for
// other ranks to close the group.
func (g *Group) Close() (err error) {
	defer deliverAll(g.rt)
	g.closing.Do(func() {
		failed := g.life.close()
		// The collectives of this rank end before the windows go in which they work.
		errs := []error{g.comm.Close()}
		failed = g.life.seeCommunicator() || failed // Close may have found that a peer had failed
		for _, p := range g.rt.made.allPools() {
			errs = append(errs, p.leave(g))
		}
		g.life.background.Wait()
		if !failed {
			g.rt.made.forgetGroup(g)
		}
		err = once(errs...)
	})
	return err
}

// Err returns the fault that ended the group, the same on every rank. It does not wait, and is nil
// until Ended is closed: see Cause.
func (g *Group) Err() error { return g.life.err() }

// Cause returns the fault that ended the group, or nil if this rank has seen none. If it has, Cause
// waits until the ranks have determined the cause, a few seconds at most. If the context ends
// first, Cause returns the context's error.
func (g *Group) Cause(ctx context.Context) error { return g.life.cause(ctx) }

// Check compares the histories of all pools whose domain holds the group, now, at any level but
// CheckOff. It is collective: every rank calls it in the same place of its program, so that equal
// histories have equal lengths, too. At any level it returns the fault of a group that has failed,
// also one that a kernel has reported and no call has returned yet.
func (g *Group) Check(ctx context.Context) error {
	ctx = orBackground(ctx)
	if g.rt.Check() == CheckOff {
		g.comm.CheckPeers()
		return g.life.cause(ctx)
	}
	defer deliverAll(g.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.aligner.meet(ctx, &meeting{
		tag: "check", pools: g.comparison.pools(), ledgers: g.comparison.histories,
	})
}

// IsSymmetric reports whether memory of this rank lies in one window of the group. It takes no lock
// and does not communicate. Nothing is symmetric in a nil group.
func (g *Group) IsSymmetric(m Memory) bool {
	return g != nil && g.windows.hold(m.Address(), m.Bytes())
}

// Handle is the group's communicator as NCCL knows it, for calls that symmem does not offer: an
// ncclComm_t, and 0 where there is none, as on the host. It is the same each time until the group
// is closed or has failed, and 0 from then on.
//
// NCCL takes calls of a communicator from one thread at a time, and in the same order on all ranks:
// the caller sees to both, with symmem's calls on the group among them. It needs the GPU's primary
// context as its thread's current one. symmem gives such calls no deadline, compares none of them
// across ranks, and reports what they did wrong as a fault of the group. When the group fails or is
// closed symmem ends the communicator, whose handle must not be used then: see Ended.
func (g *Group) Handle() uintptr {
	if native, ok := g.comm.(driver.Native); ok {
		return native.Handle()
	}
	return 0
}

// Failing is closed as soon as this rank has seen a fault of the group: before Ended, since the
// ranks then take up to seconds to find out the cause together, which Cause waits for. A Close of
// this rank does not close it. A fault that a kernel reports in a graph which another library
// replays is seen within 50 ms.
func (g *Group) Failing() <-chan struct{} { return g.life.failing }

// Ended is closed when the group has failed or was closed; Err then returns the reason. A rank that
// is in no call of the group learns within seconds that another one has failed.
func (g *Group) Ended() <-chan struct{} { return g.life.open.Done() }

// Stats counts what the group has done.
func (g *Group) Stats() GroupStats {
	s := GroupStats{
		Windows:       g.windows.table.Load().count,
		Registrations: g.registered.Load(),
		Agreements:    g.comparison.agreed.Load(),
		Paths:         map[string]uint64{},
		Tuning: Tuning{
			Table: g.router.tuning.Name(), Digest: digestText(g.router.tuning),
			Path: PathChoice(g.router.choice.Load()).String(), Machines: g.router.shape.Machines,
		},
	}
	for path, n := range g.comm.Launched() {
		if n > 0 {
			s.Paths[driver.Path(path).String()] = n
		}
	}
	return s
}

// SetPath changes how the path of the group's later collectives is chosen, for benchmarks and to
// find out what is slow. A group starts with Options.Path. Graphs that were captured
// before keep their paths. It is collective over the group, and every rank gives the same choice.
// Where a stream of some rank captures it returns ErrCapturing on all ranks and changes nothing.
func (g *Group) SetPath(ctx context.Context, c PathChoice) error {
	ctx = orBackground(ctx)
	if c <= PathDefault || c > PathDirect {
		return invalid("path choice %v on group %s", c, g.id)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.comparison.agree(ctx, "path "+c.String()); err != nil {
		return fmt.Errorf("setting the path of group %s: %w", g.id, err)
	}
	before := g.router.choice.Swap(int32(c))
	err := g.rt.captures.exclude(ctx, g.comparison.lane(driver.LaneControl), func() error {
		return g.router.useWindows(ctx)
	})
	if err != nil {
		g.router.choice.Store(before)
	}
	g.windows.revise()
	if err != nil {
		return fmt.Errorf("setting the path of group %s: %w", g.id, g.life.awaitCause(err))
	}
	return nil
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

// Any reports whether the value of any rank is true. See Agree.
func (g *Group) Any(ctx context.Context, name string, value bool) (bool, error) {
	c := valueCall{operation: ValueAny, name: name, value: truth(value)}
	got, err := g.values.combine(ctx, c)
	return got != 0, err
}

// All reports whether the values of all ranks are true. See Agree.
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
