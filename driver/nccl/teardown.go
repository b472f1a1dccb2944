package nccl

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

// teardown frees a communicator after its group has failed or has been closed. It runs in the
// background, in steps that decideStep selects. Memory that graphs of other libraries use is freed
// when these graphs are destroyed.
type teardown struct {
	// The following fields belong to the communicator or its other parts.

	gpu              *gpu.GPU
	cfg              *driver.GroupConfig
	plane            control.Plane // connects the ranks; its Cause is why the group has ended
	mu               *groupLock
	busy             *stream.BusyStreams // streams with unfinished work of the group
	group            stream.Group
	comm             *ncclComm
	exchange         *direct.Exchange
	messages         *p2p.Messages
	runTimer         *runTimer
	registrar        *registrar
	recorder         *recorder
	stages           *stages
	openGraphs       *sync.WaitGroup // counts symmem's open graphs with calls of the group
	watcherGoroutine *sync.WaitGroup // counts the running goroutine of the watcher

	isMultiMachine bool // the ranks are on several machines
	// otherGroupsUseWindows reports whether an NCCL kernel of another group may be accessing
	// windows (memory registered with NCCL).
	otherGroupsUseWindows func() bool
	// parent is set if the communicator is a level, one of the communicators that a two-level group
	// uses within and between machines.
	parent           atomic.Pointer[parentGroup]
	removeFromDevice func() // removes the communicator from its device

	once   sync.Once // for begin
	result error     // joined errors of the steps; set before stages.allFreed is closed

	// Only the goroutine of run uses the following fields.

	progress
	drainError       error      // error of the last drain
	freeErrors       []error    // errors of the other steps, some of them nil
	abortResult      chan error // gets the result of CommAbort or CommDestroy
	closeMemoryFreed func()     // closes stages.memoryFreed once
}

// begin reports the cause of the teardown to streams with unfinished work, and starts the teardown
// in a goroutine. Only the first call has an effect.
func (t *teardown) begin() {
	t.once.Do(func() {
		cause := t.failParent()
		t.busy.RemoveIdle() // removes idle streams, whose work has succeeded, from t.busy
		for _, s := range t.busy.Streams() {
			if !s.IsWaitedFor() { // a stream that was waited for has completed all work without an error
				s.ReportFault(t.group, cause)
			}
		}

		close(t.stages.groupEnded)
		go t.run()
	})
}

// failParent makes the two-level group fail if this group is one of its levels and has failed. It
// returns the cause that streams report: the cause of the two-level group's failure if there is
// one, and otherwise the cause of this teardown.
//
// Call it before kernels are stopped. The two-level group might otherwise report success.
func (t *teardown) failParent() error {
	cause := t.plane.Cause()
	parent := t.parent.Load()
	if parent == nil || errors.Is(cause, driver.ErrClosed) {
		return cause
	}

	cause = parent.plane.Fail(cause)
	parent.begin()
	return cause
}

// parentGroup has those parts of a two-level group that its levels need.
type parentGroup struct {
	group stream.Group
	plane control.Plane
	begin func() // begins the teardown of the two-level group
}

// run executes the steps of the teardown until all of them are done.
func (t *teardown) run() {
	t.closeMemoryFreed = sync.OnceFunc(func() { close(t.stages.memoryFreed) })
	t.watcherGoroutine.Wait()
	t.exchange.Stop() // makes symmem's own kernels exit, now and in replays
	t.messages.Release()
	for {
		facts := t.collectFacts()
		nextStep := decideStep(&facts)
		t.executeStep(nextStep)
		if nextStep.isLast() {
			break
		}
	}

	if !t.haveKernelsEnded { // no step has closed it
		close(t.stages.kernelsEnded)
	}

	t.addError(t.drainError)
	t.result = errors.Join(t.freeErrors...)
	t.removeFromDevice()
	close(t.stages.allFreed)
	// Some teardowns have no step that closes memoryFreed. Goroutines that wait for memoryFreed
	// check allFreed next, so allFreed must be closed first.
	t.closeMemoryFreed()
}

func (t *teardown) collectFacts() facts {
	f := facts{progress: t.progress, hasStuckKernel: gpu.Stuck.Load()}
	isLocked := t.tryLock()
	f.hasBlockedCall = !isLocked
	f.hasForeignGraphs = t.recorder.graphHolds.HasActive()
	if isLocked {
		f.hasForeignPlainKernels = f.hasForeignGraphs && t.recorder.capturedPlainKernels
		f.hasForeignWindowKernels = f.hasForeignGraphs && t.recorder.capturedWindowKernels
		t.mu.Unlock()
	}

	f.isIdle = t.busy.RemoveIdle() // first, because it may clear WindowKernels and OtherKernels
	f.hasWindowKernels = t.busy.WindowKernels.Load()
	f.hasPlainKernels = t.busy.OtherKernels.Load()
	f.closedStreamsMayRun = t.gpu.MustKeepMemory()
	f.canAbortQuickly = !f.closedStreamsMayRun && !t.otherGroupsUseWindows()
	return f
}

// tryLock locks the communicator's mu, or returns false after a time limit. Only calls to NCCL that
// wait for another rank hold mu longer.
func (t *teardown) tryLock() bool {
	limit := gpu.KernelEndTimeout / 10
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return gpu.Poll(ctx, t.mu.TryLock) == nil
}

func (t *teardown) executeStep(nextStep step) {
	switch nextStep {
	case stepDrain:
		t.drainError = t.drain()
		t.hasDrainTimedOut = t.drainError != nil
	case stepAbort:
		t.abort()
	case stepDeregister:
		t.hasDeregistered = true
		t.addError(t.registrar.deregisterAll())
	case stepAwaitOwnGraphs:
		t.haveKernelsEnded = true
		close(t.stages.kernelsEnded)
		t.openGraphs.Wait()
	case stepAwaitForeignGraphs:
		t.addError(t.messages.Close())
		t.closeMemoryFreed()
		t.recorder.graphHolds.Wait()
	case stepAwaitDevice:
		gpu.PollWithBackoff(func() bool {
			if gpu.Stuck.Load() { // the work may never end
				return true
			}

			return !t.gpu.MustKeepMemory() && !t.otherGroupsUseWindows()
		})
	case stepAbandonStreams:
		for _, s := range t.busy.Streams() {
			s.Abandon()
		}
	case stepFinish:
		t.addError(<-t.abortResult)
		t.addError(t.messages.Close())
		t.addError(t.freeDirectMemory())
	case stepKeepCommunicator: // frees nothing
	}
}

func (t *teardown) addError(err error) { t.freeErrors = append(t.freeErrors, err) }

// drain waits until no stream has unfinished work of the group. After KernelEndTimeout, it returns
// a TimeoutError. It then marks the work as unfinished, so that the memory stays mapped.
func (t *teardown) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), gpu.KernelEndTimeout)
	defer cancel()
	isIdle := func() bool {
		t.messages.Release()
		return t.busy.RemoveIdle()
	}
	if gpu.Poll(ctx, isIdle) == nil {
		return nil
	}

	t.messages.ReleaseAfterTimeout()
	timeoutErr := &driver.TimeoutError{
		InCall: "ending the kernels of group " + t.cfg.Name(), Waited: gpu.KernelEndTimeout,
	}
	errs := []error{timeoutErr}
	for _, s := range t.busy.Streams() {
		errs = append(errs, s.MarkUnfinished())
	}

	return errors.Join(errs...)
}

// abort frees NCCL's communicator in a goroutine, by CommAbort or, if peers may need data, by
// CommDestroy. abortResult gets the result.
//
// Before that, it waits until the other ranks know of the failure, because an aborted kernel can
// make their kernels return wrong results.
func (t *teardown) abort() {
	if n, ok := t.plane.(control.Notifier); ok {
		n.WaitForAcknowledgements()
	}

	if t.haveKernelsEnded {
		t.mu.Lock() // waits for the end of a deregistration
		t.comm.isFreeing.Store(true)
		t.mu.Unlock()
	} else {
		// A blocked call, which only the abort ends, may hold the lock.
		t.comm.isFreeing.Store(true)
		// The abort ends kernels, so drain again.
		t.hasDrainTimedOut = false
		t.drainError = nil
	}

	t.hasAborted = true
	t.abortResult = make(chan error, 1)
	free := t.comm.abort
	if t.peersMayNeedData() {
		free = func() error { return t.comm.destroy(t.cfg) }
	}

	go func() { t.abortResult <- free() }()
}

// peersMayNeedData reports whether NCCL may still have to send data of completed calls to other
// machines. CommAbort would lose this data (nccl.LostByAbort).
func (t *teardown) peersMayNeedData() bool {
	hasCompletedAll := t.haveKernelsEnded && !t.recorder.graphHolds.HasActive()
	if !t.isMultiMachine || !hasCompletedAll {
		return false
	}

	hasSucceeded := errors.Is(t.plane.Cause(), driver.ErrClosed)
	return hasSucceeded && t.comm.asyncError(t.cfg.Name()) == nil
}

// freeDirectMemory frees the memory that symmem's own kernels use. Call it after these kernels have
// exited. If the program has addresses of peers, its kernels may use them until it closes the
// group, so freeDirectMemory waits for that.
func (t *teardown) freeDirectMemory() error {
	if t.registrar.programHasPeerAddresses.Load() {
		<-t.stages.closeCalled
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	unmapErr := t.registrar.unmapPeers()
	exchangeErr := t.exchange.Close()
	timerErr := t.runTimer.close()
	return errors.Join(unmapErr, exchangeErr, timerErr)
}
