package symmem

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/ranked"
	"symmem/internal/tuning"
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
	rt    *Runtime
	id    string // as people know it
	full  string // the same on all ranks, and no other group's
	key   uint64 // stands for full
	ranks []int  // world ranks in group order
	rank  int
	comm  driver.Communicator
	// life ends with the group. Its cause is the first fault of any of its ranks, the same on all
	// ranks; end ends it. failing is closed when this rank has seen a fault, before it is known.
	life    context.Context
	end     context.CancelCauseFunc
	failing chan struct{}
	// tuning chooses paths, for a group of this shape; choice is a PathChoice.
	tuning *tuning.Table
	shape  tuning.Shape
	choice atomic.Int32

	poolsMade uint64 // pools that had this domain; guarded by rt.mu

	mu     ranked.Mutex[groupMu] // held during collective control calls
	splits int                   // guarded by mu

	closing    sync.Once
	background sync.WaitGroup

	state    ranked.Mutex[groupState] // guards the writers of what follows
	members  atomic.Pointer[[]*membership]
	table    atomic.Pointer[windowTable]
	revision atomic.Uint64 // counts changes that make prepared plans stale
	// checkingInBackground reports whether histories are compared in the background; guarded by
	// state.
	checkingInBackground bool
	values               values
	plans                [planSlots]atomic.Pointer[collective]

	fault      atomic.Int32 // unseen, seen or resolved
	registered atomic.Uint64
	site       atomic.Uint32 // the place of the latest call, or 0; see Interop.At
	agreed     atomic.Uint64
}

// discard gives up a group that could not be made. If its communicator has failed, the ranks find
// out why, as those of a group that is made.
func (g *Group) discard(err error) error {
	if g.isOwnFault(err) {
		err = g.agreeOnCause(g.comm.Cause())
	}
	g.end(err)
	return errors.Join(err, g.comm.Close())
}

// agreeOnSettings compares the settings of all ranks, and sets what follows from them. It reports
// whether some rank holds a pool of the group suspect. It is collective; every rank gets the same
// error.
func (g *Group) agreeOnSettings(ctx context.Context) (suspect bool, err error) {
	rt := g.rt
	mine := settings{Machine: machineName(), Suspect: aligner{g}.suspectsPools(), Terms: []term{
		{What: "check level", Value: rt.Check().String()},
		{What: "path choice", Value: rt.opts.Path.String()},
		{What: "formula of reductions", Value: rt.opts.Deterministic.String()},
		{What: "order of messages", Value: rt.opts.messages()},
	}}
	table, err := rt.tableFor(len(g.ranks))
	if err != nil {
		mine.TableError = err.Error()
	} else {
		digest := digestText(table)
		mine.Terms = append(mine.Terms, term{
			"tuning table", digest, fmt.Sprintf("%s (digest %s)", table.Name(), digest),
		})
	}
	encoded, err := json.Marshal(mine)
	if err != nil {
		return false, fmt.Errorf("encoding the settings of this rank: %w", err)
	}
	got, err := g.comm.Exchange(ctx, driver.LaneControl, encoded)
	if err != nil {
		return false, err
	}
	all := make([]settings, len(got))
	for r := range got {
		if err := json.Unmarshal(got[r], &all[r]); err != nil {
			return false, invalid("settings of rank %d are %.40q", g.ranks[r], got[r])
		}
		suspect = suspect || all[r].Suspect
	}
	g.tuning, g.shape = table, shapeOf(all)
	return suspect, compareSettings(all, g.ranks)
}

// ID names the group: as Join was told, else after the group that was split. It is the same on all
// of its ranks.
func (g *Group) ID() string { return g.id }

// Rank is this rank's number in the group.
func (g *Group) Rank() int { return g.rank }

// Size is the number of ranks.
func (g *Group) Size() int { return len(g.ranks) }

// Ranks lists the world ranks in group order.
func (g *Group) Ranks() []int { return slices.Clone(g.ranks) }

// contains reports whether all ranks of another group are in this one.
func (g *Group) contains(other *Group) bool {
	for _, r := range other.ranks {
		if !slices.Contains(g.ranks, r) {
			return false
		}
	}
	return true
}

// Split makes groups of the ranks that give the same color, ordered by key and then by rank. It is
// collective over g; a rank that is to be in no group calls SkipSplit instead. A color is not
// negative.
func (g *Group) Split(ctx context.Context, color, key int) (*Group, error) {
	ctx = orBackground(ctx)
	if color < 0 {
		return nil, invalid("splitting group %s: color %d is negative; SkipSplit joins no group", g.id,
			color)
	}
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
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.exchangeColors(ctx, noColor, 0)
	return err
}

// noColor is that of ranks that join no group.
const noColor = -1

// exchangeColors gathers color and key of every rank for a Split. g.mu is held.
func (g *Group) exchangeColors(ctx context.Context, color, key int64) ([][2]int64, error) {
	// A rank that is in another operation would send something else, and no group would be right.
	err := aligner{g}.meet(ctx, &meeting{tag: "split", pools: g.pools()})
	if errors.As(err, new(*unalignedError)) {
		err = g.agree(ctx, "split") // the pools are for the first call that uses them
	}
	if err != nil {
		return nil, fmt.Errorf("splitting group %s: %w", g.id, err)
	}
	mine, _ := binary.Append(nil, binary.LittleEndian, [2]int64{color, key}) // which cannot fail
	got, err := g.comm.Exchange(ctx, driver.LaneControl, mine)
	if err != nil {
		return nil, fmt.Errorf("splitting group %s: %w", g.id, g.awaitCause(err))
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
	g.comm.Abort(fmt.Errorf("group %s: %w", g.id, ErrAborted))
	_ = aligner{g}.see(g.comm.Cause())
}

// Close leaves the group: its windows are deregistered on this rank. Close the graphs captured
// over it before. Collectives that are under way end, or return ErrClosed; it waits for nobody but
// this rank's own work. A second Close does nothing.
func (g *Group) Close() (err error) {
	g.closing.Do(func() {
		if cause := g.comm.Cause(); cause != nil && !errors.Is(cause, ErrClosed) {
			<-g.life.Done() // the ranks find out the cause, which others may wait for
			_ = aligner{g}.see(cause)
		}
		failed := g.life.Err() != nil
		g.state.Lock() // nothing begins in the background from here on
		g.end(fmt.Errorf("group %s: %w", g.id, ErrClosed))
		g.state.Unlock()
		// The collectives of this rank end before the windows go in which they work.
		errs := []error{g.comm.Close()}
		if cause := g.comm.Cause(); cause != nil && !errors.Is(cause, ErrClosed) {
			failed = true // a peer had failed, which Close has found out
			_ = aligner{g}.see(cause)
		}
		for _, p := range g.rt.allPools() {
			errs = append(errs, p.leave(g))
		}
		g.background.Wait()
		if !failed {
			g.rt.forgetGroup(g)
		}
		err = once(errs...)
	})
	return err
}

// memberOf finds the group's part in a pool without a lock.
func (g *Group) memberOf(p *Pool) *membership {
	for _, m := range *g.members.Load() {
		if m.pool == p {
			return m
		}
	}
	return nil
}

func (g *Group) remember(m *membership) {
	g.state.Lock()
	defer g.state.Unlock()
	list := append(slices.Clone(*g.members.Load()), m)
	g.members.Store(&list)
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
func (g *Group) Failing() <-chan struct{} { return g.failing }

// Ended is closed when the group has failed or was closed; Err then says how. A rank that is in no
// call of the group learns within seconds that another one has failed.
func (g *Group) Ended() <-chan struct{} { return g.life.Done() }

// Stats counts what the group has done.
func (g *Group) Stats() GroupStats {
	s := GroupStats{
		Windows:       g.table.Load().count,
		Registrations: g.registered.Load(),
		Agreements:    g.agreed.Load(),
		Paths:         map[string]uint64{},
		Tuning: Tuning{
			Table: g.tuning.Name(), Digest: digestText(g.tuning),
			Path: PathChoice(g.choice.Load()).String(), Machines: g.shape.Machines,
		},
	}
	for path, n := range g.comm.Launched() {
		if n > 0 {
			s.Paths[driver.Path(path).String()] = n
		}
	}
	return s
}

// latestSite is the place of the group's latest call, if it came with one.
func (g *Group) latestSite() string { return g.rt.sites.named(g.site.Load()) }

// SetPath changes who chooses the path of the group's collectives from now on, for benchmarks and
// for finding out what is slow; Options.Path is what a group starts with. Graphs that were captured
// before keep their paths. It is collective over the group, and every rank gives the same choice.
// Where a stream of some rank captures it returns ErrCapturing on all ranks and changes nothing.
func (g *Group) SetPath(ctx context.Context, c PathChoice) error {
	ctx = orBackground(ctx)
	if c <= PathDefault || c > PathDirect {
		return invalid("path choice %v on group %s", c, g.id)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.agree(ctx, "path "+c.String()); err != nil {
		return fmt.Errorf("setting the path of group %s: %w", g.id, err)
	}
	before := g.choice.Swap(int32(c))
	err := g.rt.apartFromCaptures(ctx, g.lane(driver.LaneControl), func() error {
		return g.useWindows(ctx)
	})
	if err != nil {
		g.choice.Store(before)
	}
	g.state.Lock()
	g.revision.Add(1) // every prepared plan is stale, also one that was made meanwhile
	g.state.Unlock()
	if err != nil {
		return fmt.Errorf("setting the path of group %s: %w", g.id, g.awaitCause(err))
	}
	return nil
}

// useWindows makes the windows of the backend's library, if calls may take them. It is collective,
// and depends on nothing but the group's terms and SetPath.
func (g *Group) useWindows(ctx context.Context) error {
	lazy, ok := g.comm.(driver.LazyWindows)
	if !ok || !g.takesWindows() {
		return nil
	}
	return lazy.UseWindows(ctx)
}

func (g *Group) takesWindows() bool {
	switch PathChoice(g.choice.Load()) {
	case PathWindow:
		return true
	case PathPlain:
		return false
	default:
		barrier := g.comm.Offer(driver.Call{Operation: driver.Barrier})
		return g.tuning.TakesWindows(g.shape, barrier.Refusal(driver.PathDirect) == nil)
	}
}
