package nccl

// Every communicator is destroyed by CommAbort. The abort ends kernels that wait for other ranks,
// which is needed after a fault. If no kernel is running, it does the same as CommDestroy, but
// without waiting for other ranks. (CommDestroy joins threads that serve the ranks of the machine
// until those leave. So does CommRevoke, which could end kernels and keep the communicator.)
//
// These facts about NCCL determine the steps before the abort:
//
//   - A call to NCCL that waits for a lost rank ends only by the abort, and so does a plain kernel
//     (a kernel that uses no window).
//   - A window kernel ignores the abort flag (2.27.3 to 2.30.7). If it waits for a lost rank, it
//     runs until the process ends, and CommAbort would wait for it forever, holding locks of CUDA
//     that every call of the process needs. So a communicator with such a kernel is abandoned
//     instead, unless a call needs the abort. Nor is it aborted while graphs of other libraries
//     contain window kernels, which may be replayed at any time.
//   - CommAbort waits for all work of the device, and most calls to CUDA wait for CommAbort. So it
//     must follow the end of direct kernels, which end without it, and of unfinished work of closed
//     streams.
//   - NCCL before 2.29.7 frees the memory of a window before the end of the process only if the
//     window is deregistered before the abort. No kernel may run during a deregistration.

// step is one step of the end of a communicator.
type step string

const (
	// stepDrain waits until streams have no work of the group, for a limited time.
	stepDrain step = "drain"
	// stepAbort starts the abort of NCCL's communicator in the background.
	stepAbort step = "abort"
	// stepDeregister deregisters the windows before the abort.
	stepDeregister step = "deregister"
	// stepAwaitGraphs declares that the group's kernels have ended, or are late, and waits until our
	// own graphs with calls of the group are closed.
	stepAwaitGraphs step = "await graphs"
	// stepAwaitCaptures frees everything that graphs of other libraries do not use, and waits for the
	// end of these graphs.
	stepAwaitCaptures step = "await captures"
	// stepAwaitDevice waits until the device has no work for which the abort would wait long.
	stepAwaitDevice step = "await device"

	// One of the following steps is the last.

	// stepFinish waits for the abort and frees everything.
	stepFinish step = "finish"
	// stepAbandon abandons the streams with work of the group, and NCCL's communicator.
	stepAbandon step = "abandon"
	// stepKeep keeps NCCL's communicator until the process ends.
	stepKeep step = "keep"
)

// last reports whether no step follows.
func (s step) last() bool { return s == stepFinish || s == stepAbandon || s == stepKeep }

// progress records the steps that were taken.
type progress struct {
	// late reports whether the last drain has timed out. The abort resets it, since it ends more work.
	late bool
	// deregistered, kernelsEnded and aborted report whether these steps were taken.
	deregistered, kernelsEnded, aborted bool
}

// facts describes the state of a communicator during its teardown.
type facts struct {
	progress

	// stuck reports whether some GPU of the process has a kernel that never ends. Any call to NCCL may
	// wait for it.
	stuck bool
	// calling reports whether a call to NCCL is waiting for another rank.
	calling bool
	// idle reports whether no stream has work of the group.
	idle bool
	// windows and plain report whether NCCL's window kernels, and other kernels of NCCL, may be
	// running. An idle group may have a plain kernel on a stream that was closed before its end.
	windows, plain bool
	// keeps reports whether the device has unfinished work of closed streams (gpu.GPU.KeepsMemory).
	keeps bool
	// held reports whether graphs of other libraries contain calls of the group, which may be
	// replayed at any time; heldPlain and heldWindows report whether these include plain and window
	// kernels of NCCL. While calling is true, these two are unknown and false.
	held, heldPlain, heldWindows bool
	// quiet reports whether the device has no work for which an abort would wait long.
	quiet bool
}

// decide returns the next step of the end of a communicator.
func decide(f *facts) step {
	switch {
	case f.stuck && (!f.kernelsEnded || !f.aborted):
		return nextWhileStuck(f)
	case f.aborted:
		return nextAfterAbort(f)
	case f.kernelsEnded:
		return nextBeforeAbort(f)
	case (f.windows || f.heldWindows) && !f.idle && !f.late && !f.calling:
		return stepDrain // to find out whether a window kernel does not end
	case f.windows && !f.idle && !f.calling:
		return stepAbandon
	case needsAbort(f):
		return stepAbort
	case !f.idle && !f.late:
		return stepDrain
	case f.idle && !f.deregistered:
		return stepDeregister
	default:
		return stepAwaitGraphs
	}
}

// needsAbort reports whether there may be a call or a kernel that only the abort ends.
func needsAbort(f *facts) bool {
	return f.calling || f.plain && f.keeps || !f.idle && (f.plain || f.heldPlain || f.heldWindows)
}

// nextBeforeAbort decides the next step when nothing needs the abort. It does not wait for graphs of
// other libraries that contain plain kernels only: the abort ends these kernels, also in later
// replays, and NCCL keeps the memory they use until the graphs are gone.
func nextBeforeAbort(f *facts) step {
	switch {
	case f.held && (f.heldWindows || !f.heldPlain):
		return stepAwaitCaptures
	case !f.quiet:
		return stepAwaitDevice
	default:
		return stepAbort
	}
}

// nextAfterAbort decides the next step once the abort was started.
func nextAfterAbort(f *facts) step {
	switch {
	case f.kernelsEnded && f.held:
		return stepAwaitCaptures
	case f.kernelsEnded:
		return stepFinish
	case !f.idle && !f.late:
		return stepDrain // NCCL waits for kernels, which may be queued after messages that never arrive
	case f.windows:
		return stepAbandon // the call has ended, but a window kernel before it does not end
	default:
		return stepAwaitGraphs
	}
}

// nextWhileStuck decides the next step while a kernel of the process is stuck. It aborts the
// communicator only to end a call, and does not wait for that abort.
func nextWhileStuck(f *facts) step {
	switch {
	case f.kernelsEnded:
		return stepKeep
	case !f.idle && !f.late:
		return stepDrain
	case f.calling && !f.aborted:
		return stepAbort
	case !f.idle:
		return stepAbandon
	default:
		return stepKeep
	}
}
