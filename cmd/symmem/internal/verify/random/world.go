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

// environment holds the Runtime for one check level (how often symmem compares ranks). All rounds
// at that level share it.
type environment struct {
	rt       *symmem.Runtime
	streams  []*symmem.Stream // of symmem, then of library
	events   []*symmem.Event  // one for each stream
	library  *program.Library // runs CUDA work that symmem does not know; nil on the host backend
	gatherer *workload.Gatherer
}

// Number of streams of symmem and of the library in an environment.
const (
	streamCount        = 3
	libraryStreamCount = 2
)

func newEnvironment(
	ctx context.Context, open Open, c *Config, level symmem.CheckLevel,
) (*environment, error) {
	options := c.Options()
	options.Check = level
	rt, err := open(ctx, options)
	if err != nil {
		return nil, err
	}
	env := &environment{rt: rt, streams: []*symmem.Stream{rt.DefaultStream()}}
	if err = env.createStreams(); err == nil {
		env.gatherer, err = workload.OpenGatherer(ctx, rt)
	}
	if err == nil {
		err = env.mapOutsideWindows(2 * maxLiveMessages * c.MaxBytes)
	}
	if err != nil {
		return nil, errors.Join(err, env.close())
	}
	return env, nil
}

// mapOutsideWindows maps as much memory outside windows as rounds can need, so that the usage does
// not grow later.
func (env *environment) mapOutsideWindows(bytes int64) error {
	p, err := env.rt.NewPool(symmem.PoolOptions{})
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

func (env *environment) createStreams() error {
	for len(env.streams) < streamCount {
		s, err := env.rt.NewStream()
		if err != nil {
			return err
		}
		env.streams = append(env.streams, s)
	}
	if env.rt.Device().Backend == "nccl" {
		var err error
		if env.library, err = program.NewLibrary(env.rt, libraryStreamCount); err != nil {
			return err
		}
		env.streams = append(env.streams, env.library.Streams...)
	}
	for range env.streams {
		e, err := env.rt.NewEvent()
		if err != nil {
			return err
		}
		env.events = append(env.events, e)
	}
	return nil
}

func (env *environment) close() error {
	err := env.rt.Close()
	if env.library != nil {
		err = errors.Join(err, env.library.Close())
	}
	return err
}

func (env *environment) machines() int { return env.rt.World().Stats().Tuning.Machines }

// synchronize waits for all streams in the same order on all ranks, because pools record each wait
// and compare their records.
func (env *environment) synchronize(ctx context.Context) error {
	for _, s := range env.streams {
		if err := s.Synchronize(ctx); err != nil {
			return fmt.Errorf("synchronizing stream %d: %w", s.Number(), err)
		}
	}
	return nil
}

func (env *environment) barrier(ctx context.Context) error {
	if err := env.synchronize(ctx); err != nil {
		return err
	}
	if err := env.rt.World().Barrier(ctx, nil); err != nil {
		return err
	}
	return env.rt.DefaultStream().Synchronize(ctx)
}

func (env *environment) mapped() (bytes int64) {
	for _, p := range env.rt.Stats().Pools {
		bytes += p.Used + p.Cached
	}
	return bytes
}
