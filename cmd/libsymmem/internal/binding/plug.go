package binding

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// plugs are the calls of engines that open nothing, and only plug in an allocator.
type plugs struct{ l *Library }

// PlugAlloc is Alloc for engines that open nothing: it opens this process as a job of its own, on
// the device that is given, if the library is not open. Their communicators join the ranks.
func (p *plugs) PlugAlloc(
	number int, bytes uint64, device int, stream uintptr, site uint32,
) (uintptr, error) {
	if p.l.rank.Load() == nil {
		err := p.l.open(context.Background(), &Options{Size: 1, Device: &device, Backend: "nccl"}, true)
		if err != nil && p.l.rank.Load() == nil {
			return 0, err
		}
	}
	if err := p.l.DeviceFits(device); err != nil {
		return 0, err
	}
	return p.l.Alloc(number, bytes, stream, site)
}

// The results of NCCL that PlugRegister returns.
const (
	ncclSystemError     = 2
	ncclInternalError   = 3
	ncclInvalidArgument = 4
	ncclInvalidUsage    = 5
	ncclRemoteError     = 6
)

// PlugResult returns the ncclResult_t of an error.
func PlugResult(err error) int {
	switch CodeOf(err) {
	case OK:
		return 0
	case Panic:
		return ncclInternalError
	case Invalid, Unsupported:
		return ncclInvalidArgument
	case Divergence, NotOpen, Closed, Forked:
		return ncclInvalidUsage
	case Timeout, RankLost, Aborted:
		return ncclRemoteError
	default:
		return ncclSystemError
	}
}

// PlugRegister registers what a communicator has not got of pool 0: collective over it if something
// is new. During a capture it leaves that to the next call, and warns once: until then the memory
// is in no window, on all ranks alike.
func (p *plugs) PlugRegister(comm uintptr) error {
	r, err := p.l.current()
	if err != nil {
		return err
	}
	adopted, err := adoptedBy(r, comm)
	if err != nil {
		return err
	}
	pool, err := r.pool(0)
	if err != nil {
		return err
	}
	if err := pool.flush(); err != nil {
		return err
	}
	err = adopted.Register(context.Background(), pool.Pool)
	if !errors.Is(err, symmem.ErrCapturing) {
		return err
	}
	if r.pinning.CompareAndSwap(false, true) {
		p.l.warn("symmem: the pool has grown while a graph is captured: what is new is in no " +
			"window there; allocate as much before the capture")
	}
	return nil
}

// adoptedBy returns what was adopted of a communicator, by its address.
func adoptedBy(r *rank, comm uintptr) (*symmem.AdoptedCommunicator, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if adopted := r.plugs[comm]; adopted != nil {
		return adopted, nil
	}
	adopted, err := r.rt.Interop().AdoptCommunicator(comm, fmt.Sprintf("%#x", comm), nil)
	if err != nil {
		return nil, err
	}
	r.plugs[comm] = adopted
	return adopted, nil
}

// PlugForget drops a communicator that has ended, or is about to, so that another one at its
// address is a new one.
func (p *plugs) PlugForget(comm uintptr) error {
	r, err := p.l.current()
	if err != nil {
		return err
	}
	r.mu.Lock()
	adopted := r.plugs[comm]
	delete(r.plugs, comm)
	r.mu.Unlock()
	if adopted == nil {
		return fmt.Errorf("communicator %#x: %w", comm, symmem.ErrForeign)
	}
	adopted.Forget()
	return nil
}
