package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"symmem"
)

// Gatherer gathers what ranks have found. It works over memory that is never registered, so that it
// goes on when placements differ; over a group and a stream that the program does not use it goes
// on when those of the program have failed, too.
type Gatherer struct {
	group  *symmem.Group
	stream *symmem.Stream
	pool   *symmem.Pool
}

// OpenGatherer makes a Gatherer with a group and a stream of its own. It is collective over the
// world.
func OpenGatherer(ctx context.Context, rt *symmem.Runtime) (*Gatherer, error) {
	group, err := rt.World().Split(ctx, 0, rt.Rank())
	if err != nil {
		return nil, fmt.Errorf("making the group of reports: %w", err)
	}
	stream, err := rt.NewStream()
	if err != nil {
		return nil, fmt.Errorf("making the stream of reports: %w", err)
	}
	return NewGatherer(ctx, rt, group, stream)
}

// NewGatherer makes a Gatherer over a group, whose calls are on a stream.
func NewGatherer(
	ctx context.Context, rt *symmem.Runtime, group *symmem.Group, stream *symmem.Stream,
) (*Gatherer, error) {
	pool, err := rt.NewPool(symmem.PoolOptions{FirstSegment: FirstSegment})
	if err != nil {
		return nil, fmt.Errorf("making the pool of reports: %w", err)
	}
	// The program may take all memory, and what comes of that is to be reported.
	if err := pool.Reserve(ctx, FirstSegment, nil); err != nil {
		return nil, fmt.Errorf("reserving memory for reports: %w", err)
	}
	return &Gatherer{group, stream, pool}, nil
}

// Numbers returns every rank's numbers, by rank. It is collective, and each rank has equally many.
func (d *Gatherer) Numbers(ctx context.Context, mine ...int64) ([][]int64, error) {
	sent := make([]byte, 0, 8*len(mine))
	for _, v := range mine {
		sent = binary.NativeEndian.AppendUint64(sent, uint64(v))
	}
	received, err := d.allGather(ctx, sent)
	if err != nil {
		return nil, fmt.Errorf("gathering what ranks have found: %w", err)
	}
	all := make([][]int64, d.group.Size())
	for i := range len(received) / 8 {
		rank := i / len(mine)
		all[rank] = append(all[rank], int64(binary.NativeEndian.Uint64(received[8*i:])))
	}
	return all, nil
}

// Messages returns every rank's message, by rank. It is collective.
func (d *Gatherer) Messages(ctx context.Context, mine []byte) ([][]byte, error) {
	lengths, err := d.Numbers(ctx, int64(len(mine)))
	if err != nil {
		return nil, err
	}
	longest := int64(0)
	for _, n := range lengths {
		longest = max(longest, n[0])
	}
	padded := make([]byte, longest)
	copy(padded, mine)
	all, err := d.allGather(ctx, padded)
	if err != nil {
		return nil, fmt.Errorf("gathering messages of ranks: %w", err)
	}
	messages := make([][]byte, len(lengths))
	for rank, n := range lengths {
		messages[rank] = all[int64(rank)*longest:][:n[0]]
	}
	return messages, nil
}

// allGather gathers equally long messages.
func (d *Gatherer) allGather(ctx context.Context, mine []byte) (all []byte, err error) {
	all = make([]byte, len(mine)*d.group.Size())
	if len(mine) == 0 {
		return all, nil
	}
	var parts [2]symmem.Memory
	for i, n := range []int{len(mine), len(all)} {
		b, allocErr := d.pool.Alloc(int64(n))
		if allocErr != nil {
			return nil, allocErr
		}
		defer func() { err = errors.Join(err, b.Free()) }()
		if parts[i], err = b.Memory().Slice(0, int64(n)); err != nil {
			return nil, err
		}
	}
	s := d.stream
	if err := s.Copy(parts[0], symmem.Host(mine)); err != nil {
		return nil, err
	}
	err = d.group.AllGather(ctx, parts[0], parts[1], int64(len(mine)), symmem.Uint8, s)
	if err != nil {
		return nil, err
	}
	if err := s.Copy(symmem.Host(all), parts[1]); err != nil {
		return nil, err
	}
	return all, s.Synchronize(ctx)
}
