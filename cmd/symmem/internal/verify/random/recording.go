package random

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// recording is a graph of calls. Each call reads memory that was written before the capture, and
// its result is copied to another buffer. The buffers of the calls may be freed while the graph
// lives; they must not be allocated again until it is closed.
type recording struct {
	graph graph
	// owned marks a graph of the library, which is launched on its streams and pins no buffers.
	owned bool
	// number is the index of the group, calls are the captured calls, outs the buffers of results.
	number int
	calls  []*exchange
	outs   []symmem.Buffer
	held   []symmem.Buffer
}

// graph is a graph of symmem or of the library.
type graph interface {
	Launch(s *symmem.Stream) error
	Close() error
}

// capture records a graph of up to three calls.
func (r *round) capture(ctx context.Context) error {
	if len(r.graphs) >= liveGraphs {
		return r.replay(ctx)
	}
	rec := &recording{number: r.draws.IntN(len(r.groups))}
	s, p, calls := one(r, r.streams), one(r, r.pools), 1+r.draws.IntN(3)
	register := r.chance(2)
	for range calls {
		if err := r.stage(rec, s, p); err != nil {
			return err
		}
	}
	if g := r.groups[rec.number]; g != nil && register {
		if err := p.Register(ctx, g); err != nil {
			return err
		}
	}
	if err := s.Synchronize(ctx); err != nil {
		return err
	}
	if err := r.recordOn(ctx, rec, s); err != nil {
		return err
	}
	r.graphs = append(r.graphs, rec)
	r.tally.Graphs++
	return r.release(rec)
}

// stage draws a call, allocates its buffers and writes its input.
func (r *round) stage(rec *recording, s *symmem.Stream, p *symmem.Pool) error {
	bytes := r.size()
	e := r.drawCall(rec.number, bytes)
	if e.Operation == symmem.OpSend {
		e.Operation = symmem.OpAllGather
	}
	return rec.add(e, s, p, bytes)
}

// add allocates the buffers of a call and writes its input.
func (rec *recording) add(
	e *exchange, s *symmem.Stream, p *symmem.Pool, bytes int64,
) error {
	var made [3]symmem.Buffer
	for i := range made {
		var err error
		if made[i], err = p.AllocOn(s, bytes); err != nil {
			return err
		}
	}
	if err := e.Place(made[0].Memory(), made[1].Memory()); err != nil {
		return err
	}
	e.from, e.on = s, s
	rec.calls, rec.outs = append(rec.calls, e), append(rec.outs, made[2])
	rec.held = append(rec.held, made[0], made[1])
	return e.Fill(e.from)
}

// record captures the calls.
func (rec *recording) record(ctx context.Context, s *symmem.Stream) (graph, error) {
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}
	failed := rec.queue(ctx, s)
	g, err := s.EndCapture()
	if err := errors.Join(failed, err); err != nil {
		return nil, err
	}
	return g, nil
}

// queue makes the calls on a stream in capture.
func (rec *recording) queue(ctx context.Context, s *symmem.Stream) error {
	for i, e := range rec.calls {
		if err := rec.call(ctx, e, rec.outs[i], s); err != nil {
			return err
		}
	}
	return nil
}

// call captures one call and the copy of its result.
func (rec *recording) call(
	ctx context.Context, e *exchange, out symmem.Buffer, s *symmem.Stream,
) error {
	to, err := out.Memory().Slice(0, e.Recv.Bytes())
	if err != nil {
		return err
	}
	if err := e.touch(to, s); err != nil {
		return err
	}
	if err := e.launch(ctx); err != nil {
		return fmt.Errorf("%v: %w", e.describe(), err)
	}
	return s.Copy(to, e.Recv)
}

// touch overwrites the output, and copies a byte of the input into the buffer of the result. So the
// graph pins the same buffers in the same order on ranks outside the group.
func (e *exchange) touch(to symmem.Memory, s *symmem.Stream) error {
	from, fromErr := e.Send.Slice(0, 1)
	to, toErr := to.Slice(0, 1)
	if err := errors.Join(fromErr, toErr); err != nil {
		return err
	}
	return errors.Join(s.Fill(e.Recv, workload.Junk), s.Copy(to, from))
}

// release frees some buffers that the graph pins.
func (r *round) release(rec *recording) error {
	if rec.owned {
		return nil
	}
	kept := rec.held[:0]
	for _, b := range rec.held {
		if r.chance(2) {
			kept = append(kept, b)
		} else if err := b.Free(); err != nil {
			return err
		}
	}
	rec.held = kept
	return nil
}

// replay launches a graph up to eight times and checks the results.
func (r *round) replay(ctx context.Context) error {
	if len(r.graphs) == 0 {
		return nil
	}
	return r.replayOf(ctx, one(r, r.graphs), 1+r.draws.IntN(8))
}

func (r *round) replayOf(ctx context.Context, rec *recording, times int) error {
	s := r.streamFor(rec)
	if err := rec.spoil(s); err != nil {
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
	r.verifyReplayed(rec, times, "replayed, ")
	return nil
}

// streamFor draws a stream on which a graph can be launched.
func (r *round) streamFor(rec *recording) *symmem.Stream {
	if rec.owned {
		return one(r, r.library.Streams)
	}
	return one(r, r.streams)
}

// spoil overwrites the results of earlier launches.
func (rec *recording) spoil(s *symmem.Stream) error {
	var errs []error
	for _, out := range rec.outs {
		errs = append(errs, s.Fill(out.Memory(), ^byte(workload.Junk)))
	}
	return errors.Join(errs...)
}

// read queues the copies of the results. They may wait for the stream.
func (rec *recording) read(s *symmem.Stream) error {
	for i, e := range rec.calls {
		from, err := rec.outs[i].Memory().Slice(0, e.Recv.Bytes())
		if err != nil {
			return err
		}
		e.Got = make([]byte, from.Bytes())
		if err := s.Copy(symmem.Host(e.Got), from); err != nil {
			return err
		}
	}
	return nil
}

func (r *round) verifyReplayed(rec *recording, times int, how string) {
	for _, e := range rec.calls {
		r.verify(e, how)
	}
	r.tally.Replays += int64(times)
}

// overlap launches several graphs on drawn streams, and a call, before it waits for any. The calls
// of a group must run one after the other.
func (r *round) overlap(ctx context.Context) error {
	if len(r.graphs) == 0 {
		return nil
	}
	order, number := r.draws.Perm(len(r.graphs)), r.draws.IntN(len(r.groups))
	if r.config.SharedGPUs {
		number = r.graphs[order[0]].number
		order = slices.DeleteFunc(order, func(at int) bool { return r.graphs[at].number != number })
	}
	e, err := r.drawExchange(number, r.pick(2))
	if err != nil {
		return err
	}
	on := make([]*symmem.Stream, len(r.graphs))
	for _, at := range order {
		on[at] = r.streamFor(r.graphs[at])
		if err := r.graphs[at].spoil(on[at]); err != nil {
			return err
		}
	}
	times, call := 1+r.draws.IntN(8), r.draws.IntN(len(order)+1)
	for i, at := range order {
		if e != nil && i == call {
			e.from, e.on = one(r, r.streams), one(r, r.streams)
			if err := r.queue(ctx, e); err != nil {
				return err
			}
		}
		for range times {
			if err := r.graphs[at].graph.Launch(on[at]); err != nil {
				return err
			}
		}
	}
	for _, at := range order {
		if err := r.graphs[at].read(on[at]); err != nil {
			return err
		}
	}
	if err := r.synchronize(ctx); err != nil {
		return fmt.Errorf("replaying %d graphs at once: %w", len(order), err)
	}
	for _, at := range order {
		r.verifyReplayed(r.graphs[at], times, "replayed at once with others, ")
	}
	if e != nil && call < len(order) {
		r.verify(e, "between replays, ")
	}
	return nil
}

// closeGraph closes a graph, if there is one.
func (r *round) closeGraph(ctx context.Context) error {
	if len(r.graphs) == 0 {
		return nil
	}
	drawn := one(r, r.graphs)
	return r.closeGraphs(ctx, func(rec *recording) bool { return rec == drawn })
}

// closeGraphs closes the chosen graphs, or all if chosen is nil, and frees their buffers.
func (r *round) closeGraphs(ctx context.Context, chosen func(*recording) bool) error {
	if err := r.synchronize(ctx); err != nil {
		return err
	}
	var errs []error
	r.graphs = slices.DeleteFunc(r.graphs, func(rec *recording) bool {
		if chosen != nil && !chosen(rec) {
			return false
		}
		errs = append(errs, rec.close())
		return true
	})
	return errors.Join(errs...)
}

// close closes the graph and frees its buffers.
func (rec *recording) close() error {
	errs := []error{rec.graph.Close()}
	for _, b := range append(rec.outs, rec.held...) {
		errs = append(errs, b.Free())
	}
	return errors.Join(errs...)
}

// recordOn captures on a stream. The library captures on its own streams.
func (r *round) recordOn(ctx context.Context, rec *recording, s *symmem.Stream) error {
	var err error
	rec.owned = r.library != nil && slices.Contains(r.library.Streams, s)
	if rec.owned {
		rec.graph, err = r.library.Capture([]*symmem.Stream{s}, func() error {
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
