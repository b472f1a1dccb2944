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

// Gatherer exchanges test results between the ranks of a group. If rank 0 passes 5 to Numbers and
// rank 1 passes 7, both get [5, 7]. A Gatherer works even if ranks diverged in other pools.
type Gatherer struct {
	group  *symmem.Group
	stream *symmem.Stream
	pool   *symmem.Pool // without a Domain, so ranks do not compare its allocations
}

// OpenGatherer returns a Gatherer for a new group of all ranks. The Gatherer works even if other
// groups fail. All ranks must call OpenGatherer.
func OpenGatherer(ctx context.Context, rt *symmem.Runtime) (*Gatherer, error) {
	const color = 0 // the same on all ranks, which form one group
	group, err := rt.World().Split(ctx, color, rt.Rank())
	if err != nil {
		return nil, fmt.Errorf("creating the group for reports: %w", err)
	}

	stream, err := rt.NewStream()
	if err != nil {
		return nil, fmt.Errorf("creating the stream for reports: %w", err)
	}

	return NewGatherer(ctx, rt, group, stream)
}

// NewGatherer returns a Gatherer for a group. All ranks of the group must call it.
func NewGatherer(
	ctx context.Context, rt *symmem.Runtime, group *symmem.Group, stream *symmem.Stream,
) (*Gatherer, error) {
	pool, err := rt.NewPool(symmem.PoolOptions{FirstSegment: FirstSegment})
	if err != nil {
		return nil, fmt.Errorf("creating the pool for reports: %w", err)
	}

	// Map memory now, because the test may use up all memory later.
	var noGroup *symmem.Group
	if err := pool.Reserve(ctx, FirstSegment, noGroup); err != nil {
		return nil, fmt.Errorf("reserving memory for reports: %w", err)
	}

	return &Gatherer{group: group, stream: stream, pool: pool}, nil
}

// Numbers returns the numbers that all ranks pass, by rank. All ranks of the group must call it.
func (g *Gatherer) Numbers(ctx context.Context, number int64) ([]int64, error) {
	sent := binary.NativeEndian.AppendUint64(nil, uint64(number))
	received, err := g.allGather(ctx, sent)
	if err != nil {
		return nil, fmt.Errorf("gathering results of ranks: %w", err)
	}

	all := make([]int64, g.group.Size())
	for rank := range all {
		encoded := received[rank*len(sent):]
		all[rank] = int64(binary.NativeEndian.Uint64(encoded))
	}

	return all, nil
}

// Gather is like Numbers for any type that can be encoded as JSON.
func Gather[T any](ctx context.Context, g *Gatherer, own T) ([]T, error) {
	sent, err := json.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("encoding results of this rank: %w", err)
	}

	lengths, err := g.Numbers(ctx, int64(len(sent)))
	if err != nil {
		return nil, err
	}

	// An all-gather needs messages of equal length, so pad this one with zeros.
	padded := make([]byte, slices.Max(lengths))
	copy(padded, sent)
	received, err := g.allGather(ctx, padded)
	if err != nil {
		return nil, fmt.Errorf("gathering results of ranks: %w", err)
	}

	all := make([]T, len(lengths))
	for rank, length := range lengths {
		start := int64(rank * len(padded))
		message := received[start : start+length]
		if err := json.Unmarshal(message, &all[rank]); err != nil {
			return nil, fmt.Errorf("decoding results of rank %d: %w", rank, err)
		}
	}

	return all, nil
}

// allGather returns the concatenated messages of all ranks, which must have the same length.
func (g *Gatherer) allGather(ctx context.Context, message []byte) (all []byte, err error) {
	messageBytes := int64(len(message))
	sendBuffer, err := g.pool.Alloc(messageBytes)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, sendBuffer.Free()) }()
	allBytes := messageBytes * int64(g.group.Size())
	recvBuffer, err := g.pool.Alloc(allBytes)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, recvBuffer.Free()) }()
	// Buffers can be larger than requested.
	send, sendErr := sendBuffer.Memory().Slice(0, messageBytes)
	recv, recvErr := recvBuffer.Memory().Slice(0, allBytes)
	if err := errors.Join(sendErr, recvErr); err != nil {
		return nil, err
	}

	return g.exchange(ctx, message, send, recv)
}

// exchange sends message from buffer send, and returns a copy of the messages in recv.
func (g *Gatherer) exchange(
	ctx context.Context, message []byte, send, recv symmem.Memory,
) ([]byte, error) {
	if err := g.stream.Copy(send, symmem.Host(message)); err != nil {
		return nil, err
	}

	err := g.group.AllGather(ctx, send, recv, send.Bytes(), symmem.Uint8, g.stream)
	if err != nil {
		return nil, err
	}

	all := make([]byte, recv.Bytes())
	if err := g.stream.Copy(symmem.Host(all), recv); err != nil {
		return nil, err
	}

	if err := g.stream.Synchronize(ctx); err != nil {
		return nil, err
	}

	return all, nil
}
