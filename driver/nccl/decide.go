package nccl

// A communicator always ends by CommAbort. The abort ends kernels that wait for other ranks, which
// is needed after a fault. Once nothing runs any more it does the work of CommDestroy, but waits
// for no other rank. (CommDestroy joins threads that serve the ranks of the machine until those
// leave. So does CommRevoke, which could end kernels and keep the communicator.)
//
// These facts about NCCL determine the steps before the abort:
//
//   - A call of NCCL that waits for a lost rank ends only by the abort, and so does a plain kernel
//     (one over no window).
//   - A window kernel ignores the abort flag (2.27.3 to 2.30.7). If it waits for a lost rank it
//     runs until the process ends, and CommAbort would wait for it forever, holding locks of CUDA
//     that every call of the process needs. So a communicator with such a kernel is abandoned
//     instead, unless a call needs the abort. Nor is it aborted while graphs of other libraries
//     have window kernels, which may be replayed at any time.
//   - CommAbort waits for all work of the device, and most calls of CUDA wait for CommAbort. So it
//     comes after kernels of our own, which end without it, and after work that was left behind.
//   - Only windows that are deregistered before the abort return their memory; NCCL before 2.29.7
//     keeps that of the others until the process ends. No kernel may run during a deregistration.

// step is one step of the end of a communicator.
type step string

const (
	// stepDrain waits until streams have no work of the group, for a limited time.
	stepDrain step = "drain"
	// stepAbort has NCCL end the communicator, in the background.
	stepAbort step = "abort"
	// stepDeregister takes the windows back, before the communicator ends.
	stepDeregister step = "deregister"
	// stepAwaitGraphs declares that the group's kernels have ended, or are late, and waits until our
	// own graphs with calls of the group are closed.
	stepAwaitGraphs step = "await graphs"
	// stepAwaitCaptures gives back everything that graphs of other libraries do not hold, and waits
	// for these graphs.
	stepAwaitCaptures step = "await captures"
	// stepAwaitDevice waits until the device does nothing for which the abort would wait long.
	stepAwaitDevice step = "await device"

	// The following steps are the last.

	// stepFinish waits for the abort and gives everything back.
	stepFinish step = "finish"
	// stepAbandon gives up the work of the group on its streams, and NCCL's communicator with it.
	stepAbandon step = "abandon"
	// stepLeave leaves NCCL's communicator to the end of the process.
	stepLeave step = "leave"
)

// last reports whether no step follows.
func (s step) last() bool { return s == stepFinish || s == stepAbandon || s == stepLeave }

// progress records the steps that were taken.
type progress struct {
	// late reports whether drain has given up waiting. The abort, which ends more, resets it.
	late bool
	// deregistered, kernelsEnded and aborted report whether these steps were taken.
	deregistered, kernelsEnded, aborted bool
}

// facts describe a communicator that ends, at one moment.
type facts struct {
	progress

	// stuck reports whether some GPU of the process has a kernel that never ends. NCCL may wait for
	// it with any communicator.
	stuck bool
	// calling reports whether a call of NCCL's is under way that waits for another rank.
	calling bool
	// idle reports whether no stream has work of the group.
	idle bool
	// windows and plain report whether window kernels of NCCL's, and other kernels of NCCL's, may be
	// under way. An idle group may have a plain one on a stream that was closed before its end.
	windows, plain bool
	// keeps reports whether the device has work that was left behind when its stream was closed.
	keeps bool
	// held reports whether graphs of other libraries have calls of the group, which may be replayed
	// unseen; heldPlain and heldWindows whether these are plain and window kernels of NCCL's. The two
	// are not known, and false, during a call.
	held, heldPlain, heldWindows bool
	// quiet reports whether the device does nothing for which an abort would wait long.
	quiet bool
}

// decide returns the next step of the end of a communicator.
func decide(f *facts) step {
	switch {
	case f.stuck && (!f.kernelsEnded || !f.aborted):
		return whileStuck(f)
	case f.aborted:
		return afterAbort(f)
	case f.kernelsEnded:
		return beforeAbort(f)
	case (f.windows || f.heldWindows) && !f.idle && !f.late && !f.calling:
		return stepDrain // to learn whether a window kernel is there that does not end
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

// needsAbort reports whether something may be under way that ends by the abort alone.
func needsAbort(f *facts) bool {
	return f.calling || f.plain && f.keeps || !f.idle && (f.plain || f.heldPlain || f.heldWindows)
}

// beforeAbort decides when nothing of the group is under way that needs the abort. Graphs of other
// libraries that have plain kernels alone are not waited for: these end by the abort, also when
// they are replayed later, and NCCL keeps what they use until the graphs are gone.
func beforeAbort(f *facts) step {
	switch {
	case f.held && (f.heldWindows || !f.heldPlain):
		return stepAwaitCaptures
	case !f.quiet:
		return stepAwaitDevice
	default:
		return stepAbort
	}
}

// afterAbort decides while NCCL ends the communicator, or has done so.
func afterAbort(f *facts) step {
	switch {
	case f.kernelsEnded && f.held:
		return stepAwaitCaptures
	case f.kernelsEnded:
		return stepFinish
	case !f.idle && !f.late:
		return stepDrain // NCCL waits for kernels, which may be queued behind messages that never come
	case f.windows:
		return stepAbandon // the call has ended, a window kernel before it does not
	default:
		return stepAwaitGraphs
	}
}

// whileStuck decides while a kernel of another group never ends. The communicator is aborted only
// to end a call, and nothing waits for that abort.
func whileStuck(f *facts) step {
	switch {
	case f.kernelsEnded:
		return stepLeave
	case !f.idle && !f.late:
		return stepDrain
	case f.calling && !f.aborted:
		return stepAbort
	case !f.idle:
		return stepAbandon
	default:
		return stepLeave
	}
}
