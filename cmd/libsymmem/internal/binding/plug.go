package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// An inference engine can use symmem only as an allocator, and NCCL for its collectives. Suppose
// that an engine runs on 4 ranks:
//
//   - On each rank, it calls PlugAlloc. The engine has not opened symmem, so the first call opens
//     the main world. A world is a set of ranks that use symmem together. Here, it contains only
//     this rank.
//   - Unless the engine selects another pool, PlugAlloc allocates memory in the main pool, which
//     was created with the main world.
//   - The engine creates an NCCL communicator of its 4 ranks. On each rank, PlugRegister registers
//     the memory with this communicator.
//   - When the engine destroys the communicator, it calls PlugForget.

// plugin implements the functions in symmem.h for inference engines.
type plugin struct {
	session       *session
	openLibrary   func(device int) error // openAlone
	printedErrors sync.Map               // set of error texts
}

// mainPool is the number of the main pool.
const mainPool = 0

// openAlone opens the main world with only this rank, unless it is already open.
func (l *Library) openAlone(device int) error {
	if l.IsOpen() {
		return nil
	}

	o := &Options{Size: 1, Device: &device, Backend: "nccl"}
	err := l.openMain(context.Background(), o, aloneRank)
	if l.IsOpen() {
		return nil // if there is an error, another thread has opened the world in the meantime
	}

	return err
}

// PlugAlloc allocates like Alloc. If the main world is not open, PlugAlloc opens one with only this
// rank.
func (p *plugin) PlugAlloc(
	poolNumber int, bytes uint64, device int, stream uintptr, site uint32,
) (uintptr, error) {
	if err := p.openLibrary(device); err != nil {
		return 0, err
	}

	ps := pools{p.session}
	if err := ps.CheckDevice(poolNumber, device); err != nil {
		return 0, err
	}

	return ps.Alloc(poolNumber, bytes, stream, site)
}

// PlugRegister registers the new memory of the main pool with an NCCL communicator: all memory that
// is not yet registered with it. comm is the ncclComm_t. If there is new memory, all ranks of the
// communicator must call PlugRegister.
//
// During the capture of a CUDA graph, PlugRegister cannot register new memory. Instead, it prints a
// warning, but only once for each world.
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

	if err := main.flush(); err != nil { // frees the buffers whose frees were delayed
		return err
	}

	err = communicator.Register(context.Background(), main.Pool)
	isCapturing := errors.Is(err, symmem.ErrCapturing)
	if !isCapturing {
		return err
	}

	r.captureWarning.Do(func() {
		p.session.printWarning("symmem: the pool grew during a graph capture, so collectives on " +
			"the new memory do not use windows in that graph; allocate the memory before the capture")
	})
	return nil
}

// adopt returns symmem's object for an ncclComm_t. The first call creates it.
func (r *rank) adopt(comm uintptr) (*symmem.AdoptedCommunicator, error) {
	return r.pluginComms.findOrCreate(comm, func(uintptr) (*symmem.AdoptedCommunicator, error) {
		return r.rt.Interop().AdoptCommunicator(comm, fmt.Sprintf("%#x", comm), nil)
	})
}

// PlugStatus returns the ncclResult_t for the result of PlugRegister. It also prints an error. It
// prints the same text only once, because engines repeat a failed registration in every step.
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
	default:
		return ncclSystemError
	}
}

// PlugForget forgets a communicator. Call it when the engine destroys the communicator, because a
// later communicator may have the same address.
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
