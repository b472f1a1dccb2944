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

type joinState struct {
	g        *Group
	begin    time.Time
	joinList control.JoinList
	cancel   context.CancelCauseFunc
	// awaitedRank is the world rank that Join waits for, or -1. isExchanging is set in the first
	// exchange, which waits for all ranks.
	awaitedRank  atomic.Int64
	isExchanging atomic.Bool
}

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
	defer stopExport() // all ranks have then mapped the region
	j.awaitedRank.Store(-1)
	j.isExchanging.Store(true)
	if j.g.processors, err = j.countProcessors(ctx); err != nil {
		return err
	}
	j.g.budget = newBudget(j.g.machine, len(j.g.blocks), j.g.processors)
	return nil
}

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
	case isTimeout && len(timeoutErr.Missing) == 0: // this rank was late itself
		return err
	case isTimeout:
		awaited, err = timeoutErr.Missing, context.DeadlineExceeded
	case j.awaitedRank.Load() >= 0:
		awaited = []int{int(j.awaitedRank.Load())}
	}
	return j.joinList.TimeoutError(time.Since(j.begin), awaited, err)
}

// explainEndedExport is for a rank 0 that no longer exports the region, usually because it has
// timed out. The error lists a third rank that may be the reason.
func (j *joinState) explainEndedExport(err error) error {
	firstRank := []int{j.g.cfg.Ranks[0]}
	absent := j.joinList.AbsentRanks()
	if len(absent) == 0 {
		absent = j.joinList.Blockers(firstRank)
	}
	if slices.Equal(absent, firstRank) {
		return err // no third rank is absent
	}
	return &driver.AbsentError{
		InCall: j.callText(), Waited: time.Since(j.begin).Round(time.Millisecond), Ranks: absent,
		Members: j.g.cfg.Ranks, Err: err,
	}
}

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

// mapRegion maps the control region, which group rank 0 creates and exports until stopExport is
// called.
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
		// Usually a rank is lost, which this rank detects within exitDelay.
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

// After the exchange in countProcessors, all ranks have mapped the region.
func (j *joinState) countProcessors(ctx context.Context) (int, error) {
	j.g.budget = newBudget(j.g.machine, len(j.g.blocks), 1)
	own, err := sys.AffinityMask()
	if err != nil {
		return 0, err
	}
	all, err := j.exchangeIgnoringFaults(ctx, own)
	if err != nil {
		return 0, err
	}
	var union [sys.AffinityMaskBytes]byte
	for r, mask := range all {
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

// exchangeIgnoringFaults performs the first exchange, which other ranks' faults do not end: each
// rank detects which rank is lost or late.
func (j *joinState) exchangeIgnoringFaults(ctx context.Context, payload []byte) ([][]byte, error) {
	l := &j.g.lanes[driver.LaneControl]
	l.mu.Lock()
	defer l.mu.Unlock()
	e := exchange{
		g: j.g, laneID: driver.LaneControl, lane: l, payload: payload, ignoreFaults: true,
	}
	return e.performSteps(ctx)
}
