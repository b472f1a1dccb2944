package nccl

import (
	"context"
	"errors"
	"sync"

	"symmem/driver"
	"symmem/driver/nccl/internal/direct"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

// teardown ends a communicator whose plane has failed or is closed: it takes the steps that decide
// returns. Graphs of other libraries keep what they hold until they are gone (memory.Hold).
type teardown struct {
	gpu       *gpu.GPU
	cfg       *driver.GroupConfig
	plane     control.Plane
	mu        *groupLock
	busy      *stream.BusyStreams
	group     stream.Group
	comm      *ncclComm
	exchange  *direct.Exchange
	messages  *p2p.Messages
	registrar *registrar
	recorder  *recorder
	stages    *stages
	// graphs counts our open graphs with calls of the group, watching the watcher.
	graphs, watching *sync.WaitGroup
	// othersHaveWindows reports whether another group may have a window kernel under way.
	othersHaveWindows func() bool
	// forget takes the communicator off the device's list.
	forget func()

	begun sync.Once
	// err is written before stages.tornDown is closed.
	err error

	// The rest belongs to the goroutine of run.

	progress
	drained   error      // of the last drain
	errs      []error    // of the other steps
	aborting  chan error // receives what the abort returns
	releasing func()     // closes stages.released, once
}

// begin reacts to a fault or to Close, once: it reports the fault to streams with work under way,
// and starts the teardown. That has a goroutine, since it waits until the user closes graphs that
// hold kernels of the group.
func (t *teardown) begin() {
	t.begun.Do(func() {
		t.busy.AllIdle() // drops streams whose work has ended, which have no fault
		for _, s := range t.busy.Streams() {
			if !s.Waited() {
				s.ReportFault(t.group, t.plane.Cause())
			}
		}
		close(t.stages.ended)
		go t.run()
	})
}

// run tears the communicator down.
func (t *teardown) run() {
	t.releasing = sync.OnceFunc(func() { close(t.stages.released) })
	t.watching.Wait() // it asks NCCL about the communicator
	t.exchange.Stop() // also ends what is replayed now and later
	t.messages.Release()
	for {
		facts := t.look()
		next := decide(&facts)
		t.take(next)
		if next.last() {
			break
		}
	}
	if !t.kernelsEnded {
		close(t.stages.kernelsEnded)
	}
	t.err = errors.Join(append(t.errs, t.drained)...)
	t.forget()
	close(t.stages.tornDown)
	t.releasing() // last: a caller that sees it looks at tornDown
}

// look finds out what decide needs to know.
func (t *teardown) look() facts {
	f := facts{progress: t.progress, stuck: gpu.Stuck.Load(), calling: !t.lockSoon()}
	f.held = t.recorder.captures.Any()
	if !f.calling {
		f.heldPlain = f.held && t.recorder.plain
		f.heldWindows = f.held && t.recorder.windows
		t.mu.Unlock()
	}
	f.idle = t.busy.AllIdle() // clears the next two, if it can
	f.windows, f.plain = t.busy.Windows.Load(), t.busy.Plain.Load()
	f.keeps = t.gpu.Keeps()
	f.quiet = !f.keeps && !t.othersHaveWindows()
	return f
}

// lockSoon takes the group's lock, unless a call of NCCL's holds it that waits for a rank. Launches
// on a group that has failed are refused in far less time.
func (t *teardown) lockSoon() bool {
	ctx, cancel := context.WithTimeout(context.Background(), gpu.EndingTime/10)
	defer cancel()
	return gpu.Poll(ctx, t.mu.TryLock) == nil
}

// take takes a step.
func (t *teardown) take(next step) {
	switch next {
	case stepDrain:
		t.drained = t.drain()
		t.late = t.drained != nil
	case stepAbort:
		t.abort()
	case stepDeregister:
		t.deregistered = true
		t.note(t.registrar.deregisterAll())
	case stepAwaitGraphs:
		t.kernelsEnded = true
		close(t.stages.kernelsEnded)
		t.graphs.Wait()
	case stepAwaitCaptures:
		t.note(t.messages.Close())
		t.releasing()
		t.recorder.captures.Wait()
	case stepAwaitDevice:
		gpu.PollSeldom(func() bool {
			return gpu.Stuck.Load() || !t.gpu.Keeps() && !t.othersHaveWindows()
		})
	case stepAbandon:
		for _, s := range t.busy.Streams() {
			s.Abandon()
		}
	case stepFinish:
		t.note(<-t.aborting)
		t.note(t.messages.Close())
		t.note(t.giveBack())
	case stepLeave:
	}
}

// note keeps the error of a step.
func (t *teardown) note(err error) { t.errs = append(t.errs, err) }

// drain waits until no stream has work of the communicator any more, and ends messages that never
// come: also those to which streams come too late for it. Work that does not end in time keeps the
// memory that it may use.
func (t *teardown) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), gpu.EndingTime)
	defer cancel()
	idle := func() bool {
		t.messages.Release()
		return t.busy.AllIdle()
	}
	if gpu.Poll(ctx, idle) == nil {
		return nil
	}
	t.messages.ReleaseLate()
	errs := []error{&driver.TimeoutError{
		Doing: "ending the kernels of group " + t.cfg.Name(), Waited: gpu.EndingTime,
	}}
	for _, s := range t.busy.Streams() {
		errs = append(errs, s.Leave())
	}
	return errors.Join(errs...)
}

// abort starts the abort. Where a call of NCCL's may hold the group's lock, no window is being
// deregistered; else that call is waited for.
func (t *teardown) abort() {
	if t.kernelsEnded {
		t.mu.Lock()
	}
	t.comm.aborting.Store(true)
	if t.kernelsEnded {
		t.mu.Unlock()
	} else {
		t.late, t.drained = false, nil // the abort ends what drain has waited for
	}
	t.aborted = true
	t.aborting = make(chan error, 1)
	go func() { t.aborting <- t.comm.abort() }()
}

// giveBack gives the memory of the group's own kernels back, once none may be at work.
func (t *teardown) giveBack() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.registrar.unmapPeers(), t.exchange.Close())
}
