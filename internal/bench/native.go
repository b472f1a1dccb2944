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

// native is NCCL without symmem: a communicator of its own over the same ranks, made as the backend
// makes its, with the same buffers in a window of its own and others in none. All calls are made
// on one thread that keeps the device current, which is what a program in C does.
type native struct {
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

// newNative is collective over the world.
func newNative(ctx context.Context, l *lane) (*native, error) {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return nil, err
	}
	library, err := nccl.Load("")
	if err != nil {
		return nil, err
	}
	n := &native{
		l: l, localRank: world.LocalRank, library: library,
		send: l.send.Address(), recv: l.recv.Address(),
	}
	if err := n.ordinary(); err != nil {
		return nil, err
	}
	id, err := n.id(ctx)
	if err != nil {
		return nil, err
	}
	err = backend.Current(n.localRank, func(gpu *cuda.Driver) error {
		n.driver = gpu
		return n.connect(id)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connecting NCCL: %w", err), n.close())
	}
	return n, nil
}

// ordinary makes the buffers that lie in no window.
func (n *native) ordinary() error {
	for _, at := range []*uintptr{&n.sendPlain, &n.recvPlain} {
		b, err := n.l.desk.Alloc(4 * submitCount)
		if err != nil {
			return err
		}
		*at = b.Address()
	}
	return nil
}

// id has rank 0 make NCCL's id, and gives it to all ranks.
func (n *native) id(ctx context.Context) (id nccl.UniqueID, err error) {
	var message []byte
	if n.l.rt.Rank() == 0 {
		err = backend.Current(n.localRank, func(*cuda.Driver) (err error) {
			id, err = n.library.UniqueID()
			return err
		})
		if err != nil {
			return id, err
		}
		message = id[:]
	}
	message, err = n.l.share(ctx, message)
	if err == nil && copy(id[:], message) != len(id) {
		err = errors.New("rank 0 made no id")
	}
	return id, err
}

// connect makes the communicator, the stream and the window.
func (n *native) connect(id nccl.UniqueID) (err error) {
	rt := n.l.rt
	if n.comm, err = n.library.CommInitRank(rt.Size(), rt.Rank(), id, nccl.Config{}); err != nil {
		return err
	}
	if n.stream, err = n.driver.StreamCreate(true); err != nil {
		return err
	}
	if !n.library.Windows() {
		return nil
	}
	s := n.l.send.Pool().Segments()[n.l.send.Segment()]
	n.window, err = n.library.WindowRegister(n.comm, s.Address, s.Bytes, nccl.WindowSymmetric)
	return err
}

// submission is on the buffers in windows for the window path; the direct path, which NCCL has not,
// is compared with its plain one.
func (n *native) submission(path symmem.PathChoice) (*submission, error) {
	send, recv := n.sendPlain, n.recvPlain
	if path == symmem.PathWindow {
		if send, recv = n.send, n.recv; n.window == 0 {
			return nil, nil
		}
	}
	call := n.library.AllReduce(send, recv, submitCount, nccl.Float32, nccl.Sum, n.comm)
	return &submission{
		name:   "ncclAllReduce",
		submit: func() error { return call.On(n.stream) },
		wait:   func() error { return n.driver.StreamSynchronize(n.stream) },
		around: func(batch func() error) error {
			return backend.Current(n.localRank, func(*cuda.Driver) error { return batch() })
		},
	}, nil
}

func (n *native) close() error {
	return backend.Current(n.localRank, func(gpu *cuda.Driver) error {
		var errs []error
		if n.window != 0 {
			errs = append(errs, n.library.WindowDeregister(n.comm, n.window))
		}
		if n.comm != 0 {
			errs = append(errs, n.library.CommDestroy(n.comm))
		}
		if n.stream != 0 {
			errs = append(errs, gpu.StreamDestroy(n.stream))
		}
		return errors.Join(errs...)
	})
}
