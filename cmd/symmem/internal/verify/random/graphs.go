package random

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem"
)

const maxGraphs = 3

type graphs struct {
	world   *world
	draws   *draws
	buffers *buffers
	groups  *groups
	calls   *calls
	tally   *Tally
	all     []*recording
	// If oneGroup is set, graphs are replayed concurrently only if they belong to the same group.
	oneGroup bool
}

// capture captures a graph of up to three calls. If there are already maxGraphs graphs, it replays
// one of them.
func (gs *graphs) capture(ctx context.Context) error {
	if len(gs.all) >= maxGraphs {
		return gs.replay(ctx)
	}
	rec := &recording{group: gs.groups.index()}
	s, p := choose(gs.draws, gs.world.streams), choose(gs.draws, gs.buffers.pools)
	calls := 1 + gs.draws.IntN(3)
	register := gs.draws.chance(2)
	for range calls {
		if err := gs.addCall(rec, s, p); err != nil {
			return err
		}
	}
	if g := gs.groups.all[rec.group]; g != nil && register {
		if err := p.Register(ctx, g); err != nil {
			return err
		}
	}
	if err := s.Synchronize(ctx); err != nil {
		return err
	}
	if err := gs.recordOn(ctx, rec, s); err != nil {
		return err
	}
	gs.all = append(gs.all, rec)
	gs.tally.Graphs++
	return gs.freeSome(rec)
}

func (gs *graphs) addCall(rec *recording, s *symmem.Stream, p *symmem.Pool) error {
	bytes := gs.draws.size()
	call := gs.calls.drawCall(rec.group, bytes)
	if call.Operation == symmem.OpSend {
		call.Operation = symmem.OpAllGather
	}
	return rec.add(call, s, p, bytes)
}

// freeSome frees random buffers that a graph uses.
func (gs *graphs) freeSome(rec *recording) error {
	if rec.byLibrary {
		return nil
	}
	live := rec.live[:0]
	for _, b := range rec.live {
		if gs.draws.chance(2) {
			live = append(live, b)
		} else if err := b.Free(); err != nil {
			return err
		}
	}
	rec.live = live
	return nil
}

func (gs *graphs) replay(ctx context.Context) error {
	if len(gs.all) == 0 {
		return nil
	}
	return gs.replayGraph(ctx, choose(gs.draws, gs.all), 1+gs.draws.IntN(8))
}

func (gs *graphs) replayAll(ctx context.Context) error {
	for _, rec := range gs.all {
		if err := gs.replayGraph(ctx, rec, 1); err != nil {
			return err
		}
	}
	return nil
}

func (gs *graphs) replayGraph(ctx context.Context, rec *recording, times int) error {
	s := gs.streamFor(rec)
	if err := rec.overwriteResults(s); err != nil {
		return err
	}
	for range times {
		if err := rec.graph.Launch(s); err != nil {
			return err
		}
	}
	if err := rec.read(s); err != nil {
		return err
	}
	if err := s.Synchronize(ctx); err != nil {
		return fmt.Errorf("replaying %d calls: %w", len(rec.calls), err)
	}
	gs.verifyReplayed(rec, times, "replayed, ")
	return nil
}

func (gs *graphs) streamFor(rec *recording) *symmem.Stream {
	if rec.byLibrary {
		return choose(gs.draws, gs.world.library.Streams)
	}
	return choose(gs.draws, gs.world.streams)
}

// verifyReplayed checks the results of a replayed graph.
func (gs *graphs) verifyReplayed(rec *recording, times int, prefix string) {
	for _, call := range rec.calls {
		gs.calls.verify(call, prefix)
	}
	gs.tally.Replays += int64(times)
}

// overlap launches several graphs and a call on random streams, and then waits for all of them. The
// program does not order these launches, so symmem must order the calls of each group.
func (gs *graphs) overlap(ctx context.Context) error {
	if len(gs.all) == 0 {
		return nil
	}
	order, group := gs.draws.Perm(len(gs.all)), gs.groups.index()
	if gs.oneGroup {
		group = gs.all[order[0]].group
		order = slices.DeleteFunc(order, func(index int) bool { return gs.all[index].group != group })
	}
	call, err := gs.calls.drawCallOnBuffers(group, gs.buffers.pick(2))
	if err != nil {
		return err
	}
	streams := make([]*symmem.Stream, len(gs.all))
	for _, index := range order {
		streams[index] = gs.streamFor(gs.all[index])
		if err := gs.all[index].overwriteResults(streams[index]); err != nil {
			return err
		}
	}
	times, callPosition := 1+gs.draws.IntN(8), gs.draws.IntN(len(order)+1)
	for i, index := range order {
		if call != nil && i == callPosition {
			gs.calls.drawStreams(call)
			if err := gs.calls.queue(ctx, call); err != nil {
				return err
			}
		}
		for range times {
			if err := gs.all[index].graph.Launch(streams[index]); err != nil {
				return err
			}
		}
	}
	for _, index := range order {
		if err := gs.all[index].read(streams[index]); err != nil {
			return err
		}
	}
	if err := gs.world.synchronize(ctx); err != nil {
		return fmt.Errorf("replaying %d graphs: %w", len(order), err)
	}
	for _, index := range order {
		gs.verifyReplayed(gs.all[index], times, "replayed with other graphs, ")
	}
	if call != nil && callPosition < len(order) {
		gs.calls.verify(call, "between replays, ")
	}
	return nil
}

func (gs *graphs) closeOne(ctx context.Context) error {
	if len(gs.all) == 0 {
		return nil
	}
	drawn := choose(gs.draws, gs.all)
	return gs.close(ctx, func(rec *recording) bool { return rec == drawn })
}

// close closes the graphs for which match returns true, and frees their buffers. A nil match stands
// for all graphs.
func (gs *graphs) close(ctx context.Context, match func(*recording) bool) error {
	if err := gs.world.synchronize(ctx); err != nil {
		return err
	}
	var errs []error
	gs.all = slices.DeleteFunc(gs.all, func(rec *recording) bool {
		if match != nil && !match(rec) {
			return false
		}
		errs = append(errs, rec.close())
		return true
	})
	return errors.Join(errs...)
}

// recordOn captures the calls of rec on s. If s belongs to the other library, that library makes
// the capture.
func (gs *graphs) recordOn(ctx context.Context, rec *recording, s *symmem.Stream) error {
	var err error
	rec.byLibrary = gs.world.library != nil && slices.Contains(gs.world.library.Streams, s)
	if rec.byLibrary {
		rec.graph, err = gs.world.library.Capture([]*symmem.Stream{s}, func() error {
			return rec.queue(ctx, s)
		})
	} else {
		rec.graph, err = rec.record(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("capturing %d calls: %w", len(rec.calls), err)
	}
	return nil
}

func (gs *graphs) closeForGroup(ctx context.Context, group int) error {
	return gs.close(ctx, func(rec *recording) bool { return rec.group == group })
}

// removeGroupIndex updates group indexes after the group at index has been removed.
func (gs *graphs) removeGroupIndex(index int) {
	for _, rec := range gs.all {
		if rec.group > index {
			rec.group--
		}
	}
}
