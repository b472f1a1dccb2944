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

// capture captures a graph of one to three calls of one group. If there are maxGraphs graphs, it
// replays one of them instead.
func (gs *graphs) capture(ctx context.Context) error {
	if len(gs.recordings) >= maxGraphs {
		return gs.replay(ctx)
	}

	rec := &recording{group: gs.groups.drawIndex()}
	s := choose(gs.choices, gs.env.streams)
	p := choose(gs.choices, gs.buffers.pools)
	callCount := 1 + gs.choices.IntN(3)
	mustRegister := gs.choices.isOneIn(2) // register the buffers before the capture
	for range callCount {
		if err := gs.addCall(rec, s, p); err != nil {
			return err
		}
	}

	g := gs.groups.all[rec.group] // nil if this rank is not a member
	if g != nil && mustRegister {
		if err := p.Register(ctx, g); err != nil {
			return err
		}
	}

	if err := s.Synchronize(ctx); err != nil {
		return err
	}

	if err := gs.captureOn(ctx, rec, s); err != nil {
		return err
	}

	gs.recordings = append(gs.recordings, rec)
	gs.tally.Graphs++
	return gs.freeSome(rec)
}

// addCall adds a random call on s to a recording, with buffers from p.
func (gs *graphs) addCall(rec *recording, s *symmem.Stream, p *symmem.Pool) error {
	bytes := gs.choices.drawSize()
	call := gs.calls.drawCall(rec.group, bytes)
	if call.Operation == symmem.OpSend { // graphs contain only collectives
		call.Operation = symmem.OpAllGather
	}

	return rec.addCall(call, s, p, bytes)
}

// freeSome frees a random half of the buffers of a graph's calls. The pool must not reuse their
// memory before the graph is closed, so replays must still be right. If another library has
// captured the graph, the pool does not know that the graph uses the buffers. freeSome then frees
// none of them.
func (gs *graphs) freeSome(rec *recording) error {
	if rec.capturedByLibrary {
		return nil
	}

	kept := rec.liveBuffers[:0] // reuses the array, whose entries are read before it is written
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

// replay replays a random graph up to eight times, and checks its results.
func (gs *graphs) replay(ctx context.Context) error {
	if len(gs.recordings) == 0 {
		return nil
	}

	rec := choose(gs.choices, gs.recordings)
	times := 1 + gs.choices.IntN(8)
	return gs.replayGraph(ctx, rec, times)
}

// replayAll replays each graph once, and checks its results.
func (gs *graphs) replayAll(ctx context.Context) error {
	const times = 1
	for _, rec := range gs.recordings {
		if err := gs.replayGraph(ctx, rec, times); err != nil {
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

// streamFor draws a stream on which a graph may be launched.
func (gs *graphs) streamFor(rec *recording) *symmem.Stream {
	if rec.capturedByLibrary {
		return choose(gs.choices, gs.env.library.Streams)
	}

	return choose(gs.choices, gs.env.streams)
}

// checkReplayedOutputs checks the results that readResults has read after the given number of
// launches. In findings, prefix states how the graph was launched.
func (gs *graphs) checkReplayedOutputs(rec *recording, times int, prefix string) {
	for _, call := range rec.calls {
		gs.calls.checkOutput(call, prefix)
	}

	gs.tally.Replays += int64(times)
}

// replayConcurrently launches graphs in random order on random streams. It also makes a call before
// one of them. Nothing orders the streams, so symmem must order the calls of each group.
func (gs *graphs) replayConcurrently(ctx context.Context) error {
	if len(gs.recordings) == 0 {
		return nil
	}

	launched, group := gs.drawConcurrent()
	call, err := gs.calls.drawCallOnBuffers(group, gs.buffers.drawBuffers(2)) // nil without buffers
	if err != nil {
		return err
	}

	var streams []*symmem.Stream // streams[i] is for launched[i]
	for _, rec := range launched {
		s := gs.streamFor(rec)
		streams = append(streams, s)
		if err := rec.overwriteResults(s); err != nil {
			return err
		}
	}

	times := 1 + gs.choices.IntN(8)
	callPosition := gs.choices.IntN(len(launched) + 1)
	if callPosition == len(launched) {
		call = nil // make no call
	}

	for i, rec := range launched {
		if call != nil && i == callPosition {
			gs.calls.drawStreams(call)
			if err := gs.calls.queue(ctx, call); err != nil {
				return err
			}
		}

		for range times {
			if err := rec.graph.Launch(streams[i]); err != nil {
				return err
			}
		}
	}

	for i, rec := range launched {
		if err := rec.readResults(streams[i]); err != nil {
			return err
		}
	}

	if err := gs.env.synchronize(ctx); err != nil {
		return fmt.Errorf("replaying %d graphs: %w", len(launched), err)
	}

	for _, rec := range launched {
		gs.checkReplayedOutputs(rec, times, "replayed with other graphs, ")
	}

	if call != nil {
		gs.calls.checkOutput(call, "between replays, ")
	}

	return nil
}

// drawConcurrent draws the graphs that replayConcurrently launches, in this order, and the index of
// the group for its call. There must be at least one graph.
func (gs *graphs) drawConcurrent() (launched []*recording, group int) {
	for _, i := range gs.choices.Perm(len(gs.recordings)) {
		launched = append(launched, gs.recordings[i])
	}

	group = gs.groups.drawIndex()
	if gs.onlySameGroup {
		group = launched[0].group
		launched = slices.DeleteFunc(launched, func(rec *recording) bool {
			return rec.group != group
		})
	}

	return launched, group
}

// closeOne closes a random graph.
func (gs *graphs) closeOne(ctx context.Context) error {
	if len(gs.recordings) == 0 {
		return nil
	}

	drawn := choose(gs.choices, gs.recordings)
	return gs.closeMatching(ctx, func(rec *recording) bool { return rec == drawn })
}

// closeAll closes all graphs.
func (gs *graphs) closeAll(ctx context.Context) error {
	return gs.closeMatching(ctx, func(*recording) bool { return true })
}

// closeMatching waits for all streams. It then closes the graphs for which match returns true, and
// frees their buffers.
func (gs *graphs) closeMatching(ctx context.Context, match func(*recording) bool) error {
	if err := gs.env.synchronize(ctx); err != nil {
		return err
	}

	var kept []*recording
	var errs []error
	for _, rec := range gs.recordings {
		if match(rec) {
			errs = append(errs, rec.close())
		} else {
			kept = append(kept, rec)
		}
	}

	gs.recordings = kept
	return errors.Join(errs...)
}

// captureOn captures the calls of rec on s, and sets rec.graph and rec.capturedByLibrary. If s is a
// stream of another library, that library makes the capture.
func (gs *graphs) captureOn(ctx context.Context, rec *recording, s *symmem.Stream) error {
	var err error
	library := gs.env.library // nil on the host backend
	rec.capturedByLibrary = library != nil && slices.Contains(library.Streams, s)
	if rec.capturedByLibrary {
		rec.graph, err = library.Capture([]*symmem.Stream{s}, func() error {
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

// closeForGroup closes the graphs of the group at an index of groups.all.
func (gs *graphs) closeForGroup(ctx context.Context, group int) error {
	return gs.closeMatching(ctx, func(rec *recording) bool { return rec.group == group })
}

// removeGroupIndex must be called after the group at index has been removed from groups.all, and
// its graphs have been closed. The later groups have moved down by one.
func (gs *graphs) removeGroupIndex(index int) {
	for _, rec := range gs.recordings {
		if rec.group > index {
			rec.group--
		}
	}
}
