package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// plugin implements the functions for inference engines that use symmem only as an allocator.
type plugin struct {
	session       *session
	openLibrary   func(device int) error
	printedErrors sync.Map // set of error texts
}

// openAlone opens the main world with only this rank, unless the main world is already open.
func (l *Library) openAlone(device int) error {
	if l.IsOpen() {
		return nil
	}
	o := &Options{Size: 1, Device: &device, Backend: "nccl"}
	err := l.openMain(context.Background(), o, aloneRank)
	if l.IsOpen() {
		return nil // if err is not nil, another thread has opened it in the meantime
	}
	return err
}

// PlugAlloc allocates like Alloc, and opens the main world with only this rank if necessary.
func (p *plugin) PlugAlloc(
	poolNumber int, bytes uint64, device int, stream uintptr, site uint32,
) (uintptr, error) {
	if err := p.openLibrary(device); err != nil {
		return 0, err
	}
	allPools := pools{p.session}
	if err := allPools.CheckDevice(poolNumber, device); err != nil {
		return 0, err
	}
	return allPools.Alloc(poolNumber, bytes, stream, site)
}

// Values of NCCL's enum ncclResult_t that PlugResult returns.
const (
	ncclSuccess         = 0
	ncclSystemError     = 2
	ncclInternalError   = 3
	ncclInvalidArgument = 4
	ncclInvalidUsage    = 5
	ncclRemoteError     = 6
)

// PlugResult returns the ncclResult_t for an error.
func PlugResult(err error) int {
	switch CodeOf(err) {
	case CodeOK:
		return ncclSuccess
	case CodePanic:
		return ncclInternalError
	case CodeInvalid, CodeUnsupported:
		return ncclInvalidArgument
	case CodeDivergence, CodeNotOpen, CodeClosed, CodeForked:
		return ncclInvalidUsage
	case CodeTimeout, CodeRankLost, CodeAborted:
		return ncclRemoteError
	default:
		return ncclSystemError
	}
}

// mainPool is the number of the pool that opening the main world creates.
const mainPool = 0

// PlugRegister registers new memory of the main pool with a communicator. If there is new memory,
// the call is collective. During a graph capture, it only prints a warning.
func (p *plugin) PlugRegister(comm uintptr) error {
	r, err := p.session.mainWorldRank()
	if err != nil {
		return err
	}
	communicator, err := r.adopt(comm)
	if err != nil {
		return err
	}
	_, pool, err := p.session.pool(mainPool)
	if err != nil {
		return err
	}
	if err := pool.flush(); err != nil {
		return err
	}
	err = communicator.Register(context.Background(), pool.Pool)
	if !errors.Is(err, symmem.ErrCapturing) {
		return err
	}
	r.captureWarning.Do(func() {
		p.session.printWarning("symmem: the pool grew during a graph capture, so collectives on " +
			"the new memory do not use windows in that graph; allocate the memory before the capture")
	})
	return nil
}

// adopt returns the AdoptedCommunicator of an ncclComm_t. The first call creates it.
func (r *rank) adopt(comm uintptr) (*symmem.AdoptedCommunicator, error) {
	return r.pluginComms.findOrCreate(comm, func(uintptr) (*symmem.AdoptedCommunicator, error) {
		return r.rt.Interop().AdoptCommunicator(comm, fmt.Sprintf("%#x", comm), nil)
	})
}

// PlugStatus returns the ncclResult_t for the error of a registration. It prints each error text
// once, because engines try again in every step.
func (p *plugin) PlugStatus(comm uintptr, err error) int {
	if err != nil {
		text := fmt.Sprintf("symmem: registering with communicator %#x: %v", comm, err)
		if _, isPrinted := p.printedErrors.LoadOrStore(text, true); !isPrinted {
			p.session.printWarning(text)
		}
	}
	return PlugResult(err)
}

// PlugForget forgets a communicator that its owner destroys. A later communicator may have the
// same address.
func (p *plugin) PlugForget(comm uintptr) error {
	r, err := p.session.mainWorldRank()
	if err != nil {
		return err
	}
	communicator, ok := r.pluginComms.remove(comm)
	if !ok {
		return fmt.Errorf("forgetting communicator %#x: %w", comm, symmem.ErrForeign)
	}
	communicator.Forget()
	return nil
}
