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

// environment holds a Runtime and streams, which several rounds of a run share. A run has an
// environment for each check level, which selects how often symmem compares ranks. On the nccl
// backend, an environment has five streams: three of symmem, and two of a library that imitates
// another GPU library.
type environment struct {
	rt       *symmem.Runtime
	streams  []*symmem.Stream   // the streams of symmem, followed by those of library
	events   []*symmem.Event    // as many as streams
	library  *program.Library   // nil on the host backend
	gatherer *workload.Gatherer // exchanges results between ranks
}

const (
	streamCount        = 3 // streams of symmem, including the default stream
	libraryStreamCount = 2 // streams of the library
)

// newEnvironment returns a new environment with the given check level. All ranks must call it.
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

// prepare creates everything except the Runtime and its default stream.
func (env *environment) prepare(ctx context.Context, c *Config) error {
	if err := env.createStreams(); err != nil {
		return err
	}

	gatherer, err := workload.OpenGatherer(ctx, env.rt)
	if err != nil {
		return err
	}

	env.gatherer = gatherer
	maxLiveBytes := maxLiveMessages * c.MaxBytes // limit of all buffers of a round together
	return env.mapOutsideWindows(2 * maxLiveBytes)
}

// mapOutsideWindows makes the Runtime map memory outside windows: memory that is not registered
// with a group. It allocates and frees a buffer, after which the Runtime keeps the memory mapped.
//
// Otherwise, rounds would map such memory when they need it. The growth would look like a leak.
func (env *environment) mapOutsideWindows(bytes int64) error {
	p, err := env.rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		return err
	}

	scope := p.BeginDisabled() // a scope for memory outside windows
	defer scope.Abandon()
	b, err := scope.Alloc(bytes)
	if err != nil {
		return err
	}

	freeErr := b.Free()
	closeErr := p.Close()
	return errors.Join(freeErr, closeErr)
}

// createStreams creates the missing streams, the library and the events.
func (env *environment) createStreams() error {
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

// close closes the Runtime and the library. The Runtime must be first, because it uses the
// library's streams.
func (env *environment) close() error {
	runtimeErr := env.rt.Close()
	if env.library == nil {
		return runtimeErr
	}

	libraryErr := env.library.Close()
	return errors.Join(runtimeErr, libraryErr)
}

// machines returns the number of machines on which the ranks run.
func (env *environment) machines() int { return env.rt.World().Stats().Tuning.Machines }

// synchronize waits for all streams of this rank, in the same order on all ranks. Pools record each
// wait, and ranks compare the records.
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

// mappedBytes returns the size of the memory that the open pools have mapped.
func (env *environment) mappedBytes() (sum int64) {
	for _, p := range env.rt.Stats().Pools {
		sum += p.Used + p.Cached
	}

	return sum
}
