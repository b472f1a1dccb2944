package nccl

// A teardown always destroys NCCL's communicator with CommAbort. After a fault, the abort stops
// kernels that wait for other ranks. If no kernel is running, CommAbort does the same as
// CommDestroy, but it does not wait for other ranks. (CommDestroy joins threads that serve the
// other ranks of the machine, so it waits until these ranks destroy their communicators.
// CommRevoke stops kernels and keeps the communicator, but it also waits for other ranks.)
//
// These facts about NCCL determine the steps before the abort:
//
// - A call to NCCL or a plain kernel (one that uses no window) may wait for a lost rank, and only
// the abort stops it. - A window kernel ignores the abort flag (in NCCL 2.27.3 to 2.30.7). If it
// waits for a lost rank, it runs until the process exits. CommAbort would wait for it forever while
// holding CUDA locks that every call of the process needs. The teardown therefore abandons such a
// communicator. It aborts the communicator only if a call to NCCL must be unblocked. - Graphs of
// other libraries may be replayed at any time, so the teardown does not abort the communicator
// while such graphs contain its window kernels. - CommAbort waits for all work of the device, and
// most calls to CUDA wait for CommAbort, so direct kernels and unfinished work of closed streams
// must finish first. - NCCL before 2.29.7 keeps the memory of a window until the process exits,
// unless the window is deregistered before the abort. No kernel may run during a deregistration.

// step names a step of a teardown.
type step string

const (
	// stepDrain waits, for a limited time, until no stream has work of the group.
	stepDrain step = "drain"
	// stepAbort starts the abort of NCCL's communicator in the background.
	stepAbort step = "abort"
	// stepDeregister deregisters the windows. It precedes the abort.
	stepDeregister step = "deregister"
	// stepAwaitOwnGraphs closes stages.kernelsEnded, because the teardown no longer waits for
	// kernels, even if some are still running after the last drain. It then waits until symmem's
	// own graphs with calls of the group are closed.
	stepAwaitOwnGraphs step = "await graphs"
	// stepAwaitForeignGraphs frees everything that graphs of other libraries do not use. It then
	// waits until those graphs are destroyed.
	stepAwaitForeignGraphs step = "await captures"
	// stepAwaitDevice waits until the device has no work that could delay the abort for long.
	stepAwaitDevice step = "await device"

	// The last step of a teardown is stepFinish, stepAbandonStreams or stepKeepCommunicator.

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

// progress records which steps the teardown has executed.
type progress struct {
	// drainTimedOut is set if the last drain timed out. The abort clears it, because the abort also
	// stops work for which the drain could only wait.
	drainTimedOut bool
	// deregistered, kernelsEnded and aborted are set once stepDeregister, stepAwaitOwnGraphs and
	// stepAbort, respectively, have been executed.
	deregistered, kernelsEnded, aborted bool
}

// facts describes the state of a communicator during its teardown.
type facts struct {
	progress

	// stuck is set if a GPU of the process runs a kernel that never exits. Any call to NCCL may
	// wait for that kernel.
	stuck bool
	// blockedCall is set if a call to NCCL is waiting for another rank.
	blockedCall bool
	// idle is set if no stream has unfinished work of the group.
	idle bool
	// windows is set if window kernels of NCCL may be running. plain is set if plain kernels may be
	// running, which is possible even if the group is idle, because a stream can be closed before
	// its kernel has exited.
	windowKernels, plainKernels bool
	// closedStreamsBusy is set if the device has unfinished work of closed streams
	// (gpu.GPU.MustKeepMemory).
	closedStreamsBusy bool
	// captured is set if graphs of other libraries contain calls of the group. Such graphs may be
	// replayed at any time. foreignPlainKernels is set if these graphs contain plain kernels of
	// NCCL, and foreignWindowKernels is set if they contain window kernels of NCCL. If blockedCall
	// is set, the kernels are unknown, and both fields are false.
	foreignGraphs, foreignPlainKernels, foreignWindowKernels bool
	// quickAbort is set if the device has no work that could delay the abort for long.
	quickAbort bool
}

// decide returns the next step of a teardown.
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

// decideBeforeAbort returns the next step if no call or kernel needs the abort. It does not wait
// for graphs of other libraries that contain only plain kernels: the abort stops these kernels,
// even in later replays, and NCCL keeps their memory until the graphs are destroyed.
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

// decideAfterAbort returns the next step after the start of the abort.
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

// decideWhileStuck returns the next step if a kernel of the process is stuck. The communicator is
// then aborted only to unblock a call to NCCL, and no step waits for the abort.
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
