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

// environment holds the Runtime and other objects that rounds share. A run has one environment for
// each check level (how often symmem compares ranks).
type environment struct {
	rt       *symmem.Runtime
	streams  []*symmem.Stream   // streams of symmem, then library.Streams
	events   []*symmem.Event    // as many as streams
	library  *program.Library   // imitates another GPU library; nil on the host backend
	gatherer *workload.Gatherer // exchanges results between ranks
}

const (
	streamCount        = 3 // streams of symmem, including the default stream
	libraryStreamCount = 2
)

// newEnvironment returns an environment with the given check level. All ranks must call it.
func newEnvironment(
	ctx context.Context, open Open, c *Config, level symmem.CheckLevel,
) (*environment, error) {
	options := c.Options()
	options.Check = level
	rt, err := open(ctx, options)
	if err != nil {
		return nil, err
	}

	env := &environment{rt: rt}
	if err := env.prepare(ctx, c); err != nil {
		closeErr := env.close()
		return nil, errors.Join(err, closeErr)
	}

	return env, nil
}

func (env *environment) prepare(ctx context.Context, c *Config) error {
	if err := env.createStreams(); err != nil {
		return err
	}

	gatherer, err := workload.OpenGatherer(ctx, env.rt)
	if err != nil {
		return err
	}

	env.gatherer = gatherer
	return env.mapUnregistered(2 * maxLiveBytes(c.MaxBytes))
}

// mapUnregistered makes the Runtime map and keep memory that is not registered with a group. If
// later rounds mapped it, the growth would look like a leak.
func (env *environment) mapUnregistered(bytes int64) error {
	p, err := env.rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		return err
	}

	scope := p.BeginDisabled() // its memory belongs to the Runtime, not to p
	defer scope.Abandon()
	b, err := scope.Alloc(bytes)
	if err != nil {
		return err
	}

	freeErr := b.Free()
	closeErr := p.Close()
	return errors.Join(freeErr, closeErr)
}

func (env *environment) createStreams() error {
	env.streams = append(env.streams, env.rt.DefaultStream())
	for len(env.streams) < streamCount {
		s, err := env.rt.NewStream()
		if err != nil {
			return err
		}

		env.streams = append(env.streams, s)
	}

	hasLibrary := env.rt.Device().Backend == "nccl"
	if hasLibrary {
		library, err := program.NewLibrary(env.rt, libraryStreamCount)
		if err != nil {
			return err
		}

		env.library = library
		env.streams = append(env.streams, library.Streams...)
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

// close closes the library after the Runtime, which uses the library's streams.
func (env *environment) close() error {
	runtimeErr := env.rt.Close()
	if env.library == nil {
		return runtimeErr
	}

	libraryErr := env.library.Close()
	return errors.Join(runtimeErr, libraryErr)
}

func (env *environment) machines() int { return env.rt.World().Stats().Tuning.Machines }

// synchronize waits for all streams of this rank, in the same order on all ranks, because pools
// record the order.
func (env *environment) synchronize(ctx context.Context) error {
	for _, s := range env.streams {
		if err := s.Synchronize(ctx); err != nil {
			return fmt.Errorf("synchronizing stream %d: %w", s.Number(), err)
		}
	}

	return nil
}

// barrier waits for all streams of all ranks.
func (env *environment) barrier(ctx context.Context) error {
	if err := env.synchronize(ctx); err != nil {
		return err
	}

	s := env.rt.DefaultStream()
	if err := env.rt.World().Barrier(ctx, s); err != nil {
		return err
	}

	return s.Synchronize(ctx)
}

// mappedBytes returns how much memory the open pools have mapped.
func (env *environment) mappedBytes() (sum int64) {
	for _, p := range env.rt.Stats().Pools {
		sum += p.Used + p.Cached
	}

	return sum
}
