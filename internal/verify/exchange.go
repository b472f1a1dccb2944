package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"symmem"
)

// desk gathers what ranks found. It works over memory that is never registered and a group that
// the workload does not use, so that it goes on when placements differ or the workload's groups
// have failed.
type desk struct {
	rt    *symmem.Runtime
	group *symmem.Group
	pool  *symmem.Pool
	// stream is one that no failure of the workload has reached.
	stream *symmem.Stream
}

// newDesk is collective over the world.
func newDesk(ctx context.Context, rt *symmem.Runtime) (*desk, error) {
	group, err := rt.World().Split(ctx, 0, rt.Rank())
	if err != nil {
		return nil, fmt.Errorf("making the group of reports: %w", err)
	}
	pool, err := rt.NewPool(symmem.PoolOptions{FirstSegment: firstSegment})
	if err != nil {
		return nil, fmt.Errorf("making the pool of reports: %w", err)
	}
	// The workload may take all memory, and what comes of that is to be reported.
	if err := pool.Reserve(ctx, firstSegment, nil); err != nil {
		return nil, fmt.Errorf("reserving memory for reports: %w", err)
	}
	stream, err := rt.NewStream()
	if err != nil {
		return nil, fmt.Errorf("making the stream of reports: %w", err)
	}
	return &desk{rt: rt, group: group, pool: pool, stream: stream}, nil
}

// gather returns every rank's message, by rank. It is collective over the world.
func (d *desk) gather(ctx context.Context, message []byte) ([][]byte, error) {
	all, err := d.allGather(ctx, binary.LittleEndian.AppendUint64(nil, uint64(len(message))))
	if err != nil {
		return nil, fmt.Errorf("gathering reports: %w", err)
	}
	lengths, longest := make([]int, d.rt.Size()), 0
	for r := range lengths {
		lengths[r] = int(binary.LittleEndian.Uint64(all[8*r:]))
		longest = max(longest, lengths[r])
	}
	padded := make([]byte, longest)
	copy(padded, message)
	if all, err = d.allGather(ctx, padded); err != nil {
		return nil, fmt.Errorf("gathering reports: %w", err)
	}
	messages := make([][]byte, d.rt.Size())
	for r := range messages {
		messages[r] = all[r*longest:][:lengths[r]]
	}
	return messages, nil
}

// allGather gathers equally long messages.
func (d *desk) allGather(ctx context.Context, mine []byte) ([]byte, error) {
	all := make([]byte, len(mine)*d.rt.Size())
	send, sendErr := d.pool.Alloc(int64(len(mine)))
	recv, recvErr := d.pool.Alloc(int64(len(all)))
	if err := errors.Join(sendErr, recvErr); err != nil {
		return nil, err
	}
	from, fromErr := send.Memory().Slice(0, int64(len(mine)))
	to, toErr := recv.Memory().Slice(0, int64(len(all)))
	if err := errors.Join(fromErr, toErr); err != nil {
		return nil, err
	}
	s := d.stream
	if err := s.Copy(from, symmem.Host(mine)); err != nil {
		return nil, err
	}
	if err := d.group.AllGather(ctx, from, to, int64(len(mine)), symmem.Uint8, s); err != nil {
		return nil, err
	}
	if err := s.Copy(symmem.Host(all), to); err != nil {
		return nil, err
	}
	if err := s.Synchronize(ctx); err != nil {
		return nil, err
	}
	return all, errors.Join(send.Free(), recv.Free())
}
