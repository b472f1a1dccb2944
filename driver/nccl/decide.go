package nccl

// A teardown always destroys NCCL's communicator with CommAbort, which stops kernels that wait for
// other ranks. (CommDestroy and CommRevoke wait for other ranks.)
//
// These facts about NCCL determine the steps before the abort. A window kernel is an NCCL kernel
// that accesses windows (registered memory); a plain kernel uses no window. A foreign graph is a
// graph of another library.
//
//   - A call to NCCL or a plain kernel may wait for a lost rank, and only the abort stops it.
//   - A window kernel ignores the abort flag (in NCCL 2.27.3 to 2.30.7). If it waits for a
//     lost rank, it runs until the process exits, and CommAbort would wait for it while
//     holding CUDA locks that every call needs. The communicator is then abandoned, or
//     aborted only to unblock a call to NCCL.
//   - Foreign graphs may be replayed at any time. If they contain window kernels, the abort
//     waits until they are destroyed.
//   - CommAbort waits for all work of the device, and most calls to CUDA wait for CommAbort.
//     Direct kernels and unfinished work of closed streams must therefore finish first.
//   - NCCL before 2.29.7 never frees the memory of a window that is still registered at the
//     abort. No kernel may run during a deregistration.

type step string

const (
	// stepDrain waits, for a limited time, until no stream has work of the group.
	stepDrain step = "drain"
	// stepAbort starts the abort of NCCL's communicator.
	stepAbort      step = "abort"
	stepDeregister step = "deregister"
	// stepAwaitOwnGraphs closes stages.kernelsEnded, even if the last drain timed out, and waits
	// until symmem's own graphs with calls of the group are closed.
	stepAwaitOwnGraphs step = "await graphs"
	// stepAwaitForeignGraphs frees everything that foreign graphs do not use, and waits until they
	// are destroyed.
	stepAwaitForeignGraphs step = "await captures"
	// stepAwaitDevice waits until the device has no work that could delay the abort for long.
	stepAwaitDevice step = "await device"

	// The following steps are the last of a teardown.

	// stepFinish waits for the abort and frees everything.
	stepFinish step = "finish"
	// stepAbandonStreams abandons the streams with work of the group, and NCCL's communicator.
	stepAbandonStreams step = "abandon"
	// stepKeepCommunicator keeps NCCL's communicator until the process exits.
	stepKeepCommunicator step = "keep"
)

func (s step) isLast() bool {
	return s == stepFinish || s == stepAbandonStreams || s == stepKeepCommunicator
}

type progress struct {
	// drainTimedOut is set if the last drain timed out. The abort clears it, because the abort also
	// stops work for which the drain could only wait.
	hasDrainTimedOut                              bool
	hasDeregistered, haveKernelsEnded, hasAborted bool
}

type facts struct {
	progress

	// hasStuckKernel is set if a GPU of the process runs a kernel that never exits. Any call to
	// NCCL may wait for it.
	hasStuckKernel bool
	// blockedCall is set if a call to NCCL is waiting for another rank.
	hasBlockedCall bool
	// idle is set if no stream has unfinished work of the group.
	isIdle bool
	// windowKernels and plainKernels are set if such kernels may be running. A plain kernel may run
	// even if the group is idle, because its stream may have been closed.
	hasWindowKernels, hasPlainKernels bool
	mustKeepMemory                    bool
	// foreignGraphs is set if foreign graphs contain calls of the group. The other fields are set
	// if these graphs contain plain kernels or window kernels. They are not set if blockedCall is
	// set.
	hasForeignGraphs, hasForeignPlainKernels, hasForeignWindowKernels bool
	// quickAbort is set if the device has no work that could delay the abort for long.
	canAbortQuickly bool
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
		return stepDrain // find out whether the window kernels exit
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

// needsAbort reports whether there may be a call or a kernel that only the abort can stop.
func needsAbort(f *facts) bool {
	ncclMayRun := f.hasPlainKernels || f.hasForeignPlainKernels || f.hasForeignWindowKernels
	return f.hasBlockedCall || f.hasPlainKernels && f.mustKeepMemory || !f.isIdle && ncclMayRun
}

// decideBeforeAbort returns the next step if no call or kernel needs the abort. The abort also
// stops plain kernels in foreign graphs, and NCCL keeps their memory. The abort therefore need not
// wait for graphs that contain only plain kernels.
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
		// The abort waits for kernels, and a kernel may be queued behind a Recv whose message never
		// arrives.
		return stepDrain
	case f.hasWindowKernels:
		return stepAbandonStreams // an earlier window kernel runs forever
	default:
		return stepAwaitOwnGraphs
	}
}

// decideWhileStuck returns the next step if a kernel of the process is stuck. The abort then only
// unblocks a call to NCCL, and no step waits for it.
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
