package random

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/program"
)

// Open opens a Runtime for this rank. It is symmem.Open except in tests.
type Open func(ctx context.Context, o symmem.Options) (*symmem.Runtime, error)

// world holds the Runtime for one check level. All rounds at that level use it.
type world struct {
	rt      *symmem.Runtime
	streams []*symmem.Stream // those of symmem, then those of library
	events  []*symmem.Event  // one for each stream
	// library is another CUDA library in the process. It is nil on the host backend.
	library  *program.Library
	gatherer *workload.Gatherer
}

// A world has numStreams streams of symmem and libraryStreams streams of the library.
const (
	numStreams     = 3
	libraryStreams = 2
)

func newWorld(ctx context.Context, open Open, c *Config, level symmem.CheckLevel) (*world, error) {
	options := c.Options()
	options.Check = level
	rt, err := open(ctx, options)
	if err != nil {
		return nil, err
	}
	w := &world{rt: rt, streams: []*symmem.Stream{rt.DefaultStream()}}
	if err = w.createStreams(); err == nil {
		w.gatherer, err = workload.OpenGatherer(ctx, rt)
	}
	if err == nil {
		err = w.mapOutsideWindows(2 * maxLiveMessages * c.MaxBytes)
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// mapOutsideWindows maps as much memory as rounds may need outside windows, so that the usage does
// not grow later. The memory stays mapped until the Runtime is closed.
func (w *world) mapOutsideWindows(bytes int64) error {
	p, err := w.rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		return err
	}
	s := p.BeginDisabled()
	defer s.Abandon()
	b, err := s.Alloc(bytes)
	if err != nil {
		return err
	}
	return errors.Join(b.Free(), p.Close())
}

func (w *world) createStreams() error {
	for len(w.streams) < numStreams {
		s, err := w.rt.NewStream()
		if err != nil {
			return err
		}
		w.streams = append(w.streams, s)
	}
	if w.rt.Device().Backend == "nccl" {
		var err error
		if w.library, err = program.NewLibrary(w.rt, libraryStreams); err != nil {
			return err
		}
		w.streams = append(w.streams, w.library.Streams...)
	}
	for range w.streams {
		e, err := w.rt.NewEvent()
		if err != nil {
			return err
		}
		w.events = append(w.events, e)
	}
	return nil
}

func (w *world) close() error {
	err := w.rt.Close()
	if w.library != nil {
		err = errors.Join(err, w.library.Close())
	}
	return err
}

func (w *world) machines() int { return w.rt.World().Stats().Tuning.Machines }

// synchronize waits for all streams, in the same order on all ranks, because pools record it.
func (w *world) synchronize(ctx context.Context) error {
	for _, s := range w.streams {
		if err := s.Synchronize(ctx); err != nil {
			return fmt.Errorf("synchronizing stream %d: %w", s.Number(), err)
		}
	}
	return nil
}

func (w *world) barrier(ctx context.Context) error {
	if err := w.synchronize(ctx); err != nil {
		return err
	}
	if err := w.rt.World().Barrier(ctx, nil); err != nil {
		return err
	}
	return w.rt.DefaultStream().Synchronize(ctx)
}

func (w *world) mapped() (bytes int64) {
	for _, p := range w.rt.Stats().Pools {
		bytes += p.Used + p.Cached
	}
	return bytes
}
