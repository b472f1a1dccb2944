package nccl

// A teardown frees a communicator in steps, usually deregister, await graphs, abort and finish.
// decideStep selects each step. Window kernels are NCCL kernels that access windows, memory
// registered with NCCL. Plain kernels are all others. Foreign graphs are CUDA graphs captured by
// other libraries.
//
// The abort, a call to NCCL's CommAbort, has these constraints:
//
//   - Only the abort ends plain kernels and calls to NCCL that wait for a lost rank.
//   - Window kernels ignore the abort in NCCL 2.27.3 to 2.30.7, so they are drained first. Foreign
//     graphs can replay them until the graphs are destroyed.
//   - CommAbort waits for all work of the device, including symmem's own kernels and closed
//     streams. Meanwhile, it blocks most calls to CUDA.
//   - NCCL before 2.29.7 leaks windows that are still registered. Kernels must end before the
//     deregistration of a window.

type step string

const (
	// stepDrain waits for the group's work on all streams, up to a timeout.
	stepDrain step = "drain"
	// stepAbort starts CommAbort in the background, or CommDestroy if peers may still need data.
	stepAbort step = "abort"
	// stepDeregister deregisters the windows that no foreign graph uses.
	stepDeregister step = "deregister"
	// stepAwaitOwnGraphs waits until symmem's graphs with calls of the group are closed.
	stepAwaitOwnGraphs step = "await graphs"
	// stepAwaitForeignGraphs frees memory that foreign graphs do not use, and waits until those with
	// calls of the group are destroyed.
	stepAwaitForeignGraphs step = "await captures"
	// stepAwaitDevice waits for work that could delay the abort for long.
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
	hasDrainTimedOut bool // cleared by an abort, which may end the kernels
	hasDeregistered  bool // stepDeregister has been executed
	haveKernelsEnded bool // the wait for the group's kernels is over
	hasAborted       bool // stepAbort has been executed
}

// facts is the input of decideStep, collected before each step.
type facts struct {
	progress

	hasStuckKernel bool // some kernel of the process never exits
	hasBlockedCall bool // a call to NCCL waits for another rank
	isIdle         bool // no stream has unfinished work of the group
	// hasWindowKernels and hasPlainKernels are set if such kernels of the group may be running. Plain
	// kernels may run on closed streams even if isIdle is set.
	hasWindowKernels, hasPlainKernels bool
	mustKeepMemory                    bool // closed streams or groups may still use memory
	hasForeignGraphs                  bool // foreign graphs contain calls of the group
	// hasForeignPlainKernels and hasForeignWindowKernels describe the foreign graphs. A blocked call
	// hides these facts, which are then false.
	hasForeignPlainKernels, hasForeignWindowKernels bool
	canAbortQuickly                                 bool // no other work can delay the abort for long
}

func (f *facts) canDrain() bool { return !f.isIdle && !f.hasDrainTimedOut }

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

// decideWithKernels applies before the abort, while the group's kernels may run.
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

// needsAbort reports whether only the abort can end a blocked call or kernels.
func needsAbort(f *facts) bool {
	mayRunOnClosedStream := f.hasPlainKernels && f.mustKeepMemory
	hasKernels := f.hasPlainKernels || f.hasForeignPlainKernels || f.hasForeignWindowKernels
	mayRunOnOpenStream := !f.isIdle && hasKernels
	return f.hasBlockedCall || mayRunOnClosedStream || mayRunOnOpenStream
}

func decideBeforeAbort(f *facts) step {
	// The abort stops plain kernels of foreign graphs, and NCCL keeps the memory that they use.
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

func decideAfterAbort(f *facts) step {
	switch {
	case f.haveKernelsEnded && f.hasForeignGraphs:
		return stepAwaitForeignGraphs
	case f.haveKernelsEnded:
		return stepFinish
	case f.canDrain():
		// A Recv without a message blocks the kernels queued behind it, for which the abort waits. The
		// drain ends the Recv.
		return stepDrain
	case f.hasWindowKernels:
		return stepAbandonStreams // a window kernel ignores the abort, and may never exit
	default:
		return stepAwaitOwnGraphs
	}
}

// decideWhileStuck applies if a kernel of the process never exits. The abort then only serves to
// unblock a call to NCCL.
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
