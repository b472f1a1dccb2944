package shm

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// joinState is the state of one call of Group.join.
type joinState struct {
	g        *Group
	begin    time.Time
	joinList control.JoinList
	cancel   context.CancelCauseFunc // ends the call when a rank is lost
	// awaitedRank is the world rank that the call waits for, or -1. isExchanging is set during the
	// exchange of all ranks with which the call ends.
	awaitedRank  atomic.Int64
	isExchanging atomic.Bool
}

// awaitedRanks lists the world ranks that the call is known to wait for.
func (j *joinState) awaitedRanks() (ranks []int) {
	if rank := j.awaitedRank.Load(); rank >= 0 {
		return []int{int(rank)}
	}

	if !j.isExchanging.Load() {
		return nil
	}

	for i, b := range j.g.blocks {
		if spin.LoadAcquire64(&b.status.exchanges) == 0 {
			ranks = append(ranks, j.g.cfg.Ranks[i])
		}
	}

	return ranks
}

// join connects this rank to the other ranks of g and maps the control region, with dataBytes of
// data after the blocks. It returns when all ranks have mapped the region.
func (g *Group) join(ctx context.Context, dataBytes int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j := &joinState{
		g: g, begin: time.Now(), cancel: cancel,
		joinList: control.JoinList{Store: g.machine.cfg.Store, Group: g.cfg},
	}
	j.awaitedRank.Store(-1)
	if err := j.run(ctx, dataBytes); err != nil {
		return j.explainError(ctx, err)
	}

	return nil
}

func (j *joinState) run(ctx context.Context, dataBytes int64) error {
	defer j.joinList.StartWarnings(j.g.machine.cfg.Late, j.awaitedRanks)()
	if err := j.joinList.Add(ctx); err != nil {
		return err
	}

	if err := j.connectPeers(ctx); err != nil {
		return err
	}

	stopExport, err := j.mapRegion(ctx, roundToPages(blocksSize(len(j.g.cfg.Ranks))+dataBytes))
	if err != nil {
		return err
	}
	defer stopExport() // after countProcessors, all ranks have mapped the region
	j.awaitedRank.Store(-1)
	j.isExchanging.Store(true)
	if j.g.processors, err = j.countProcessors(ctx); err != nil {
		return err
	}

	j.g.budget = newBudget(j.g.machine, len(j.g.blocks), j.g.processors)
	return nil
}

// explainError returns an error that names the lost or late ranks that caused err, if they are
// known.
func (j *joinState) explainError(ctx context.Context, err error) error {
	if errors.As(err, new(*driver.RankLostError)) {
		return err
	}

	if lost, ok := errors.AsType[*driver.RankLostError](context.Cause(ctx)); ok {
		return lost
	}

	if errors.Is(err, handoff.ErrUnknownKey) {
		return j.explainEndedExport(err)
	}

	// The exchange may reach the deadline a moment before the context ends.
	timeoutErr, isTimeout := errors.AsType[*driver.TimeoutError](err)
	if !isTimeout && !errors.Is(ctx.Err(), context.DeadlineExceeded) &&
		!errors.Is(err, context.DeadlineExceeded) {
		return err
	}

	var awaited []int
	switch {
	case isTimeout && len(timeoutErr.Missing) == 0:
		return err // this rank was late, so the others had no time to arrive
	case isTimeout:
		awaited, err = timeoutErr.Missing, context.DeadlineExceeded
	case j.awaitedRank.Load() >= 0:
		awaited = []int{int(j.awaitedRank.Load())}
	}

	return j.joinList.TimeoutError(time.Since(j.begin), awaited, err)
}

// explainEndedExport returns the error if group rank 0 no longer exports the region, usually
// because it has timed out. The error lists other ranks for which rank 0 may have waited.
func (j *joinState) explainEndedExport(err error) error {
	firstRank := []int{j.g.cfg.Ranks[0]}
	absent := j.joinList.AbsentRanks()
	if len(absent) == 0 {
		absent = j.joinList.Blockers(firstRank)
	}

	if slices.Equal(absent, firstRank) {
		return err // only rank 0 itself is absent
	}

	return &driver.AbsentError{
		InCall: j.callText(), Waited: time.Since(j.begin).Round(time.Millisecond), Ranks: absent,
		Members: j.g.cfg.Ranks, Err: err,
	}
}

// connectPeers connects to the other ranks, one after another. If one of their processes exits
// during the call of join, join ends with a RankLostError.
func (j *joinState) connectPeers(ctx context.Context) error {
	for i, rank := range j.g.cfg.Ranks {
		if i == j.g.cfg.Rank {
			continue
		}

		j.awaitedRank.Store(int64(rank))
		p, err := j.g.machine.ensurePeer(ctx, rank)
		if err != nil {
			return err
		}

		j.g.peers[i] = p
		p.callOnExit(ctx, func() {
			j.cancel(&driver.RankLostError{
				Ranks: []int{rank}, InCall: j.callText(), Members: j.g.cfg.Ranks,
			})
		})
	}

	return nil
}

func (j *joinState) callText() string { return "joining group " + j.g.cfg.Name() }

// mapRegion maps the control region. Group rank 0 creates it and exports it to the other ranks,
// until stopExport is called.
func (j *joinState) mapRegion(
	ctx context.Context, bytes int64,
) (stopExport func(), err error) {
	key := handoff.Key{Namespace: j.g.space}
	readyKey := "shm/group/" + j.g.cfg.ID
	if j.g.cfg.Rank == 0 {
		return j.createRegion(ctx, key, readyKey, bytes)
	}

	j.awaitedRank.Store(int64(j.g.cfg.Ranks[0]))
	if _, err := j.g.machine.cfg.Store.Get(ctx, readyKey); err != nil {
		return nil, err
	}

	f, err := j.g.peers[0].fetchFile(ctx, key)
	if errors.Is(err, handoff.ErrUnknownKey) {
		// The usual reason is that a rank is lost. This rank detects that within exitDelay, and ctx
		// then ends with a better error.
		select {
		case <-ctx.Done():
		case <-time.After(exitDelay):
		}

		err = fmt.Errorf("rank %d is no longer joining this group: %w", j.g.cfg.Ranks[0], err)
	}

	if err != nil {
		return nil, err
	}

	defer f.Close()
	if size, err := sys.FileSize(f); err != nil || size != bytes {
		return nil, errors.Join(err, fmt.Errorf("the control region has %d bytes instead of %d: "+
			"ranks run different versions of symmem", size, bytes))
	}

	return func() {}, j.g.setRegion(sys.Map(f, 0, bytes))
}

// createRegion performs mapRegion on group rank 0. It sets readyKey when the region can be
// fetched.
func (j *joinState) createRegion(
	ctx context.Context, key handoff.Key, readyKey string, bytes int64,
) (stopExport func(), err error) {
	f, err := sys.Memfd("symmem-group", bytes)
	if err != nil {
		return nil, err
	}

	if err := j.g.setRegion(sys.Map(f, 0, bytes)); err != nil {
		return nil, errors.Join(err, f.Close())
	}

	j.g.machine.Export(key, f)
	stopExport = func() {
		j.g.machine.Withdraw(key)
		f.Close()
	}
	if err := j.g.machine.cfg.Store.Set(ctx, readyKey, nil); err != nil {
		stopExport()
		return nil, err
	}

	return stopExport, nil
}

func (g *Group) setRegion(m *sys.Mapping, err error) error {
	if err != nil {
		return err
	}

	g.region = m
	g.blocks = blocksIn(m.Base(), len(g.cfg.Ranks))
	g.ownBlock = g.blocks[g.cfg.Rank]
	for i, b := range g.blocks {
		if i != g.cfg.Rank {
			g.otherBlocks = append(g.otherBlocks, b)
		}
	}

	return nil
}

// countProcessors returns the number of processors on which any rank of the group may run. Its
// exchange also ensures that all ranks have mapped the region.
func (j *joinState) countProcessors(ctx context.Context) (int, error) {
	const unknownProcessors = 1
	j.g.budget = newBudget(j.g.machine, len(j.g.blocks), unknownProcessors)
	own, err := sys.AffinityMask()
	if err != nil {
		return 0, err
	}

	masks, err := j.exchangeIgnoringFaults(ctx, own)
	if err != nil {
		return 0, err
	}

	var union [sys.AffinityMaskBytes]byte
	for r, mask := range masks {
		if len(mask) != len(union) {
			return 0, fmt.Errorf("rank %d lists its processors in %d bytes instead of %d",
				j.g.cfg.Ranks[r], len(mask), len(union))
		}

		for i := range union {
			union[i] |= mask[i]
		}
	}

	count := 0
	for _, b := range union {
		count += bits.OnesCount8(b)
	}

	return count, nil
}

// exchangeIgnoringFaults performs the first exchange. It does not end when another rank fails, so
// that every rank itself detects which rank is lost or late.
func (j *joinState) exchangeIgnoringFaults(ctx context.Context, payload []byte) ([][]byte, error) {
	l := &j.g.lanes[driver.LaneControl]
	l.mu.Lock()
	defer l.mu.Unlock()
	e := exchange{
		g: j.g, laneID: driver.LaneControl, lane: l, payload: payload, ignoreFaults: true,
	}
	return e.performSteps(ctx)
}
