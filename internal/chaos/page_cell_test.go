package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem"
)

// cell tests one cell of a table in docs/reference/failures.md. The tables promise how an AllReduce
// fails if one of three ranks has a fault, for each path (algorithm), called directly or replayed
// in a graph. A rehearsal checks the sums without a fault. A copy on another stream, which depends
// on the sums, fails with the AllReduce.
type cell struct {
	name       string
	path       symmem.PathChoice
	isReplayed bool
	isPromised bool // whether the tables promise the outcome
	group      *symmem.Group
	stream     *symmem.Stream // runs the AllReduce
	// followingStream waits for event, which stream records after the AllReduce, and copies the sums.
	followingStream *symmem.Stream
	event           *symmem.Event
	graph           *symmem.Graph // contains the AllReduce in a replayed cell, or nil
	count           int64
	memory          symmem.Memory // summands, replaced by the sums
	result          symmem.Memory // copy of the sums
	launchErr       error         // error of the AllReduce
	queueErr        error         // error of queuing the copy
}

const (
	pageElements = 3000 // float32
	pageBytes    = 4 * pageElements
	pageSum      = 1 + 2 + 3 // sum of ownValue on all ranks
)

// newCell returns a cell that needs setUp.
func newCell(path symmem.PathChoice, isReplayed, isPromised bool) *cell {
	c := &cell{path: path, isReplayed: isReplayed, isPromised: isPromised, count: pageElements}
	c.name = path.String() + ", eager"
	if isReplayed {
		c.name = path.String() + ", replayed"
	}

	return c
}

func (c *cell) setUp(ctx context.Context, rt *symmem.Runtime) (err error) {
	const color, key = 0, 0 // the same color on all ranks, so the group has all ranks
	if c.group, err = rt.World().Split(ctx, color, key); err != nil {
		return err
	}

	if err := c.group.SetPath(ctx, c.path); err != nil {
		return err
	}

	pool, err := rt.NewPool(symmem.PoolOptions{Domain: c.group, FirstSegment: 2 << 20})
	if err != nil {
		return err
	}

	for _, m := range []*symmem.Memory{&c.memory, &c.result} {
		b, err := pool.Alloc(pageBytes)
		if err != nil {
			return err
		}

		if *m, err = b.Memory().Slice(0, pageBytes); err != nil {
			return err
		}
	}

	if err := pool.Register(ctx, c.group); err != nil {
		return err
	}

	if c.stream, err = rt.NewStream(); err != nil {
		return err
	}

	if c.followingStream, err = rt.NewStream(); err != nil {
		return err
	}

	c.event, err = rt.NewEvent()
	return err
}

// rehearse checks the sums and the path without a fault, and restores the summands. In a replayed
// cell, it captures the graph.
func (c *cell) rehearse(ctx context.Context, rt *symmem.Runtime) (err error) {
	if err := c.setContents(ctx, ownValue(rt)); err != nil {
		return err
	}

	if c.isReplayed {
		if err := c.stream.BeginCapture(); err != nil {
			return err
		}

		if err := c.sum(ctx); err != nil {
			return err
		}

		if c.graph, err = c.stream.EndCapture(); err != nil {
			return err
		}
	}

	if err := c.call(ctx); err != nil {
		return err
	}

	if err := c.stream.Synchronize(ctx); err != nil {
		return err
	}

	got, err := read(ctx, c.stream, c.memory)
	if err != nil {
		return err
	}

	want := slices.Repeat([]float32{pageSum}, pageElements)
	if index := firstDifference(got, want); index >= 0 {
		return fmt.Errorf("before the fault: element %d is %v, want %v", index, got[index], pageSum)
	}

	callsByPath := c.group.Stats().Paths
	if callsByPath[c.path.String()] != 1 {
		return fmt.Errorf("%s: the collective took the paths %v, want one call", c.name, callsByPath)
	}

	return c.setContents(ctx, ownValue(rt))
}

// setContents fills memory with a value and clears result.
func (c *cell) setContents(ctx context.Context, value float32) error {
	values := slices.Repeat([]float32{value}, pageElements)
	if err := c.stream.Copy(c.memory, symmem.Host(values)); err != nil {
		return err
	}

	if err := c.stream.Fill(c.result, 0); err != nil {
		return err
	}

	return c.stream.Synchronize(ctx)
}

// ownValue returns this rank's summand.
func ownValue(rt *symmem.Runtime) float32 { return float32(rt.Rank() + 1) }

// read copies the elements of m on stream s.
func read(ctx context.Context, s *symmem.Stream, m symmem.Memory) ([]float32, error) {
	got := make([]float32, pageElements)
	if err := s.Copy(symmem.Host(got), m); err != nil {
		return nil, err
	}

	return got, s.Synchronize(ctx)
}

func (c *cell) sum(ctx context.Context) error {
	return c.group.AllReduce(ctx, c.memory, c.memory, c.count, symmem.Float32, symmem.Sum, c.stream)
}

// call calls the AllReduce or launches its graph.
func (c *cell) call(ctx context.Context) error {
	if c.graph != nil {
		return c.graph.Launch(c.stream)
	}

	return c.sum(ctx)
}

// queueFollowingCopy queues the copy on followingStream. Any of its calls may fail, because the
// AllReduce may have failed already.
func (c *cell) queueFollowingCopy() error {
	recordErr := c.stream.Record(c.event)
	waitErr := c.followingStream.Wait(c.event)
	copyErr := c.followingStream.Copy(c.result, c.memory)
	return errors.Join(recordErr, waitErr, copyErr)
}

// watchEnd sends the time from begin until the group has failed or closed.
func (c *cell) watchEnd(begin time.Time) <-chan time.Duration {
	duration := make(chan time.Duration, 1)
	go func() {
		<-c.group.Ended()
		duration <- time.Since(begin)
	}()
	return duration
}
