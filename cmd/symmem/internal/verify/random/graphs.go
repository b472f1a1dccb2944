package random

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem"
)

const maxGraphs = 3 // limit of len(graphs.recordings)

// graphs captures, replays and closes the graphs of a round. All ranks make the same random
// choices.
type graphs struct {
	env           *environment
	choices       *choices
	buffers       *buffers
	groups        *groups
	calls         *calls
	tally         *Tally
	recordings    []*recording // the open graphs
	onlySameGroup bool         // whether only graphs of the same group may be replayed concurrently
}

// capture captures a graph of up to three calls. If there are maxGraphs graphs, it replays one of
// them instead.
func (gs *graphs) capture(ctx context.Context) error {
	if len(gs.recordings) >= maxGraphs {
		return gs.replay(ctx)
	}
	rec := &recording{group: gs.groups.drawIndex()}
	s, p := choose(gs.choices, gs.env.streams), choose(gs.choices, gs.buffers.pools)
	callCount := 1 + gs.choices.IntN(3)
	mustRegister := gs.choices.isOneIn(2) // register the buffers before the capture
	for range callCount {
		if err := gs.addCall(rec, s, p); err != nil {
			return err
		}
	}
	if g := gs.groups.all[rec.group]; g != nil && mustRegister {
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
	gs.recordings = append(gs.recordings, rec)
	gs.tally.Graphs++
	return gs.freeSome(rec)
}

func (gs *graphs) addCall(rec *recording, s *symmem.Stream, p *symmem.Pool) error {
	bytes := gs.choices.drawSize()
	call := gs.calls.drawCall(rec.group, bytes)
	if call.Operation == symmem.OpSend { // not captured
		call.Operation = symmem.OpAllGather
	}
	return rec.addCall(call, s, p, bytes)
}

// freeSome frees a random half of the buffers of a graph's calls. The pool must not reuse their
// memory before the graph is closed. A graph of another library needs its buffers.
func (gs *graphs) freeSome(rec *recording) error {
	if rec.capturedByLibrary {
		return nil
	}
	kept := rec.liveBuffers[:0]
	for _, b := range rec.liveBuffers {
		if gs.choices.isOneIn(2) {
			kept = append(kept, b)
		} else if err := b.Free(); err != nil {
			return err
		}
	}
	rec.liveBuffers = kept
	return nil
}

func (gs *graphs) replay(ctx context.Context) error {
	if len(gs.recordings) == 0 {
		return nil
	}
	return gs.replayGraph(ctx, choose(gs.choices, gs.recordings), 1+gs.choices.IntN(8))
}

func (gs *graphs) replayAll(ctx context.Context) error {
	for _, rec := range gs.recordings {
		if err := gs.replayGraph(ctx, rec, 1); err != nil {
			return err
		}
	}
	return nil
}

// replayGraph launches a graph several times, and checks the results of the last launch.
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
	if err := rec.readResults(s); err != nil {
		return err
	}
	if err := s.Synchronize(ctx); err != nil {
		return fmt.Errorf("replaying %d calls: %w", len(rec.calls), err)
	}
	gs.checkReplayedOutputs(rec, times, "replayed, ")
	return nil
}

func (gs *graphs) streamFor(rec *recording) *symmem.Stream {
	if rec.capturedByLibrary {
		return choose(gs.choices, gs.env.library.Streams)
	}
	return choose(gs.choices, gs.env.streams)
}

// checkReplayedOutputs checks the results that readResults has read after the given number of
// launches. prefix is for the texts of wrong results.
func (gs *graphs) checkReplayedOutputs(rec *recording, times int, prefix string) {
	for _, call := range rec.calls {
		gs.calls.checkOutput(call, prefix)
	}
	gs.tally.Replays += int64(times)
}

// replayConcurrently launches the graphs and a call in random order on random streams. Nothing
// orders the streams, so symmem must order the calls of each group.
func (gs *graphs) replayConcurrently(ctx context.Context) error {
	if len(gs.recordings) == 0 {
		return nil
	}
	order := gs.choices.Perm(len(gs.recordings)) // indexes of the graphs to launch
	group := gs.groups.drawIndex()
	if gs.onlySameGroup {
		group = gs.recordings[order[0]].group
		order = slices.DeleteFunc(order, func(index int) bool {
			return gs.recordings[index].group != group
		})
	}
	call, err := gs.calls.drawCallOnBuffers(group, gs.buffers.drawBuffers(2))
	if err != nil {
		return err
	}
	streams := make([]*symmem.Stream, len(gs.recordings)) // by index of the graph
	for _, index := range order {
		streams[index] = gs.streamFor(gs.recordings[index])
		if err := gs.recordings[index].overwriteResults(streams[index]); err != nil {
			return err
		}
	}
	times := 1 + gs.choices.IntN(8)
	callPosition := gs.choices.IntN(len(order) + 1) // at len(order), the call is not made
	for i, index := range order {
		if call != nil && i == callPosition {
			gs.calls.drawStreams(call)
			if err := gs.calls.queue(ctx, call); err != nil {
				return err
			}
		}
		for range times {
			if err := gs.recordings[index].graph.Launch(streams[index]); err != nil {
				return err
			}
		}
	}
	for _, index := range order {
		if err := gs.recordings[index].readResults(streams[index]); err != nil {
			return err
		}
	}
	if err := gs.env.synchronize(ctx); err != nil {
		return fmt.Errorf("replaying %d graphs: %w", len(order), err)
	}
	for _, index := range order {
		gs.checkReplayedOutputs(gs.recordings[index], times, "replayed with other graphs, ")
	}
	if call != nil && callPosition < len(order) {
		gs.calls.checkOutput(call, "between replays, ")
	}
	return nil
}

func (gs *graphs) closeOne(ctx context.Context) error {
	if len(gs.recordings) == 0 {
		return nil
	}
	drawn := choose(gs.choices, gs.recordings)
	return gs.close(ctx, func(rec *recording) bool { return rec == drawn })
}

// close waits for all streams, closes the graphs for which match returns true, or all graphs if
// match is nil, and frees their buffers.
func (gs *graphs) close(ctx context.Context, match func(*recording) bool) error {
	if err := gs.env.synchronize(ctx); err != nil {
		return err
	}
	var errs []error
	gs.recordings = slices.DeleteFunc(gs.recordings, func(rec *recording) bool {
		if match != nil && !match(rec) {
			return false
		}
		errs = append(errs, rec.close())
		return true
	})
	return errors.Join(errs...)
}

// recordOn captures the calls of rec on s, and sets rec.graph. If s is a stream of env.library,
// the library makes the capture.
func (gs *graphs) recordOn(ctx context.Context, rec *recording, s *symmem.Stream) error {
	var err error
	rec.capturedByLibrary = gs.env.library != nil && slices.Contains(gs.env.library.Streams, s)
	if rec.capturedByLibrary {
		rec.graph, err = gs.env.library.Capture([]*symmem.Stream{s}, func() error {
			return rec.queueCalls(ctx, s)
		})
	} else {
		rec.graph, err = rec.capture(ctx, s)
	}
	if err != nil {
		return fmt.Errorf("capturing %d calls: %w", len(rec.calls), err)
	}
	return nil
}

func (gs *graphs) closeForGroup(ctx context.Context, group int) error {
	return gs.close(ctx, func(rec *recording) bool { return rec.group == group })
}

// removeGroupIndex decrements the group indexes above index, because the group at index has been
// removed from groups.all.
func (gs *graphs) removeGroupIndex(index int) {
	for _, rec := range gs.recordings {
		if rec.group > index {
			rec.group--
		}
	}
}
