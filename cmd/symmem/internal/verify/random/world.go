package random

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/program"
)

// Open is a function that opens a Runtime for this rank: symmem.Open except in tests.
type Open func(ctx context.Context, o symmem.Options) (*symmem.Runtime, error)

// environment holds the Runtime and streams for one check level (how often symmem compares ranks).
// All rounds at the same level share an environment.
type environment struct {
	rt       *symmem.Runtime
	streams  []*symmem.Stream   // the streams of symmem, followed by those of library
	events   []*symmem.Event    // as many as streams
	library  *program.Library   // imitates another GPU library; nil on the host backend
	gatherer *workload.Gatherer // exchanges results between ranks
}

const (
	streamCount        = 3 // streams of symmem in an environment
	libraryStreamCount = 2 // streams of the library in an environment
)

// newEnvironment opens the Runtime with the given check level, and creates the streams. All ranks
// must call it.
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
	if err := env.prepare(ctx, c); err != nil {
		closeErr := env.close()
		return nil, errors.Join(err, closeErr)
	}

	return env, nil
}

// prepare sets the fields that newEnvironment has not set.
func (env *environment) prepare(ctx context.Context, c *Config) error {
	if err := env.createStreams(); err != nil {
		return err
	}

	gatherer, err := workload.OpenGatherer(ctx, env.rt)
	if err != nil {
		return err
	}

	env.gatherer = gatherer
	maxLiveBytes := maxLiveMessages * c.MaxBytes // of all buffers of a round
	return env.mapOutsideWindows(2 * maxLiveBytes)
}

// mapOutsideWindows maps memory outside windows (memory that is not registered with a group): it
// allocates and frees a buffer. The Runtime keeps the memory mapped. Otherwise, rounds would
// increase the usage of memory, which would look like a leak.
func (env *environment) mapOutsideWindows(bytes int64) error {
	p, err := env.rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		return err
	}

	scope := p.BeginDisabled()
	defer scope.Abandon()
	b, err := scope.Alloc(bytes)
	if err != nil {
		return err
	}

	freeErr := b.Free()
	closeErr := p.Close()
	return errors.Join(freeErr, closeErr)
}

// createStreams adds streams to env.streams, which contains the default stream, and creates the
// library and the events.
func (env *environment) createStreams() error {
	for len(env.streams) < streamCount {
		s, err := env.rt.NewStream()
		if err != nil {
			return err
		}

		env.streams = append(env.streams, s)
	}

	if env.rt.Device().Backend == "nccl" {
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

// close closes the Runtime and then the library, whose streams the Runtime uses.
func (env *environment) close() error {
	runtimeErr := env.rt.Close()
	if env.library == nil {
		return runtimeErr
	}

	libraryErr := env.library.Close()
	return errors.Join(runtimeErr, libraryErr)
}

// machines returns the number of machines of the world (the group of all ranks).
func (env *environment) machines() int { return env.rt.World().Stats().Tuning.Machines }

// synchronize waits for all streams. The order is the same on all ranks, because pools record each
// wait, and ranks compare the records.
func (env *environment) synchronize(ctx context.Context) error {
	for _, s := range env.streams {
		if err := s.Synchronize(ctx); err != nil {
			return fmt.Errorf("synchronizing stream %d: %w", s.Number(), err)
		}
	}

	return nil
}

// barrier waits until all streams of all ranks have completed their work.
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

// mappedBytes returns the size of the memory that the open pools have mapped.
func (env *environment) mappedBytes() (sum int64) {
	for _, p := range env.rt.Stats().Pools {
		sum += p.Used + p.Cached
	}

	return sum
}
