package nccl

// Window kernels are NCCL kernels that access windows (memory registered with NCCL). Plain kernels
// are the other NCCL kernels. Foreign graphs are CUDA graphs captured by other libraries, which can
// replay them at any time.
//
// A teardown frees a communicator in steps. After all work has ended, the steps are:
//
//	deregister, await own graphs, abort, finish
//
// If a rank is lost while plain kernels run:
//
//	abort, drain, await own graphs, finish
//
// The order of the steps follows from these rules:
//
//   - If a rank is lost, plain kernels and calls to NCCL do not end before CommAbort.
//   - Window kernels ignore CommAbort in NCCL 2.27.3 to 2.30.7. They and the foreign graphs that
//     contain them must end before the abort.
//   - CommAbort blocks most calls to CUDA until all work of the device has ended, including
//     symmem's own kernels and work on closed streams.
//   - Kernels must end before a window is deregistered. NCCL before 2.29.7 leaks windows that are
//     still registered at the abort.

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
	// stepAwaitForeignGraphs waits until the foreign graphs with calls of the group are destroyed.
	stepAwaitForeignGraphs step = "await foreign graphs"
	// stepAwaitDevice waits for other work of the device, which would delay the abort.
	stepAwaitDevice step = "await device"

	// A teardown ends with one of the following steps.

	// stepFinish waits for the abort and frees all memory.
	stepFinish step = "finish"
	// stepKeepCommunicator leaks the communicator.
	stepKeepCommunicator step = "keep"
	// stepAbandonStreams also leaks the CUDA streams with work of the group.
	stepAbandonStreams step = "abandon"
)

func (s step) isLast() bool {
	return s == stepFinish || s == stepAbandonStreams || s == stepKeepCommunicator
}

type progress struct {
	hasDrainTimedOut bool // stepAbort clears it if kernels may be running
	hasDeregistered  bool // stepDeregister has been executed
	haveKernelsEnded bool // kernels have exited, or the drain has timed out
	hasAborted       bool // stepAbort has been executed
}

// facts is the input of decideStep.
type facts struct {
	progress

	hasStuckKernel bool // a kernel of the process, perhaps of another group, never exits
	hasBlockedCall bool // a call to NCCL waits for another rank
	isIdle         bool // no open stream has unfinished work of the group

	hasWindowKernels    bool // window kernels of the group may be running
	hasPlainKernels     bool // plain kernels of the group may be running
	closedStreamsMayRun bool // closed streams or groups may still use memory
	canAbortQuickly     bool // no other work can delay the abort for long

	hasForeignGraphs bool // there are foreign graphs with calls of the group

	// The kernels in these graphs. If hasBlockedCall is set, they are unknown, and the fields false.

	hasForeignPlainKernels  bool
	hasForeignWindowKernels bool
}

func decideStep(f *facts) step {
	onlyFreesMemory := f.haveKernelsEnded && f.hasAborted
	switch {
	case f.hasStuckKernel && !onlyFreesMemory:
		return decideWhileStuck(f)
	case f.hasAborted:
		return decideAfterAbort(f)
	case f.haveKernelsEnded:
		return decideAfterKernels(f)
	default:
		return decideWithKernels(f)
	}
}

// canDrain reports whether stepDrain has work to wait for, and has not timed out.
func (f *facts) canDrain() bool { return !f.isIdle && !f.hasDrainTimedOut }

// decideWithKernels applies before the abort, while the group's kernels may run.
func decideWithKernels(f *facts) step {
	mayRunWindowKernels := f.hasWindowKernels || f.hasForeignWindowKernels
	switch {
	case f.hasBlockedCall:
		return stepAbort // only the abort ends the call
	case mayRunWindowKernels && f.canDrain():
		return stepDrain
	case f.hasWindowKernels && !f.isIdle: // after the timeout of the drain
		return stepAbandonStreams
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

// needsAbort reports whether NCCL kernels may be running.
func needsAbort(f *facts) bool {
	mayRunOnClosedStream := f.hasPlainKernels && f.closedStreamsMayRun
	hasForeignKernels := f.hasForeignPlainKernels || f.hasForeignWindowKernels
	mayRunOnOpenStream := !f.isIdle && (f.hasPlainKernels || hasForeignKernels)
	return mayRunOnClosedStream || mayRunOnOpenStream
}

// decideAfterKernels applies before the abort, after the kernels have ended.
func decideAfterKernels(f *facts) step {
	// The abort stops replayed plain kernels, and NCCL keeps the memory that they use.
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
		return stepDrain // also ends Recvs without a message, for which the abort waits
	case f.hasWindowKernels:
		return stepAbandonStreams
	default:
		return stepAwaitOwnGraphs
	}
}

// decideWhileStuck applies if a kernel of the process never exits. CommAbort then never returns,
// but it can still end a blocked call to NCCL.
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
