package nccl

// A teardown (the steps that free a communicator) frees NCCL's communicator with CommAbort. This
// call, the abort, stops kernels that wait for other ranks. CommDestroy would wait for other ranks.
// CommDestroy replaces it if the group spans machines and was closed without a fault, its kernels
// have ended, and no foreign graph contains its calls.
//
// These facts determine the steps before the abort. A window kernel is an NCCL kernel that accesses
// windows (registered memory). A plain kernel is an NCCL kernel that uses no window. A foreign
// graph is a CUDA graph of another library.
//
//   - A call to NCCL or a plain kernel can wait for a lost rank. Only the abort stops it.
//   - A window kernel ignores the abort in NCCL 2.27.3 to 2.30.7. If it waits for a lost
//     rank, it runs until the process exits. CommAbort would wait for it and meanwhile hold
//     CUDA locks that every call needs. In this case, the abort is used only to make a call
//     to NCCL return, and otherwise the communicator is never freed.
//   - Foreign graphs can be replayed at any time. If they contain window kernels, the abort
//     waits until these graphs are destroyed.
//   - CommAbort waits for all work of the device, and most calls to CUDA wait for CommAbort.
//     Direct kernels (symmem's own) and work of closed streams must therefore end first.
//   - NCCL before 2.29.7 never frees the memory of a window that is still registered at the
//     abort. No kernel is allowed to run while a window is deregistered.

type step string

const (
	// stepDrain waits for a limited time until no stream has work of the group.
	stepDrain      step = "drain"
	stepAbort      step = "abort"
	stepDeregister step = "deregister"
	// stepAwaitOwnGraphs closes stages.kernelsEnded, even if the last drain timed out, and waits
	// until symmem's own graphs with calls of the group are closed.
	stepAwaitOwnGraphs step = "await graphs"
	// stepAwaitForeignGraphs frees all memory that foreign graphs do not use. It then waits until
	// foreign graphs with calls of the group are destroyed.
	stepAwaitForeignGraphs step = "await captures"
	// stepAwaitDevice waits until the device has no work that could delay the abort for long.
	stepAwaitDevice step = "await device"

	// The following steps are the last of a teardown.

	// stepFinish waits for the abort and frees all memory.
	stepFinish step = "finish"
	// stepAbandonStreams never frees the streams with work of the group, or NCCL's communicator.
	stepAbandonStreams step = "abandon"
	// stepKeepCommunicator keeps NCCL's communicator until the process exits.
	stepKeepCommunicator step = "keep"
)

func (s step) isLast() bool {
	return s == stepFinish || s == stepAbandonStreams || s == stepKeepCommunicator
}

type progress struct {
	// hasDrainTimedOut is set if the last stepDrain timed out. The abort clears it.
	hasDrainTimedOut bool
	hasDeregistered  bool
	haveKernelsEnded bool
	hasAborted       bool
}

// facts holds everything that determines the next step.
type facts struct {
	progress

	// hasStuckKernel is set if a GPU of the process runs a kernel that never exits. Any call to
	// NCCL might wait for that kernel.
	hasStuckKernel bool
	// hasBlockedCall is set if a call to NCCL waits for another rank.
	hasBlockedCall bool
	// isIdle is set if no stream has unfinished work of the group.
	isIdle bool
	// hasWindowKernels and hasPlainKernels are set if such kernels may be running. A plain kernel
	// of a closed stream may be running even if isIdle is set.
	hasWindowKernels, hasPlainKernels bool
	mustKeepMemory                    bool
	// hasForeignGraphs is set if foreign graphs contain calls of the group. The next two fields are
	// set if these graphs contain plain kernels or window kernels of the group. They are never set
	// if hasBlockedCall is set.
	hasForeignGraphs, hasForeignPlainKernels, hasForeignWindowKernels bool
	canAbortQuickly                                                   bool
}

func decideStep(f *facts) step {
	switch {
	case f.hasStuckKernel && (!f.haveKernelsEnded || !f.hasAborted):
		return decideWhileStuck(f)
	case f.hasAborted:
		return decideAfterAbort(f)
	case f.haveKernelsEnded:
		return decideBeforeAbort(f)
	case (f.hasWindowKernels || f.hasForeignWindowKernels) &&
		!f.isIdle && !f.hasDrainTimedOut && !f.hasBlockedCall:
		return stepDrain
	case f.hasWindowKernels && !f.isIdle && !f.hasBlockedCall:
		return stepAbandonStreams
	case needsAbort(f):
		return stepAbort
	case !f.isIdle && !f.hasDrainTimedOut:
		return stepDrain
	case f.isIdle && !f.hasDeregistered:
		return stepDeregister
	default:
		return stepAwaitOwnGraphs
	}
}

// needsAbort reports whether only the abort can stop some call or kernel.
func needsAbort(f *facts) bool {
	ncclMayRun := f.hasPlainKernels || f.hasForeignPlainKernels || f.hasForeignWindowKernels
	return f.hasBlockedCall || f.hasPlainKernels && f.mustKeepMemory || !f.isIdle && ncclMayRun
}

// decideBeforeAbort returns the next step if no call or kernel needs the abort. The abort need not
// wait for foreign graphs that contain only plain kernels, because it stops these kernels and NCCL
// keeps their memory.
func decideBeforeAbort(f *facts) step {
	switch {
	case f.hasForeignGraphs && (f.hasForeignWindowKernels || !f.hasForeignPlainKernels):
		return stepAwaitForeignGraphs
	case !f.canAbortQuickly:
		return stepAwaitDevice
	default:
		return stepAbort
	}
}

func decideAfterAbort(f *facts) step {
	switch {
	case f.haveKernelsEnded && f.hasForeignGraphs:
		return stepAwaitForeignGraphs
	case f.haveKernelsEnded:
		return stepFinish
	case !f.isIdle && !f.hasDrainTimedOut:
		// The abort waits for kernels that are queued behind a Recv whose message never arrives.
		return stepDrain
	case f.hasWindowKernels:
		return stepAbandonStreams // a window kernel runs forever
	default:
		return stepAwaitOwnGraphs
	}
}

// decideWhileStuck returns the next step if a kernel of the process never exits. In this case, the
// abort only makes a blocked call to NCCL return, and no step waits for the abort.
func decideWhileStuck(f *facts) step {
	switch {
	case f.haveKernelsEnded:
		return stepKeepCommunicator
	case !f.isIdle && !f.hasDrainTimedOut:
		return stepDrain
	case f.hasBlockedCall && !f.hasAborted:
		return stepAbort
	case !f.isIdle:
		return stepAbandonStreams
	default:
		return stepKeepCommunicator
	}
}
