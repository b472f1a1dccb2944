package symmem

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/handoff"
)

// MaxGroupID is the maximum length of a group's id in bytes.
const MaxGroupID = 1024

// Join creates a group from a list of world ranks in group order. All ranks in the list must call
// Join with the same list and id. The id must have at most MaxGroupID bytes, and must not be used
// again, even if Join fails. Ranks must join their common groups in the same order.
func (rt *Runtime) Join(ctx context.Context, id string, ranks []int) (*Group, error) {
	return rt.JoinWith(ctx, id, ranks, GroupOptions{})
}

// GroupOptions configures JoinWith.
type GroupOptions struct {
	// Timeout limits each wait for another rank, unless the wait has a deadline. 0 selects
	// Options.Timeout. If timeouts differ between ranks, the group fails after the shortest.
	Timeout time.Duration
}

// JoinWith is like Join, but with options.
func (rt *Runtime) JoinWith(
	ctx context.Context, id string, ranks []int, o GroupOptions,
) (*Group, error) {
	ctx = orBackground(ctx)
	if o.Timeout < 0 {
		return nil, invalid("joining group %q: timeout %v is negative", id, o.Timeout)
	}

	limit := driver.NewLimit(cmp.Or(o.Timeout, rt.opts.Timeout))
	defer deliverAll(rt)
	if err := rt.registry.closedError(); err != nil {
		return nil, err
	}

	if len(id) > MaxGroupID {
		return nil, invalid("joining group %.40q...: the id has %d bytes, but at most %d are allowed",
			id, len(id), MaxGroupID)
	}

	groupRank := slices.Index(ranks, rt.rank)
	isInGroup := groupRank >= 0
	if id == "" || !isInGroup {
		return nil, invalid("joining group %q: the id must not be empty, and the list of ranks %v "+
			"must include this rank (%d)", id, ranks, rt.rank)
	}

	sortedRanks := slices.Sorted(slices.Values(ranks)) // not empty: it contains this rank
	areInWorld := sortedRanks[0] >= 0 && sortedRanks[len(sortedRanks)-1] < rt.size
	areDistinct := len(slices.Compact(sortedRanks)) == len(ranks)
	if !areInWorld || !areDistinct {
		return nil, invalid("joining group %q: ranks %v must be distinct ranks of a world of %d",
			id, ranks, rt.size)
	}

	if !rt.registry.claimID(id) {
		return nil, invalid("joining group %q: the id was already used, perhaps by a failed Join in "+
			"which other ranks are still waiting: pass an id that was never used", id)
	}

	fullID := joinedPrefix + id
	err := rt.rankLists.announce(ctx, fullID, ranks, limit.Get())
	var g *Group
	if err == nil {
		r := roster{fullID: fullID, ranks: slices.Clone(ranks), rank: groupRank, limit: limit}
		g, err = rt.connect(ctx, r)
	}

	if err == nil {
		return g, nil
	}

	if !cannotBeRankLoss(err) {
		// A rank that passes a different list may not join this group, and then seems to be lost.
		difference := rt.rankLists.findDifference(fullID, ranks)
		err = cmp.Or(difference, err)
	}

	return nil, driver.GroupConfig{ID: fullID}.JoinError(err)
}

// Prefixes of full ids. Joined groups, split groups and "world" can then not have the same id.
const (
	joinedPrefix = " "
	splitPrefix  = "/"
)

// connect creates the group of r. If the process of one of its ranks ends during the call, connect
// returns a RankLostError.
func (rt *Runtime) connect(ctx context.Context, r roster) (g *Group, err error) {
	ctx, endJoin, err := rt.registry.beginJoin(ctx)
	if err != nil {
		return nil, err
	}

	defer func() {
		err = endJoin(err)
		rt.monitor.recordResult(err)
	}()
	operation := "joining group " + driver.GroupConfig{ID: r.fullID}.Name()
	err = rt.monitor.runWithRanks(ctx, operation, r.ranks, func(ctx context.Context) error {
		var connectErr error
		g, connectErr = rt.connectUnmonitored(ctx, r)
		return connectErr
	})
	return g, err
}

// connectUnmonitored is connect without watching the processes of the ranks.
func (rt *Runtime) connectUnmonitored(ctx context.Context, r roster) (*Group, error) {
	life := newLifetime()
	config := driver.GroupConfig{
		ID: r.fullID, Ranks: r.ranks, Rank: r.rank, Timeout: r.limit, Check: rt.Check() == CheckEvery,
		Strict: !rt.opts.UnorderedMessages, Formula: rt.opts.Deterministic.toDriver(),
		Owner: life, // for lifetimeOf
	}
	comm, err := rt.device.Connect(ctx, config)
	if err != nil {
		return nil, err
	}

	g := newGroup(rt, &config, comm, life)
	if err := g.prepareNewGroup(ctx); err != nil {
		return nil, closeFailed(g, err)
	}

	if err := rt.registry.addGroup(g); err != nil {
		return nil, closeFailed(g, err)
	}

	return g, nil
}

// newGroup returns a group with a connected communicator. It sets the references between the parts
// of the Group and life.
func newGroup(
	rt *Runtime, config *driver.GroupConfig, comm driver.Communicator, life *lifetime,
) *Group {
	r := roster{
		id: config.Name(), fullID: config.ID, key: handoff.NamespaceOf("group/" + config.ID),
		ranks: config.Ranks, rank: config.Rank, limit: config.Timeout,
	}
	g := &Group{roster: r, rt: rt, comm: comm, life: life}
	state := &g.state
	g.events = &groupEvents{rt: rt, state: state}
	g.events.outbox = outbox{
		opts: &rt.opts, group: state, common: event.Event{Rank: int32(rt.rank), Group: r.id},
	}
	rt.recording.connect(&g.events.outbox)
	life.roster, life.rt, life.comm, life.state = r, rt, comm, state
	life.events = g.events
	g.comparison = &comparison{roster: r, rt: rt, comm: comm, life: life, state: state}
	g.aligner = &aligner{roster: r, rt: rt, comm: comm, life: life, comparison: g.comparison}
	g.windows.init(state)
	g.router = &router{comm: comm, ranks: len(r.ranks)}
	g.router.choice.Store(int32(rt.opts.Path))
	g.calls.init(g)
	g.groupSuspender.group = g
	g.values = &values{
		roster: r, rt: rt, comm: comm, life: life, state: state, events: g.events,
	}
	life.inquiry = &inquiry{
		roster: r, comm: comm, life: life, comparison: g.comparison, aligner: g.aligner,
		calls: &g.calls, values: g.values,
	}
	return g
}

// prepareNewGroup compares the ranks' settings, prepares the choice of paths, and realigns suspect
// pools: pools whose layout may differ between ranks after a fault. All ranks must call it.
func (g *Group) prepareNewGroup(ctx context.Context) error {
	hasSuspectPools, err := agreeOnSettings(ctx, g)
	if err != nil {
		return err
	}

	if err := checkFormula(g.rt.opts.Deterministic, g.comm, len(g.ranks)); err != nil {
		return err
	}

	if err := g.router.prepare(ctx); err != nil {
		return err
	}

	return g.aligner.realignNewGroup(ctx, hasSuspectPools)
}

// closeFailed closes a group whose creation failed with err, and returns err. It replaces a fault
// of the group by the cause on which the ranks agree.
func closeFailed(g *Group, err error) error {
	if g.life.isOwnFault(err) {
		err = g.life.inquiry.run(g.comm.Cause())
	}

	g.life.cancel(err)
	closeErr := g.comm.Close()
	return errors.Join(err, closeErr)
}
