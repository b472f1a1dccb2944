package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem"
	"symmem/internal/cuda"
)

// replayer is a rank that runs programs of graphs. It has streams, graphs and memory of its own
// from CUDA, as PyTorch would.
type replayer struct {
	ctx     context.Context
	rt      *symmem.Runtime
	pool    *symmem.Pool
	gpu     *cuda.Driver
	device  cuda.Device
	theirs  [theirStreams]cuda.Stream
	streams [graphStreams]*symmem.Stream
}

// playing is a program that runs.
type playing struct {
	*replayer
	*graphsProgram
	buffers []symmem.Buffer
	foreign []uintptr
	memory  []symmem.Memory
	own     []*symmem.Graph
	execs   []cuda.GraphExec
}

func openReplayer(ctx context.Context) (*replayer, error) {
	rt, err := symmem.Open(ctx, symmem.Options{
		Backend: "nccl", Check: symmem.CheckEvery, Timeout: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	p := &replayer{ctx: ctx, rt: rt}
	if p.gpu, err = cuda.Load(); err != nil {
		return nil, err
	}
	if p.device, err = p.gpu.Device(rt.Interop().Ordinal()); err != nil {
		return nil, err
	}
	primary, err := p.device.RetainPrimary()
	if err != nil {
		return nil, err
	}
	p.gpu = p.gpu.In(primary)
	for i := range p.streams {
		if i >= theirStreams {
			p.streams[i], err = rt.NewStream()
		} else if p.theirs[i], err = p.gpu.StreamCreate(); err == nil {
			p.streams[i], err = rt.Interop().AdoptStream(uintptr(p.theirs[i]))
		}
		if err != nil {
			return nil, err
		}
	}
	p.pool, err = rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	return p, err
}

func (p *replayer) close() error {
	err := p.rt.Close()
	for _, s := range p.theirs {
		err = errors.Join(err, p.gpu.StreamDestroy(s))
	}
	return errors.Join(err, p.device.ReleasePrimary())
}

// run runs a program, and looks at what has come of it.
func (p *replayer) run(program *graphsProgram) error {
	if err := p.rt.World().SetPath(p.ctx, program.path); err != nil {
		return err
	}
	q := &playing{replayer: p, graphsProgram: program}
	err := q.prepare()
	for i := 0; err == nil && i < len(q.graphs); i++ {
		if err = q.capture(i); err != nil {
			err = fmt.Errorf("capturing graph %d: %w", i, err)
		}
	}
	for i, a := range q.acts {
		if err == nil {
			if err = q.act(a); err != nil {
				err = fmt.Errorf("act %d: %w", i, err)
			}
		}
	}
	if err == nil {
		err = errors.Join(q.synchronize(), q.look())
	}
	return errors.Join(err, q.release())
}

func (p *replayer) synchronize() error {
	var errs []error
	for i, s := range p.streams {
		if err := s.Synchronize(p.ctx); err != nil {
			errs = append(errs, fmt.Errorf("stream %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// prepare makes the tallies, and adds to each once.
func (q *playing) prepare() error {
	ranks := int64(q.rt.Size())
	for i, t := range q.tallies {
		bytes := 4 * t.count * ranks
		if err := q.alloc(t, bytes); err != nil {
			return err
		}
		image := slices.Repeat([]int32{t.unit}, int(t.count*ranks))
		s := q.streams[theirStreams]
		err := errors.Join(s.Copy(q.memory[i], symmem.Host(image)), s.Synchronize(q.ctx))
		if err == nil {
			err = errors.Join(q.add(recordedCall{theirStreams, i}), s.Synchronize(q.ctx))
		}
		if err != nil {
			return fmt.Errorf("preparing tally %d: %w", i, err)
		}
	}
	return nil
}

func (q *playing) alloc(t tally, bytes int64) error {
	if t.foreign {
		on := q.theirs[0]
		at, err := q.gpu.MemAllocAsync(bytes, on)
		if err != nil {
			return err
		}
		q.foreign = append(q.foreign, at)
		q.memory = append(q.memory, symmem.Interop{}.Memory(at, bytes))
		return q.gpu.StreamSynchronize(on)
	}
	b, err := q.pool.AllocOn(q.streams[0], bytes)
	if err != nil {
		return err
	}
	for _, s := range q.streams {
		err = errors.Join(err, b.UseOn(s))
	}
	m, failed := b.Memory().Slice(0, bytes)
	q.buffers, q.memory = append(q.buffers, b), append(q.memory, m)
	return errors.Join(err, failed)
}

// add makes a call, or puts it into the capture that its stream is in.
func (q *playing) add(c recordedCall) error {
	bytes := 4 * q.tallies[c.tally].count
	own, err := q.memory[c.tally].Slice(int64(q.rt.Rank())*bytes, bytes)
	if err != nil {
		return err
	}
	return q.rt.World().ReduceScatter(q.ctx, q.memory[c.tally], own, bytes/4, symmem.Int32,
		symmem.Sum, q.streams[c.stream])
}

func (q *playing) capture(number int) error {
	q.own, q.execs = append(q.own, nil), append(q.execs, 0)
	g := q.graphs[number]
	if g.own {
		s := q.streams[theirStreams]
		err := s.BeginCapture()
		for _, c := range g.calls {
			err = errors.Join(err, q.add(recordedCall{theirStreams, c.tally}))
		}
		made, end := s.EndCapture()
		q.own[number] = made
		return errors.Join(err, end)
	}
	graph, err := q.record(g)
	if err != nil {
		return err
	}
	q.execs[number], err = q.gpu.GraphInstantiate(graph)
	return errors.Join(err, q.gpu.GraphDestroy(graph))
}

// record captures calls on branches, which part at the beginning and join at the end.
func (q *playing) record(g capturedGraph) (cuda.Graph, error) {
	branches := 1
	for _, c := range g.calls {
		branches = max(branches, c.stream+1)
	}
	if err := q.gpu.BeginCapture(q.theirs[0], cuda.CaptureRelaxed); err != nil {
		return 0, err
	}
	var err error
	for i := 1; i < branches; i++ {
		err = errors.Join(err, q.join(q.theirs[i], q.theirs[0]))
	}
	for _, c := range g.calls {
		if err == nil {
			err = q.add(c)
		}
	}
	for i := 1; i < branches; i++ {
		err = errors.Join(err, q.join(q.theirs[0], q.theirs[i]))
	}
	graph, end := q.gpu.EndCapture(q.theirs[0])
	return graph, errors.Join(err, end)
}

// join makes a stream wait for what another one has.
func (q *playing) join(waits, ahead cuda.Stream) error {
	e, err := q.gpu.EventCreate(cuda.EventDisableTiming)
	if err != nil {
		return err
	}
	return errors.Join(q.gpu.EventRecord(e, ahead), q.gpu.StreamWaitEvent(waits, e),
		q.gpu.EventDestroy(e))
}

func (q *playing) act(a graphsAct) error {
	switch {
	case a.graph < 0:
		return q.add(a.recordedCall)
	case q.graphs[a.graph].own:
		return q.own[a.graph].Launch(q.streams[a.stream])
	default:
		return q.gpu.GraphLaunch(q.execs[a.graph], q.theirs[a.stream])
	}
}

// look counts the numbers that are wrong: of the rank's own part, and of the others, which nobody
// writes.
func (q *playing) look() error {
	var errs []error
	ranks, me := int64(q.rt.Size()), int64(q.rt.Rank())
	for i, calls := range q.calls() {
		t := q.tallies[i]
		image := make([]int32, t.count*ranks)
		s := q.streams[theirStreams]
		err := errors.Join(s.Copy(symmem.Host(image), q.memory[i]), s.Synchronize(q.ctx))
		if err != nil {
			return err
		}
		wrong, first := 0, int32(0)
		for at, got := range image {
			want := t.unit
			if int64(at)/t.count == me {
				want += calls * (int32(ranks) - 1) * t.unit
			}
			if got != want {
				wrong, first = wrong+1, got-want
			}
		}
		if wrong > 0 {
			errs = append(errs, fmt.Errorf("tally %d: %d of %d numbers are wrong, one by %d", i, wrong,
				len(image), first))
		}
	}
	return errors.Join(errs...)
}

// release gives back what the program has made, once it has ended.
func (q *playing) release() error {
	var errs []error
	for i := range q.own {
		if q.own[i] != nil {
			errs = append(errs, q.own[i].Close())
		}
		if q.execs[i] != 0 {
			errs = append(errs, q.gpu.GraphExecDestroy(q.execs[i]))
		}
	}
	for _, b := range q.buffers {
		errs = append(errs, b.Free())
	}
	for _, at := range q.foreign {
		errs = append(errs, q.gpu.MemFreeAsync(at, q.theirs[0]))
	}
	return errors.Join(errs...)
}
