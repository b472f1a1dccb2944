package nccl

// A teardown frees a communicator in steps, usually deregister, await own graphs, abort and finish.
// Window kernels are NCCL kernels that access windows (memory registered with NCCL). Plain kernels
// are the other NCCL kernels. Foreign graphs are CUDA graphs captured by other libraries.
//
// The following rules determine the order of the steps:
//
//   - If a rank is lost, calls to NCCL and plain kernels wait until CommAbort ends them.
//   - Window kernels ignore CommAbort in NCCL 2.27.3 to 2.30.7. The teardown first waits for these
//     kernels, and for the destruction of foreign graphs, which can replay them.
//   - CommAbort blocks most calls to CUDA until all work of the device has ended, including
//     symmem's own kernels and work on closed streams.
//   - Kernels must end before the deregistration of a window. NCCL before 2.29.7 leaks windows that
//     are still registered at the abort.

type step string

const (
	// stepDrain waits for the group's work on all streams, with a timeout.
	stepDrain step = "drain"
	// stepAbort starts CommAbort in the background, or CommDestroy if peers may still need data.
	stepAbort step = "abort"
	// stepDeregister deregisters the windows that no foreign graph uses.
	stepDeregister step = "deregister"
	// stepAwaitOwnGraphs waits until symmem's graphs with calls of the group are closed.
	stepAwaitOwnGraphs step = "await own graphs"
	// stepAwaitForeignGraphs frees memory that foreign graphs do not use, and waits until the foreign
	// graphs with calls of the group are destroyed.
	stepAwaitForeignGraphs step = "await foreign graphs"
	// stepAwaitDevice waits for other work of the device that could delay the abort for long.
	stepAwaitDevice step = "await device"

	// A teardown ends with one of the following steps.

	// stepFinish waits for the abort and frees all memory.
	stepFinish step = "finish"
	// stepAbandonStreams leaks the CUDA streams with work of the group.
	stepAbandonStreams step = "abandon"
	// stepKeepCommunicator leaks the communicator.
	stepKeepCommunicator step = "keep"
)

func (s step) isLast() bool {
	return s == stepFinish || s == stepAbandonStreams || s == stepKeepCommunicator
}

type progress struct {
	hasDrainTimedOut bool // cleared by stepAbort, so that the drain can be repeated
	hasDeregistered  bool // stepDeregister has been executed
	haveKernelsEnded bool // kernels have exited, or the teardown no longer waits for them
	hasAborted       bool // stepAbort has been executed
}

// facts is the input of decideStep.
type facts struct {
	progress

	hasStuckKernel bool // some kernel of the process never exits
	hasBlockedCall bool // a call to NCCL waits for another rank
	isIdle         bool // no open stream has unfinished work of the group

	hasWindowKernels bool // window kernels of the group may be running
	hasPlainKernels  bool // plain kernels of the group may be running, perhaps on closed streams
	mustKeepMemory   bool // closed streams or groups may still use memory
	canAbortQuickly  bool // no other work can delay the abort for long

	// The following fields describe foreign graphs with calls of the group. The last two stay false
	// if hasBlockedCall is set, because their values are then unknown.

	hasForeignGraphs        bool
	hasForeignPlainKernels  bool
	hasForeignWindowKernels bool
}

func (f *facts) canDrain() bool { return !f.isIdle && !f.hasDrainTimedOut }

func decideStep(f *facts) step {
	hasOnlyMemoryLeft := f.haveKernelsEnded && f.hasAborted
	switch {
	case f.hasStuckKernel && !hasOnlyMemoryLeft:
		return decideWhileStuck(f)
	case f.hasAborted:
		return decideAfterAbort(f)
	case f.haveKernelsEnded:
		return decideBeforeAbort(f)
	default:
		return decideWithKernels(f)
	}
}

// decideWithKernels applies before the abort, while the group's kernels may run.
func decideWithKernels(f *facts) step {
	mayRunWindowKernels := f.hasWindowKernels || f.hasForeignWindowKernels
	switch {
	case f.hasBlockedCall:
		return stepAbort // only the abort ends the call
	case mayRunWindowKernels && f.canDrain():
		return stepDrain // before the abort, which window kernels ignore
	case f.hasWindowKernels && !f.isIdle:
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

// needsAbort reports whether NCCL kernels may be running. Without the abort, they may never end.
func needsAbort(f *facts) bool {
	mayRunOnClosedStream := f.hasPlainKernels && f.mustKeepMemory
	hasForeignKernels := f.hasForeignPlainKernels || f.hasForeignWindowKernels
	mayRunOnOpenStream := !f.isIdle && (f.hasPlainKernels || hasForeignKernels)
	return mayRunOnClosedStream || mayRunOnOpenStream
}

func decideBeforeAbort(f *facts) step {
	// The abort stops plain kernels of foreign graphs, and NCCL keeps the memory that they use.
	canAbortGraphs := f.hasForeignPlainKernels && !f.hasForeignWindowKernels
	switch {
	case f.hasForeignGraphs && !canAbortGraphs:
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
	case f.canDrain():
		return stepDrain // ends each Recv without a message, which the abort would wait for
	case f.hasWindowKernels:
		return stepAbandonStreams // a window kernel ignores the abort, and may never exit
	default:
		return stepAwaitOwnGraphs
	}
}

// decideWhileStuck applies if a kernel of the process never exits. CommAbort would then never
// return, but it can still end a blocked call to NCCL.
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
