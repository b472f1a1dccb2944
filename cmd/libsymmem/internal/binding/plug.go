package binding

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem"
)

// plugin implements the functions in symmem.h for inference engines that allocate memory with
// symmem, and run collectives with NCCL. PlugRegister registers the memory from Library.PlugAlloc
// with the engine's NCCL communicator.
type plugin struct {
	session       *session
	printedErrors sync.Map // set of error texts
}

// PlugAlloc is like Alloc, but opens a main world with only this rank if no main world is open.
func (l *Library) PlugAlloc(
	poolNumber int, bytes uint64, device int, stream uintptr, site uint32,
) (uintptr, error) {
	if err := l.openAlone(device); err != nil {
		return 0, err
	}

	if err := l.CheckDevice(poolNumber, device); err != nil {
		return 0, err
	}

	return l.Alloc(poolNumber, bytes, stream, site)
}

// openAlone opens a main world with only this rank, unless a main world is already open.
func (l *Library) openAlone(device int) error {
	if l.IsOpen() {
		return nil
	}

	o := &Options{Size: 1, Device: &device, Backend: "nccl"}
	err := l.openMain(context.Background(), o, aloneWorld)
	if err != nil && l.IsOpen() {
		return nil // another thread has opened the main world meanwhile
	}

	return err
}

// mainPool is the number of the pool that opens with the main world.
const mainPool = 0

// PlugRegister registers the main pool's new memory with the NCCL communicator comm, an ncclComm_t.
// All ranks of the communicator must call it if there is new memory. New memory cannot be
// registered during a CUDA graph capture; PlugRegister then only prints a warning.
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

	if err := main.freeRetired(); err != nil {
		return err
	}

	err = communicator.Register(context.Background(), main.Pool)
	if errors.Is(err, symmem.ErrCapturing) {
		r.captureWarning.Do(func() {
			p.session.printWarning("symmem: the pool grew during a graph capture, so collectives on " +
				"the new memory do not use windows in that graph; allocate the memory before the capture")
		})
		return nil
	}

	return err
}

// adopt returns the AdoptedCommunicator for the ncclComm_t comm. The first call creates it.
func (r *rank) adopt(comm uintptr) (*symmem.AdoptedCommunicator, error) {
	return r.pluginComms.findOrCreate(comm, func(uintptr) (*symmem.AdoptedCommunicator, error) {
		var noGroup *symmem.Group
		name := fmt.Sprintf("%#x", comm)
		return r.rt.Interop().AdoptCommunicator(comm, name, noGroup)
	})
}

// PlugStatus returns the ncclResult_t for a result of PlugRegister. It prints errors, but each text
// only once, because engines repeat a failed registration in every step.
func (p *plugin) PlugStatus(comm uintptr, err error) int {
	if err != nil {
		text := fmt.Sprintf("symmem: registering with communicator %#x: %v", comm, err)
		_, isPrinted := p.printedErrors.LoadOrStore(text, true)
		if !isPrinted {
			p.session.printWarning(text)
		}
	}

	return ncclResult(err)
}

// Values of NCCL's enum ncclResult_t.
const (
	ncclSuccess         = 0
	ncclSystemError     = 2
	ncclInternalError   = 3
	ncclInvalidArgument = 4
	ncclInvalidUsage    = 5
	ncclRemoteError     = 6
)

func ncclResult(err error) int {
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

// PlugForget removes a communicator that was passed to PlugRegister. Engines must call it when they
// destroy the communicator, because a new one may get the same address.
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
