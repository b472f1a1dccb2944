package nccl

// A teardown frees a communicator in steps. Before each step, decideStep decides which one is next.
//
// This file uses three words:
//
//   - A window kernel is an NCCL kernel that accesses windows (memory registered with NCCL).
//   - A plain kernel is any other NCCL kernel.
//   - A foreign graph is a CUDA graph that another library has captured.
//
// Two examples:
//
//   - Rank 1 has exited, and a plain kernel of rank 0 waits for it. Rank 0 calls NCCL's CommAbort,
//     which makes the kernel exit and then frees NCCL's part of the communicator. This is the step
//     "abort". The steps "drain" and "await graphs" follow: they wait for the group's work and for
//     CUDA graphs. The step "finish" frees the memory.
//   - All work has succeeded, and the program closes the group. Usually, the steps are
//     "deregister", which removes the group's memory from NCCL, and then "await graphs", "abort"
//     and "finish".
//
// These properties of NCCL and CUDA determine what must come before the abort:
//
//   - A plain kernel or a call to NCCL may wait for a lost rank. Only the abort stops it.
//   - A window kernel ignores the abort in NCCL 2.27.3 to 2.30.7, and may run until the process
//     exits. CommAbort would wait for the kernel. Meanwhile, it would hold locks of CUDA that every
//     call to CUDA needs. So the drain comes first.
//   - A foreign graph can be replayed at any time. If it contains window kernels, the abort must
//     come after it has been destroyed.
//   - CommAbort waits for all work of the device, and most calls to CUDA wait for CommAbort. So
//     symmem's own kernels and work of closed streams must end first.
//   - NCCL before 2.29.7 leaks the memory of windows that are still registered at the abort. No
//     kernel may run while a window is deregistered.

// step is a step of a teardown.
type step string

const (
	// stepDrain waits, with a timeout, until no stream has work of the group.
	stepDrain step = "drain"
	// stepAbort calls CommAbort, or CommDestroy if peers may need data, in the background.
	stepAbort step = "abort"
	// stepDeregister deregisters the windows that no foreign graph uses.
	stepDeregister step = "deregister"
	// stepAwaitOwnGraphs waits until symmem's graphs with calls of the group are closed.
	stepAwaitOwnGraphs step = "await graphs"
	// stepAwaitForeignGraphs frees memory that foreign graphs do not use, and waits until the
	// foreign graphs with calls of the group are destroyed.
	stepAwaitForeignGraphs step = "await captures"
	// stepAwaitDevice waits for work that could delay the abort for long.
	stepAwaitDevice step = "await device"

	// The last step of a teardown is one of the following three.

	// stepFinish waits for the abort and frees all memory.
	stepFinish step = "finish"
	// stepAbandonStreams leaks the CUDA streams with work of the group.
	stepAbandonStreams step = "abandon"
	// stepKeepCommunicator leaks the communicator until the process exits.
	stepKeepCommunicator step = "keep"
)

// isLast reports whether the teardown ends after the step.
func (s step) isLast() bool {
	return s == stepFinish || s == stepAbandonStreams || s == stepKeepCommunicator
}

// progress contains what a teardown has done up to now.
type progress struct {
	hasDrainTimedOut bool // the last drain has timed out; an abort of running kernels clears it
	hasDeregistered  bool // stepDeregister has been executed
	haveKernelsEnded bool // no step waits for the group's kernels any more
	hasAborted       bool // stepAbort has been executed
}

// facts contains all that decideStep uses. It is collected before each step.
type facts struct {
	progress

	hasStuckKernel bool // a kernel of the process never exits
	hasBlockedCall bool // a call to NCCL waits for another rank
	isIdle         bool // no stream has unfinished work of the group
	// hasWindowKernels and hasPlainKernels are set if such a kernel of the group may be running.
	// Plain kernels of closed streams may run even if isIdle is set.
	hasWindowKernels, hasPlainKernels bool
	// mustKeepMemory is set while work of closed streams or groups may use the device's memory.
	mustKeepMemory bool
	// hasForeignGraphs is set if foreign graphs contain calls of the group.
	hasForeignGraphs bool
	// hasForeignPlainKernels and hasForeignWindowKernels are set if these graphs contain such
	// kernels. They are unknown and not set while hasBlockedCall is set.
	hasForeignPlainKernels, hasForeignWindowKernels bool
	// canAbortQuickly is set unless other work of the device could delay the abort for long.
	canAbortQuickly bool
}

// canDrain reports whether a drain can be useful.
func (f *facts) canDrain() bool { return !f.isIdle && !f.hasDrainTimedOut }

// decideStep returns the next step of a teardown.
func decideStep(f *facts) step {
	isNearEnd := f.haveKernelsEnded && f.hasAborted // only memory remains to be freed
	switch {
	case f.hasStuckKernel && !isNearEnd:
		return decideWhileStuck(f)
	case f.hasAborted:
		return decideAfterAbort(f)
	case f.haveKernelsEnded:
		return decideBeforeAbort(f)
	default:
		return decideWithKernels(f)
	}
}

// decideWithKernels returns the next step while kernels of the group may run, before the abort.
func decideWithKernels(f *facts) step {
	mayHaveWindowKernels := f.hasWindowKernels || f.hasForeignWindowKernels
	switch {
	case mayHaveWindowKernels && f.canDrain() && !f.hasBlockedCall:
		return stepDrain // before the abort, which window kernels ignore
	case f.hasWindowKernels && !f.isIdle && !f.hasBlockedCall:
		return stepAbandonStreams // the drain has timed out
	case needsAbort(f):
		return stepAbort
	case f.canDrain():
		return stepDrain
	case f.isIdle && !f.hasDeregistered:
		return stepDeregister
	default:
		return stepAwaitOwnGraphs
	}
}

// needsAbort reports whether only the abort can end the group's work. This is the case for a
// blocked call to NCCL, and for NCCL kernels that may wait for other ranks.
func needsAbort(f *facts) bool {
	mayRunOnClosedStream := f.hasPlainKernels && f.mustKeepMemory
	hasKernels := f.hasPlainKernels || f.hasForeignPlainKernels || f.hasForeignWindowKernels
	mayRunOnOpenStream := !f.isIdle && hasKernels
	return f.hasBlockedCall || mayRunOnClosedStream || mayRunOnOpenStream
}

// decideBeforeAbort returns the next step after the group's kernels have ended and before the
// abort.
func decideBeforeAbort(f *facts) step {
	// Foreign graphs with plain kernels need no wait: the abort stops plain kernels, and NCCL keeps
	// their memory.
	hasOnlyPlainKernels := f.hasForeignPlainKernels && !f.hasForeignWindowKernels
	mustAwaitGraphs := f.hasForeignGraphs && !hasOnlyPlainKernels
	switch {
	case mustAwaitGraphs:
		return stepAwaitForeignGraphs
	case !f.canAbortQuickly:
		return stepAwaitDevice
	default:
		return stepAbort
	}
}

// decideAfterAbort returns the next step after stepAbort.
func decideAfterAbort(f *facts) step {
	switch {
	case f.haveKernelsEnded && f.hasForeignGraphs:
		return stepAwaitForeignGraphs
	case f.haveKernelsEnded:
		return stepFinish
	case f.canDrain():
		// The drain ends the wait of a Recv whose message never arrives. The abort waits for kernels
		// that are queued after the Recv.
		return stepDrain
	case f.hasWindowKernels:
		return stepAbandonStreams // a window kernel ignores the abort, and may never exit
	default:
		return stepAwaitOwnGraphs
	}
}

// decideWhileStuck returns the next step if a kernel of the process never exits. It uses the abort
// only to make a blocked call to NCCL return.
func decideWhileStuck(f *facts) step {
	switch {
	case f.haveKernelsEnded:
		return stepKeepCommunicator
	case f.canDrain():
		return stepDrain
	case f.hasBlockedCall && !f.hasAborted:
		return stepAbort
	case !f.isIdle:
		return stepAbandonStreams
	default:
		return stepKeepCommunicator
	}
}
