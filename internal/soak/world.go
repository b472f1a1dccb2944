package soak

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"symmem"
)

// Open opens a Runtime of this rank: symmem.Open, or a rank of a test's own world.
type Open func(ctx context.Context, o symmem.Options) (*symmem.Runtime, error)

// world is what lasts over all rounds at one check level.
type world struct {
	rt      *symmem.Runtime
	streams []*symmem.Stream // the default one first, the owner's last
	events  []*symmem.Event  // one for each stream
	// adopted are the streams of the owner, which there is on GPUs alone.
	owner   *owner
	adopted []*symmem.Stream
	// What ranks tell each other goes over a group that programs do not use, so that it goes on when
	// theirs have failed, and through a pool of which none is registered.
	quiet *symmem.Group
	desk  *symmem.Pool
}

// streams is how many streams of its own a world has. They end with it only.
const streams = 3

// first is the size of small first segments in bytes: pools have several segments early.
const first = 2 << 20

func newWorld(ctx context.Context, open Open, c *Config, level symmem.CheckLevel) (*world, error) {
	rt, err := open(ctx, c.options(level))
	if err != nil {
		return nil, err
	}
	w := &world{rt: rt, streams: []*symmem.Stream{rt.DefaultStream()}}
	if err = w.equip(); err == nil {
		w.quiet, err = rt.World().Split(ctx, 0, rt.Rank())
	}
	if err == nil {
		err = w.warm(2 * liveMessages * c.MaxBytes)
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// warm makes the memory of disabled scopes as large as rounds may need it: it is given back with
// the Runtime only.
func (w *world) warm(bytes int64) error {
	s := w.desk.BeginDisabled()
	defer s.Abandon()
	b, err := s.Alloc(bytes)
	if err != nil {
		return err
	}
	return b.Free()
}

func (w *world) equip() (err error) {
	for len(w.streams) < streams {
		s, err := w.rt.NewStream()
		if err != nil {
			return err
		}
		w.streams = append(w.streams, s)
	}
	if err := w.adopt(); err != nil {
		return err
	}
	for range w.streams {
		e, err := w.rt.NewEvent()
		if err != nil {
			return err
		}
		w.events = append(w.events, e)
	}
	w.desk, err = w.rt.NewPool(symmem.PoolOptions{FirstSegment: first})
	return err
}

// machines is how many machines the ranks of the world are on.
func (w *world) machines() int { return w.rt.World().Stats().Tuning.Machines }

// settle waits for all streams, in their order, which is an event of every pool's history.
func (w *world) settle(ctx context.Context) error {
	for _, s := range w.streams {
		if err := s.Synchronize(ctx); err != nil {
			return fmt.Errorf("synchronizing stream %d: %w", s.Number(), err)
		}
	}
	return nil
}

// meet returns when all ranks have come and all their work is done.
func (w *world) meet(ctx context.Context) error {
	if err := w.settle(ctx); err != nil {
		return err
	}
	if err := w.rt.World().Barrier(ctx, nil); err != nil {
		return err
	}
	return w.rt.DefaultStream().Synchronize(ctx)
}

// gather tells every rank the numbers of all others, which are equally many on each.
func (w *world) gather(ctx context.Context, mine []int64) ([][]int64, error) {
	sent := make([]byte, 0, 8*len(mine))
	for _, v := range mine {
		sent = binary.NativeEndian.AppendUint64(sent, uint64(v))
	}
	received := make([]byte, len(sent)*w.rt.Size())
	if err := w.allGather(ctx, sent, received); err != nil {
		return nil, fmt.Errorf("gathering what ranks have found: %w", err)
	}
	all := make([][]int64, w.rt.Size())
	for i := range len(received) / 8 {
		rank := i / len(mine)
		all[rank] = append(all[rank], int64(binary.NativeEndian.Uint64(received[8*i:])))
	}
	return all, nil
}

func (w *world) allGather(ctx context.Context, sent, received []byte) (err error) {
	var parts [2]symmem.Memory
	for i, n := range []int{len(sent), len(received)} {
		b, allocErr := w.desk.Alloc(int64(n))
		if allocErr != nil {
			return allocErr
		}
		defer func() { err = errors.Join(err, b.Free()) }()
		if parts[i], err = b.Memory().Slice(0, int64(n)); err != nil {
			return err
		}
	}
	s := w.rt.DefaultStream()
	if err := s.Copy(parts[0], symmem.Host(sent)); err != nil {
		return err
	}
	err = w.quiet.AllGather(ctx, parts[0], parts[1], int64(len(sent)), symmem.Uint8, s)
	if err != nil {
		return err
	}
	if err := s.Copy(symmem.Host(received), parts[1]); err != nil {
		return err
	}
	return s.Synchronize(ctx)
}

// mapped is how many bytes the pools of the world have.
func (w *world) mapped() (bytes int64) {
	for _, p := range w.rt.Stats().Pools {
		bytes += p.Used + p.Cached
	}
	return bytes
}
