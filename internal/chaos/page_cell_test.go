package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem"
)

// cell tests a promise of docs/reference/failures.md: how an AllReduce of three ranks fails if one
// of them has a fault. Cells differ in the path (algorithm) and in whether the AllReduce is called
// directly or replayed in a graph. Each rank first rehearses the AllReduce without the fault.
type cell struct {
	name       string
	path       symmem.PathChoice
	isReplayed bool
	isPromised bool // whether the page promises the outcome
	group      *symmem.Group
	stream     *symmem.Stream // runs the AllReduce
	event      *symmem.Event  // recorded on stream after the AllReduce
	// followingStream waits for event and copies memory to result.
	followingStream *symmem.Stream
	graph           *symmem.Graph // contains the AllReduce if isReplayed is set, or nil
	count           int64         // number of summands
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

func newCell(path symmem.PathChoice, isReplayed, isPromised bool) *cell {
	c := &cell{path: path, isReplayed: isReplayed, isPromised: isPromised, count: pageElements}
	c.name = path.String() + ", eager"
	if isReplayed {
		c.name = path.String() + ", replayed"
	}

	return c
}

func (c *cell) setUp(ctx context.Context, rt *symmem.Runtime) (err error) {
	const color, key = 0, 0 // the same on all ranks, so the group has all ranks
	if c.group, err = rt.World().Split(ctx, color, key); err != nil {
		return err
	}

	if err := c.group.SetPath(ctx, c.path); err != nil {
		return err
	}

	const segmentBytes = 2 << 20 // more than the buffers need
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: c.group, FirstSegment: segmentBytes})
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

// rehearse captures the graph, if any, and checks the sums and the path without a fault. It then
// restores the summands.
func (c *cell) rehearse(ctx context.Context, rt *symmem.Runtime) error {
	if err := c.setContents(ctx, ownValue(rt)); err != nil {
		return err
	}

	if c.isReplayed {
		if err := c.capture(ctx); err != nil {
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

func (c *cell) capture(ctx context.Context) (err error) {
	if err := c.stream.BeginCapture(); err != nil {
		return err
	}

	if err := c.queueAllReduce(ctx); err != nil {
		return err
	}

	c.graph, err = c.stream.EndCapture()
	return err
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

func (c *cell) queueAllReduce(ctx context.Context) error {
	return c.group.AllReduce(ctx, c.memory, c.memory, c.count, symmem.Float32, symmem.Sum, c.stream)
}

// call queues the AllReduce or launches its graph.
func (c *cell) call(ctx context.Context) error {
	if c.graph != nil {
		return c.graph.Launch(c.stream)
	}

	return c.queueAllReduce(ctx)
}

// queueFollowingCopy queues the copy on followingStream. Each step may return an error, because the
// AllReduce may already have failed.
func (c *cell) queueFollowingCopy() error {
	recordErr := c.stream.Record(c.event)
	waitErr := c.followingStream.Wait(c.event)
	copyErr := c.followingStream.Copy(c.result, c.memory)
	return errors.Join(recordErr, waitErr, copyErr)
}

// watchEnd returns a channel that receives the time from begin until the group fails or closes.
func (c *cell) watchEnd(begin time.Time) <-chan time.Duration {
	duration := make(chan time.Duration, 1)
	go func() {
		<-c.group.Ended()
		duration <- time.Since(begin)
	}()
	return duration
}
