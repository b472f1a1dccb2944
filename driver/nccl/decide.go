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
	drainTimedOut                       bool
	deregistered, kernelsEnded, aborted bool
}

type facts struct {
	progress

	// stuck is set if a GPU of the process runs a kernel that never exits. Any call to NCCL may
	// wait for it.
	stuck bool
	// blockedCall is set if a call to NCCL is waiting for another rank.
	blockedCall bool
	// idle is set if no stream has unfinished work of the group.
	idle bool
	// windowKernels and plainKernels are set if such kernels may be running. A plain kernel may run
	// even if the group is idle, because its stream may have been closed.
	windowKernels, plainKernels bool
	closedStreamsBusy           bool
	// foreignGraphs is set if foreign graphs contain calls of the group. The other fields are set
	// if these graphs contain plain kernels or window kernels. They are not set if blockedCall is
	// set.
	foreignGraphs, foreignPlainKernels, foreignWindowKernels bool
	// quickAbort is set if the device has no work that could delay the abort for long.
	quickAbort bool
}

func decide(f *facts) step {
	switch {
	case f.stuck && (!f.kernelsEnded || !f.aborted):
		return decideWhileStuck(f)
	case f.aborted:
		return decideAfterAbort(f)
	case f.kernelsEnded:
		return decideBeforeAbort(f)
	case (f.windowKernels || f.foreignWindowKernels) && !f.idle && !f.drainTimedOut && !f.blockedCall:
		return stepDrain // find out whether the window kernels exit
	case f.windowKernels && !f.idle && !f.blockedCall:
		return stepAbandonStreams
	case needsAbort(f):
		return stepAbort
	case !f.idle && !f.drainTimedOut:
		return stepDrain
	case f.idle && !f.deregistered:
		return stepDeregister
	default:
		return stepAwaitOwnGraphs
	}
}

// needsAbort reports whether there may be a call or a kernel that only the abort can stop.
func needsAbort(f *facts) bool {
	ncclMayRun := f.plainKernels || f.foreignPlainKernels || f.foreignWindowKernels
	return f.blockedCall || f.plainKernels && f.closedStreamsBusy || !f.idle && ncclMayRun
}

// decideBeforeAbort returns the next step if no call or kernel needs the abort. The abort also
// stops plain kernels in foreign graphs, and NCCL keeps their memory. The abort therefore need not
// wait for graphs that contain only plain kernels.
func decideBeforeAbort(f *facts) step {
	switch {
	case f.foreignGraphs && (f.foreignWindowKernels || !f.foreignPlainKernels):
		return stepAwaitForeignGraphs
	case !f.quickAbort:
		return stepAwaitDevice
	default:
		return stepAbort
	}
}

func decideAfterAbort(f *facts) step {
	switch {
	case f.kernelsEnded && f.foreignGraphs:
		return stepAwaitForeignGraphs
	case f.kernelsEnded:
		return stepFinish
	case !f.idle && !f.drainTimedOut:
		// The abort waits for kernels, and a kernel may be queued behind a Recv whose message never
		// arrives.
		return stepDrain
	case f.windowKernels:
		return stepAbandonStreams // an earlier window kernel runs forever
	default:
		return stepAwaitOwnGraphs
	}
}

// decideWhileStuck returns the next step if a kernel of the process is stuck. The abort then only
// unblocks a call to NCCL, and no step waits for it.
func decideWhileStuck(f *facts) step {
	switch {
	case f.kernelsEnded:
		return stepKeepCommunicator
	case !f.idle && !f.drainTimedOut:
		return stepDrain
	case f.blockedCall && !f.aborted:
		return stepAbort
	case !f.idle:
		return stepAbandonStreams
	default:
		return stepKeepCommunicator
	}
}
