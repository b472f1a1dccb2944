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

// Gatherer exchanges results between the ranks of a group. It works even after a test has failed
// because ranks placed their buffers differently: ranks do not compare the requests to its pool.
type Gatherer struct {
	group  *symmem.Group
	stream *symmem.Stream
	pool   *symmem.Pool // without a domain
}

// OpenGatherer returns a Gatherer for all ranks. It creates a separate group and a separate stream,
// so that the Gatherer works even after other groups have failed. All ranks must call it.
func OpenGatherer(ctx context.Context, rt *symmem.Runtime) (*Gatherer, error) {
	const color = 0 // the same on all ranks, so that one group contains all of them
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

// NewGatherer returns a Gatherer that uses the given group and stream. All ranks of the group must
// call it.
func NewGatherer(
	ctx context.Context, rt *symmem.Runtime, group *symmem.Group, stream *symmem.Stream,
) (*Gatherer, error) {
	pool, err := rt.NewPool(symmem.PoolOptions{FirstSegment: FirstSegment})
	if err != nil {
		return nil, fmt.Errorf("creating the pool for reports: %w", err)
	}

	// Map memory now, because the program may use up all memory later. Do not register it with a
	// group.
	if err := pool.Reserve(ctx, FirstSegment, nil); err != nil {
		return nil, fmt.Errorf("reserving memory for reports: %w", err)
	}

	return &Gatherer{group: group, stream: stream, pool: pool}, nil
}

// Numbers returns the value of own on each rank, by rank. All ranks of the group must call it.
func (g *Gatherer) Numbers(ctx context.Context, own int64) ([]int64, error) {
	sent := binary.NativeEndian.AppendUint64(nil, uint64(own))
	received, err := g.allGather(ctx, sent)
	if err != nil {
		return nil, fmt.Errorf("gathering results of ranks: %w", err)
	}

	all := make([]int64, g.group.Size())
	for rank := range all {
		number := binary.NativeEndian.Uint64(received[rank*len(sent):])
		all[rank] = int64(number)
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
		message := received[rank*len(padded):][:length]
		if err := json.Unmarshal(message, &all[rank]); err != nil {
			return nil, fmt.Errorf("decoding results of rank %d: %w", rank, err)
		}
	}

	return all, nil
}

// allGather returns the messages of all ranks, concatenated in the order of ranks. own is this
// rank's message. All messages must have the same length.
func (g *Gatherer) allGather(ctx context.Context, own []byte) (all []byte, err error) {
	sendBytes := int64(len(own))
	recvBytes := sendBytes * int64(g.group.Size())
	sendBuffer, err := g.pool.Alloc(sendBytes)
	if err != nil {
		return nil, err
	}

	defer func() {
		freeErr := sendBuffer.Free()
		err = errors.Join(err, freeErr)
	}()
	recvBuffer, err := g.pool.Alloc(recvBytes)
	if err != nil {
		return nil, err
	}

	defer func() {
		freeErr := recvBuffer.Free()
		err = errors.Join(err, freeErr)
	}()
	// The buffers may be larger than requested.
	send, err := sendBuffer.Memory().Slice(0, sendBytes)
	if err != nil {
		return nil, err
	}

	recv, err := recvBuffer.Memory().Slice(0, recvBytes)
	if err != nil {
		return nil, err
	}

	if err := g.stream.Copy(send, symmem.Host(own)); err != nil {
		return nil, err
	}

	err = g.group.AllGather(ctx, send, recv, sendBytes, symmem.Uint8, g.stream)
	if err != nil {
		return nil, err
	}

	all = make([]byte, recvBytes)
	if err := g.stream.Copy(symmem.Host(all), recv); err != nil {
		return nil, err
	}

	return all, g.stream.Synchronize(ctx)
}
