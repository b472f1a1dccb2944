package bench

import (
	"context"
	"fmt"
	"os"

	"symmem"
	backend "symmem/driver/nccl"
	"symmem/internal/cuda"
	"symmem/internal/nccl"
	"symmem/internal/rendezvous"
)

// native is NCCL without symmem, and all else alike: the same communicator, stream and, on the
// window path, buffers. On another communicator of NCCL's the same call takes 100 ns more or less
// (docs/measurements/gpu-2026-11.md), a third of what may be added here. All calls are made on one
// thread that keeps the device current, which is what a program in C does.
type native struct {
	l         *lane
	localRank int
	library   *nccl.Library
	comm      nccl.Comm
	stream    cuda.Stream
	// send and recv are in the windows of the group, sendPlain and recvPlain in none.
	send, recv, sendPlain, recvPlain uintptr
}

func newNative(l *lane) (*native, error) {
	world, err := rendezvous.Discover(os.LookupEnv, rendezvous.Options{})
	if err != nil {
		return nil, err
	}
	library, err := nccl.Load()
	if err != nil {
		return nil, err
	}
	n := &native{
		l: l, localRank: world.LocalRank, library: library,
		comm:   nccl.Comm(l.rt.World().Handle()),
		stream: cuda.Stream(l.rt.DefaultStream().Handle()),
		send:   l.send.Address(), recv: l.recv.Address(),
	}
	pool, err := l.rt.NewPool(symmem.PoolOptions{}) // without windows
	if err != nil {
		return nil, err
	}
	for _, at := range []*uintptr{&n.sendPlain, &n.recvPlain} {
		b, err := pool.Alloc(4 * submitCount)
		if err != nil {
			return nil, fmt.Errorf("making the buffers: %w", err)
		}
		*at = b.Address()
	}
	return n, nil
}

// submission is on the buffers in windows for the window path; the direct path, which NCCL has not,
// is compared with its plain one.
func (n *native) submission(path symmem.PathChoice) (*submission, error) {
	send, recv := n.sendPlain, n.recvPlain
	if path == symmem.PathWindow {
		send, recv = n.send, n.recv
	}
	call := n.library.AllReduce(send, recv, submitCount, nccl.Float32, nccl.Sum, n.comm)
	return &submission{
		name:   "ncclAllReduce",
		submit: func() error { return call.On(n.stream) },
		wait:   func() error { return n.l.rt.DefaultStream().Synchronize(context.Background()) },
		around: func(batch func() error) error {
			return backend.Current(n.localRank, func(*cuda.Driver) error { return batch() })
		},
	}, nil
}

// close has nothing to do: communicator and stream are the group's.
func (n *native) close() error { return nil }
