package nccl

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
)

// Abort fails the communicator for all its ranks.
func (c *communicator) Abort(cause error) {
	c.plane.Abort(cause)
	c.end()
}

// Close leaves the group. Work that all ranks have launched is waited for; other work ends with
// ErrClosed.
func (c *communicator) Close() error {
	c.closing.Store(true)
	for turns := 0; turns < closeRounds && c.plane.Cause() == nil; turns++ {
		ended, missing := c.finishWork()
		// What is under way ends with NCCL's communicator, and ranks that come to it later must not
		// take it for complete. If all have come by now they count on this one.
		if ended || c.plane.Withdraw() || !missing {
			break
		}
	}
	unmatched := c.messages.Unmatched()
	err := c.plane.Close()
	c.end()
	c.watcher.Wait()
	return errors.Join(unmatched, err)
}

// closeRounds is how often Close waits for work that all ranks have come to meanwhile.
const closeRounds = 3

// finishWork waits for the work of this rank's streams as long as it can be expected to end. It
// reports whether it has ended, and whether some rank had yet to launch its part.
func (c *communicator) finishWork() (ended, missing bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.device.cfg.Timeout)
	defer cancel()
	_ = gpu.Poll(ctx, func() bool { // what counts is whether the work has ended
		ticket, _ := c.history.last()
		ended = c.idle()
		missing = !ended && !c.complete(ticket)
		return ended || missing || c.messages.Unanswered() || c.plane.Cause() != nil
	})
	return ended || c.idle(), missing
}

// end reacts to a fault or to Close, once: streams with work under way are told, and then NCCL's
// kernels and blocked calls are ended.
func (c *communicator) end() {
	c.ending.Do(func() {
		working := !c.idle()
		for _, s := range c.busy.Streams() {
			if !s.Waited() {
				s.ReportFault(c.group, c.plane.Cause())
			}
		}
		close(c.ended)
		go ending{c}.tearDown(working)
	})
}

// ending is a communicator whose plane has failed or is closed.
type ending struct{ *communicator }

// tearDown ends NCCL's part. It runs on a goroutine of its own, since the kernels of graphs hold on
// to it until the graphs are closed.
//
// The end is always CommAbort. Kernels that wait for others end by it, which is what a fault needs;
// and where nothing runs any more it does what CommDestroy does, but waits for no other rank.
// (CommDestroy, and CommRevoke, which could end kernels and keep the communicator, join threads
// that serve the ranks of the machine until those leave, too.)
//
// Windows are deregistered before, unless kernels may still be at work on them. Then they end with
// the communicator; NCCL before 2.29.7 keeps their memory until the process ends.
//
// NCCL's window kernels do not look at the abort flag (2.27.3 to 2.30.7): one that waits for a
// rank that is lost runs until the process ends. It occupies a few multiprocessors and its stream.
// The stream object goes on with another CUDA stream then. CommAbort would wait for the kernel for
// ever, with locks of CUDA's that every call of the process needs, so it is not called, unless a
// call of NCCL's own waits for a rank, which only the abort ends: then nobody waits for it. Nor is
// it called while graphs of other libraries have window kernels: whether they are replayed is not
// seen.
//
// Also where no kernel waits for a rank, CommAbort waits for all that the device does, and most
// other calls of CUDA wait for it meanwhile. So it comes after kernels of our own, which end
// without it, however long their streams are held up by other work.
//
// What graphs of other libraries hold stays until they are gone, see hold.
func (c ending) tearDown(working bool) {
	part := sync.OnceFunc(func() { close(c.released) })
	defer part() // last: who sees that looks at tornDown
	defer close(c.tornDown)
	defer c.forget()
	c.watcher.Wait() // which asks NCCL about the communicator
	errs := []error{c.tearing}
	c.direct.exchange.Stop() // also what is replayed now and later
	if gpu.Stuck.Load() {
		// NCCL waits for whole devices before it is done with any communicator, see above.
		c.tearing = errors.Join(append(errs, c.endOwn()...)...)
		return
	}
	if working {
		// While a call of NCCL's is under way nobody can tell: it holds its stream as a window
		// kernel that does not end does, and the abort ends it.
		if c.busy.Windows.Load() && c.drain() != nil && !c.calling() {
			c.giveUp(errs)
			return
		}
		if c.replaysWindows() {
			working = c.drain() != nil || c.calling()
		}
	}
	// A stream that was closed before its work had ended counts as idle.
	working = working || c.busy.Plain.Load() && c.device.gpu.Keeps()
	if !working || c.ownAlone() {
		working = false
		err := c.drain()
		if err == nil { // else they end with the communicator
			c.mu.Lock()
			err = c.device.gpu.Do(c.deregisterAll)
			c.mu.Unlock()
		}
		errs = append(errs, err)
		close(c.kernelsEnded)
		c.graphs.Wait()
		if !c.endsReplays() {
			errs = append(errs, c.awaitHolds(part))
		}
		if c.awaitDevice(); gpu.Stuck.Load() {
			c.tearing = errors.Join(errs...)
			return
		}
	}
	aborted := make(chan error, 1)
	if !working {
		c.mu.Lock() // a window may be on its way back; where a call waits for a rank none is
	}
	c.aborting.Store(true)
	if !working {
		c.mu.Unlock()
	}
	go func() {
		aborted <- c.device.gpu.Do(func() error { return c.device.nccl.CommAbort(c.handle) })
	}()
	if working {
		// NCCL waits for its kernels, and they may be queued behind messages that nobody answers.
		err := c.drain()
		errs = append(errs, err)
		if err != nil && c.busy.Windows.Load() {
			c.giveUp(errs) // the call has ended, a window kernel before it does not
			return
		}
		close(c.kernelsEnded)
		c.graphs.Wait()
	}
	errs = append(errs, c.awaitHolds(part))
	c.tearing = errors.Join(append(errs, <-aborted, c.messages.Close(), c.closeDirect())...)
}

// awaitDevice waits until the device has nothing for which CommAbort would wait long: work that was
// left, and window kernels of other groups, unless one of these is known not to end. Nothing could
// give it up meanwhile.
func (c ending) awaitDevice() {
	gpu.PollSeldom(func() bool {
		return gpu.Stuck.Load() || !c.device.gpu.Keeps() && !c.device.othersHaveWindows(c.communicator)
	})
}

// othersHaveWindows reports whether another group may have a window kernel under way.
func (d *Device) othersHaveWindows(than *communicator) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for o := range d.communicators {
		if o != than && o.busy.Windows.Load() {
			return true
		}
	}
	return false
}

// endOwn ends what there is to end while a kernel of another group does not end.
func (c ending) endOwn() (errs []error) {
	defer close(c.kernelsEnded)
	if err := c.drain(); err != nil {
		errs = append(errs, err)
		if !c.mu.TryLock() {
			// A call of NCCL's waits for a rank, with the stream: only an abort ends it, which
			// nobody waits for.
			go func() {
				_ = c.device.gpu.Do(func() error { return c.device.nccl.CommAbort(c.handle) })
			}()
		} else {
			c.mu.Unlock()
		}
		c.abandon()
	}
	return errs
}

// ownAlone reports whether what is under way are kernels of our own, which end without NCCL.
func (c ending) ownAlone() bool {
	if c.calling() {
		return false
	}
	c.mu.Lock() // calls that were let in have said by now what they are
	defer c.mu.Unlock()
	return !c.busy.Windows.Load() && !c.busy.Plain.Load() && !c.recorded.plain && !c.recorded.windows
}

// endsReplays reports whether graphs of other libraries have plain kernels of NCCL's, and no
// others. These end by the abort, also where they are replayed later, and NCCL keeps what they use
// until the graphs are gone. Else it is not aborted before that.
func (c ending) endsReplays() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recorded.plain && !c.recorded.windows
}

// replaysWindows reports whether graphs of other libraries may be replayed that have window
// kernels, which do not end by the abort: it would wait for one with what every call of CUDA
// needs.
func (c ending) replaysWindows() bool {
	if !c.captures.Any() || c.calling() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recorded.windows
}

// awaitHolds waits until no graph of another library holds work of the communicator, after what
// they do not hold is given back.
func (c ending) awaitHolds(part func()) (err error) {
	c.mu.Lock() // calls that were let in hold theirs by now
	holding := c.captures.Any()
	c.mu.Unlock()
	if holding {
		err = c.messages.Close()
		part()
		c.captures.Wait()
	}
	return err
}

// abandon gives up on what streams have of the communicator's.
func (c ending) abandon() {
	for _, s := range c.busy.Streams() {
		s.Abandon()
	}
}

// closeDirect gives the memory of the group's own kernels back, once none may be at work.
func (c ending) closeDirect() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, w := range c.windows {
		errs = append(errs, w.unmapPeers())
	}
	return errors.Join(append(errs, c.direct.exchange.Close())...)
}

// giveUp gives up on window kernels that do not end, and with them on NCCL's communicator.
func (c ending) giveUp(errs []error) {
	c.abandon()
	close(c.kernelsEnded)
	c.tearing = errors.Join(errs...)
}

// calling reports whether a call of NCCL's is under way that waits for a rank. Launches on a group
// that has failed are refused in far less time.
func (c ending) calling() bool {
	ctx, cancel := context.WithTimeout(context.Background(), gpu.EndingTime/10)
	defer cancel()
	return gpu.Poll(ctx, func() bool {
		if !c.mu.TryLock() {
			return false
		}
		c.mu.Unlock()
		return true
	}) != nil
}

// drain waits until no stream has work of the communicator any more, and ends messages that nobody
// answers: also those to which streams come too late for it. Work that does not end in time keeps
// what it may use.
func (c ending) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), gpu.EndingTime)
	defer cancel()
	idle := func() bool {
		c.messages.Release()
		return c.busy.AllIdle()
	}
	if gpu.Poll(ctx, idle) != nil {
		c.messages.ReleaseLate()
		errs := []error{&driver.TimeoutError{
			Doing: "ending the kernels of group " + c.cfg.Name(), Waited: gpu.EndingTime,
		}}
		for _, s := range c.busy.Streams() {
			errs = append(errs, s.Leave())
		}
		return errors.Join(errs...)
	}
	return nil
}

// deregisterAll takes back windows. c.mu is held.
func (c ending) deregisterAll() error {
	var errs []error
	for _, w := range slices.SortedFunc(maps.Values(c.windows), inOrder) {
		if !w.deferDeregister() {
			errs = append(errs, w.deregister())
		}
	}
	return errors.Join(errs...)
}
