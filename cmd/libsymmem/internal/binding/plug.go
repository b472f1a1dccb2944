package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// plugin implements the functions in symmem.h for inference engines that use symmem only as an
// allocator, and NCCL for collectives. PlugAlloc allocates memory, and PlugRegister registers it
// with the engine's NCCL communicator.
type plugin struct {
	session       *session
	openAlone     func(device int) error // Library.openAlone
	printedErrors sync.Map               // set of error texts
}

// mainPool is the number of the main world's first pool.
const mainPool = 0

// openAlone opens a main world of only this rank, unless a main world is already open.
func (l *Library) openAlone(device int) error {
	if l.IsOpen() {
		return nil
	}

	o := &Options{Size: 1, Device: &device, Backend: "nccl"}
	err := l.openMain(context.Background(), o, aloneRank)
	if err != nil && l.IsOpen() {
		return nil // another thread has opened the main world meanwhile
	}

	return err
}

// PlugAlloc is like Alloc, but first opens a main world of only this rank if none is open.
func (p *plugin) PlugAlloc(
	poolNumber int, bytes uint64, device int, stream uintptr, site uint32,
) (uintptr, error) {
	if err := p.openAlone(device); err != nil {
		return 0, err
	}

	ps := pools{p.session}
	if err := ps.CheckDevice(poolNumber, device); err != nil {
		return 0, err
	}

	return ps.Alloc(poolNumber, bytes, stream, site)
}

// PlugRegister registers the main pool's new memory with the NCCL communicator comm, an ncclComm_t.
// All ranks of the communicator must call it if there is new memory. During a CUDA graph capture,
// new memory cannot be registered, and PlugRegister prints a warning once for each world.
func (p *plugin) PlugRegister(comm uintptr) error {
	r, err := p.session.mainWorldRank()
	if err != nil {
		return err
	}

	communicator, err := r.adopt(comm)
	if err != nil {
		return err
	}

	_, main, err := p.session.pool(mainPool)
	if err != nil {
		return err
	}

	if err := main.flush(); err != nil { // completes delayed frees
		return err
	}

	err = communicator.Register(context.Background(), main.Pool)
	if !errors.Is(err, symmem.ErrCapturing) {
		return err
	}

	r.captureWarning.Do(func() {
		p.session.printWarning("symmem: the pool grew during a graph capture, so collectives on " +
			"the new memory do not use windows in that graph; allocate the memory before the capture")
	})
	return nil
}

// adopt returns the AdoptedCommunicator for the ncclComm_t comm. The first call creates it.
func (r *rank) adopt(comm uintptr) (*symmem.AdoptedCommunicator, error) {
	return r.pluginComms.findOrCreate(comm, func(uintptr) (*symmem.AdoptedCommunicator, error) {
		return r.rt.Interop().AdoptCommunicator(comm, fmt.Sprintf("%#x", comm), nil)
	})
}

// PlugStatus converts an error of PlugRegister to an ncclResult_t. It also prints the error, but
// each text only once, because engines repeat a failed registration in every step.
func (p *plugin) PlugStatus(comm uintptr, err error) int {
	if err != nil {
		text := fmt.Sprintf("symmem: registering with communicator %#x: %v", comm, err)
		_, isPrinted := p.printedErrors.LoadOrStore(text, true)
		if !isPrinted {
			p.session.printWarning(text)
		}
	}

	return PlugResult(err)
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
	default: // failures of the system, such as CodeOutOfMemory, and all others
		return ncclSystemError
	}
}

// PlugForget forgets a communicator. Engines must call it when they destroy a communicator, because
// a new communicator may get the same address.
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
