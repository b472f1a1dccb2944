package nccl

// A teardown (the steps that free a communicator) calls CommAbort. This call, named the abort in
// this file, stops kernels that wait for other ranks. A window kernel is an NCCL kernel that
// accesses windows (registered memory), and a plain kernel is any other NCCL kernel. A foreign
// graph is a CUDA graph of another library. These facts determine the steps before the abort:
//
//   - Only the abort stops a plain kernel or a call to NCCL that waits for a lost rank.
//   - A window kernel ignores the abort in NCCL 2.27.3 to 2.30.7, and may run until the process
//     exits. CommAbort would wait for it with CUDA locks held that every call needs.
//   - Foreign graphs can be replayed at any time. If they contain window kernels, the abort
//     waits until these graphs are destroyed.
//   - CommAbort waits for all work of the device, and most calls to CUDA wait for CommAbort.
//     symmem's own kernels and work of closed streams must therefore end first.
//   - NCCL before 2.29.7 leaks the memory of windows that are still registered at the abort.
//     No kernel may run while a window is deregistered.

type step string

const (
	stepDrain      step = "drain" // waits, with a timeout, until no stream has work of the group
	stepAbort      step = "abort"
	stepDeregister step = "deregister"
	// stepAwaitOwnGraphs waits until symmem's graphs with calls of the group are closed.
	stepAwaitOwnGraphs step = "await graphs"
	// stepAwaitForeignGraphs also frees memory that foreign graphs do not use.
	stepAwaitForeignGraphs step = "await captures"
	// stepAwaitDevice waits for work that could delay the abort for long.
	stepAwaitDevice step = "await device"

	// The last step of a teardown is one of the following.

	// stepFinish waits for the abort and frees all memory.
	stepFinish step = "finish"
	// stepAbandonStreams leaks the CUDA streams with work of the group.
	stepAbandonStreams   step = "abandon"
	stepKeepCommunicator step = "keep" // until the process exits
)

func (s step) isLast() bool {
	return s == stepFinish || s == stepAbandonStreams || s == stepKeepCommunicator
}

type progress struct {
	hasDrainTimedOut bool // cleared by the abort
	hasDeregistered  bool
	haveKernelsEnded bool
	hasAborted       bool
}

type facts struct {
	progress

	hasStuckKernel bool // a kernel of the process never exits
	hasBlockedCall bool // a call to NCCL waits for another rank
	isIdle         bool // no stream has unfinished work of the group
	// A kernel counts if it may be running. Plain kernels of closed streams may run even if isIdle.
	hasWindowKernels, hasPlainKernels bool
	mustKeepMemory                    bool
	// These are for foreign graphs with calls of the group. The last two are false if
	// hasBlockedCall.
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

func needsAbort(f *facts) bool {
	ncclMayRun := f.hasPlainKernels || f.hasForeignPlainKernels || f.hasForeignWindowKernels
	return f.hasBlockedCall || f.hasPlainKernels && f.mustKeepMemory || !f.isIdle && ncclMayRun
}

// decideBeforeAbort ignores foreign graphs that contain only plain kernels. The abort stops these
// kernels, and NCCL keeps their memory.
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
		// The abort waits for kernels queued after a Recv whose message never arrives.
		return stepDrain
	case f.hasWindowKernels:
		return stepAbandonStreams // a window kernel never exits
	default:
		return stepAwaitOwnGraphs
	}
}

// decideWhileStuck uses the abort only to make a blocked call to NCCL return.
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
