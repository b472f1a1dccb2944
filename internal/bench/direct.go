package bench

import (
	"context"
	"errors"
	"fmt"
	"os"

	"symmem"
	backend "symmem/driver/nccl"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
	"symmem/internal/rendezvous"
)

// direct is NCCL without symmem: a communicator of its own over the same ranks, made as the backend
// makes its, with the same buffers in a window of its own and others in none. All calls are made
// on one thread that keeps the device current, which is what a program in C does.
type direct struct {
	l         *lane
	localRank int
	library   *nccl.Library
	driver    *cuda.Driver
	comm      nccl.Comm
	stream    cuda.Stream
	window    nccl.Window
	// send and recv are in the window, sendPlain and recvPlain in none.
	send, recv, sendPlain, recvPlain uintptr
}

// newDirect is collective over the world.
func newDirect(ctx context.Context, l *lane) (*direct, error) {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return nil, err
	}
	library, err := nccl.Load("")
	if err != nil {
		return nil, err
	}
	d := &direct{
		l: l, localRank: world.LocalRank, library: library,
		send: l.send.Address(), recv: l.recv.Address(),
	}
	if err := d.ordinary(); err != nil {
		return nil, err
	}
	id, err := d.id(ctx)
	if err != nil {
		return nil, err
	}
	err = backend.Current(d.localRank, func(gpu *cuda.Driver) error {
		d.driver = gpu
		return d.connect(id)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connecting NCCL: %w", err), d.close())
	}
	return d, nil
}

// ordinary makes the buffers that lie in no window.
func (d *direct) ordinary() error {
	for _, at := range []*uintptr{&d.sendPlain, &d.recvPlain} {
		b, err := d.l.desk.Alloc(4 * submitCount)
		if err != nil {
			return err
		}
		*at = b.Address()
	}
	return nil
}

// id has rank 0 make NCCL's id, and gives it to all ranks.
func (d *direct) id(ctx context.Context) (id nccl.UniqueID, err error) {
	var message []byte
	if d.l.rt.Rank() == 0 {
		err = backend.Current(d.localRank, func(*cuda.Driver) (err error) {
			id, err = d.library.UniqueID()
			return err
		})
		if err != nil {
			return id, err
		}
		message = id[:]
	}
	message, err = d.l.share(ctx, message)
	if err == nil && copy(id[:], message) != len(id) {
		err = errors.New("rank 0 made no id")
	}
	return id, err
}

// connect makes the communicator, the stream and the window.
func (d *direct) connect(id nccl.UniqueID) (err error) {
	rt := d.l.rt
	if d.comm, err = d.library.CommInitRank(rt.Size(), rt.Rank(), id, nccl.Config{}); err != nil {
		return err
	}
	if d.stream, err = d.driver.StreamCreate(true); err != nil {
		return err
	}
	if !d.library.Windows() {
		return nil
	}
	s := d.l.send.Pool().Segments()[d.l.send.Segment()]
	d.window, err = d.library.WindowRegister(d.comm, s.Address, s.Bytes, nccl.WindowSymmetric)
	return err
}

func (d *direct) submission(path symmem.PathChoice) (*submission, error) {
	send, recv := d.sendPlain, d.recvPlain
	if path == symmem.PathWindow {
		if send, recv = d.send, d.recv; d.window == 0 {
			return nil, nil
		}
	}
	return &submission{
		name: "ncclAllReduce",
		submit: func() error {
			return d.library.AllReduce(
				send, recv, submitCount, nccl.Float32, nccl.Sum, d.comm, d.stream)
		},
		wait: func() error { return d.driver.StreamSynchronize(d.stream) },
		around: func(batch func() error) error {
			return backend.Current(d.localRank, func(*cuda.Driver) error { return batch() })
		},
	}, nil
}

func (d *direct) close() error {
	return backend.Current(d.localRank, func(gpu *cuda.Driver) error {
		var errs []error
		if d.window != 0 {
			errs = append(errs, d.library.WindowDeregister(d.comm, d.window))
		}
		if d.comm != 0 {
			errs = append(errs, d.library.CommDestroy(d.comm))
		}
		if d.stream != 0 {
			errs = append(errs, gpu.StreamDestroy(d.stream))
		}
		return errors.Join(errs...)
	})
}
