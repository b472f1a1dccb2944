package workload

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"symmem"
)

// Gatherer exchanges results between the ranks of a group. It works even after ranks have placed
// memory differently, because its pool has no domain.
type Gatherer struct {
	group  *symmem.Group
	stream *symmem.Stream
	pool   *symmem.Pool
}

// OpenGatherer returns a Gatherer for the ranks of the world. It creates a group and a stream for
// the Gatherer, so that it works even after other groups have failed. All ranks of the world must
// call it.
func OpenGatherer(ctx context.Context, rt *symmem.Runtime) (*Gatherer, error) {
	group, err := rt.World().Split(ctx, 0, rt.Rank())
	if err != nil {
		return nil, fmt.Errorf("creating the group for reports: %w", err)
	}
	stream, err := rt.NewStream()
	if err != nil {
		return nil, fmt.Errorf("creating the stream for reports: %w", err)
	}
	return NewGatherer(ctx, rt, group, stream)
}

// NewGatherer returns a Gatherer that uses the given group and stream. All ranks of the group must
// call it.
func NewGatherer(
	ctx context.Context, rt *symmem.Runtime, group *symmem.Group, stream *symmem.Stream,
) (*Gatherer, error) {
	pool, err := rt.NewPool(symmem.PoolOptions{FirstSegment: FirstSegment})
	if err != nil {
		return nil, fmt.Errorf("creating the pool for reports: %w", err)
	}
	// Reserve memory now, because the program may use up all memory later.
	if err := pool.Reserve(ctx, FirstSegment, nil); err != nil {
		return nil, fmt.Errorf("reserving memory for reports: %w", err)
	}
	return &Gatherer{group, stream, pool}, nil
}

// Numbers returns the value of own on each rank, by rank. All ranks of the group must call it.
func (g *Gatherer) Numbers(ctx context.Context, own int64) ([]int64, error) {
	received, err := g.allGather(ctx, binary.NativeEndian.AppendUint64(nil, uint64(own)))
	if err != nil {
		return nil, fmt.Errorf("gathering results of ranks: %w", err)
	}
	all := make([]int64, g.group.Size())
	for rank := range all {
		all[rank] = int64(binary.NativeEndian.Uint64(received[8*rank:]))
	}
	return all, nil
}

// Gather exchanges values as JSON. It returns the value of own on each rank, by rank. All ranks of
// the group must call it.
func Gather[T any](ctx context.Context, g *Gatherer, own T) ([]T, error) {
	sent, err := json.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("encoding results of this rank: %w", err)
	}
	lengths, err := g.Numbers(ctx, int64(len(sent)))
	if err != nil {
		return nil, err
	}
	padded := make([]byte, slices.Max(lengths)) // an all-gather needs equal lengths
	copy(padded, sent)
	received, err := g.allGather(ctx, padded)
	if err != nil {
		return nil, fmt.Errorf("gathering results of ranks: %w", err)
	}
	all := make([]T, len(lengths))
	for rank, length := range lengths {
		if err := json.Unmarshal(received[rank*len(padded):][:length], &all[rank]); err != nil {
			return nil, fmt.Errorf("decoding results of rank %d: %w", rank, err)
		}
	}
	return all, nil
}

// allGather returns the messages of all ranks, concatenated in the order of ranks. own is this
// rank's message. All messages must have the same length.
func (g *Gatherer) allGather(ctx context.Context, own []byte) (all []byte, err error) {
	all = make([]byte, len(own)*g.group.Size())
	var sendAndRecv [2]symmem.Memory
	for i, n := range []int{len(own), len(all)} {
		b, allocErr := g.pool.Alloc(int64(n))
		if allocErr != nil {
			return nil, allocErr
		}
		defer func() { err = errors.Join(err, b.Free()) }()
		if sendAndRecv[i], err = b.Memory().Slice(0, int64(n)); err != nil {
			return nil, err
		}
	}
	send, recv, s := sendAndRecv[0], sendAndRecv[1], g.stream
	if err := s.Copy(send, symmem.Host(own)); err != nil {
		return nil, err
	}
	err = g.group.AllGather(ctx, send, recv, int64(len(own)), symmem.Uint8, s)
	if err != nil {
		return nil, err
	}
	if err := s.Copy(symmem.Host(all), recv); err != nil {
		return nil, err
	}
	return all, s.Synchronize(ctx)
}
