package nccl

import (
	"errors"
	"slices"
	"sync"
	"time"

	"symmem/driver"
	"symmem/internal/ranked"
)

// releaseCaptured makes NCCL unmap the memory of destroyed graphs on other ranks. Otherwise, if
// other memory is mapped at the same addresses, a new graph would use the old memory. Groups that
// have failed are left out, because their abort unmaps everything. If isUnmapping is set, the memory
// will be unmapped even after an error, so groups whose NCCL has not released it then fail.
func (d *Device) releaseCaptured(isUnmapping bool) error {
	affected := slices.DeleteFunc(d.openCommunicators(), func(c *communicator) bool {
		return !c.comm.mayMapCaptured.Load() || c.isClosing.Load() || c.plane.Cause() != nil
	})
	if len(affected) == 0 {
		return nil
	}
	ranked.AssertMayWait()
	address, err := d.scratch.Address(d.memory)
	if err == nil {
		err = awaitDestroyedGraphs(d.gpu)
	}
	if err != nil && !isUnmapping {
		return err
	}
	errs := make([]error, len(affected)+1)
	errs[len(affected)] = err
	// A stopped rank of one group must not delay the others.
	var all sync.WaitGroup
	for i, c := range affected {
		all.Go(func() {
			releaseErr := err
			if err == nil {
				releaseErr = releaseBeforeTimeout(c, address)
				errs[i] = releaseErr
			}
			if releaseErr != nil && isUnmapping {
				c.failOpen(releaseErr)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// releaseBeforeTimeout releases the memory of a group's destroyed graphs. If that takes longer than
// the group's timeout, the group fails: NCCL may wait forever for a stopped rank. If the group is
// suspended, Resume releases the memory before a new graph can use it.
func releaseBeforeTimeout(c *communicator, address uintptr) error {
	released := make(chan error, 1)
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		release := func() error { return c.comm.releaseCaptured(c.cfg.Rank, address) }
		switch {
		case c.isClosing.Load() || c.plane.Cause() != nil:
			released <- nil
		case c.comm.isSuspended:
			c.comm.afterResume = release
			released <- nil
		default:
			released <- release()
		}
	}()
	timer := time.NewTimer(c.cfg.Timeout.Get())
	defer timer.Stop()
	select {
	case err := <-released:
		return err
	case <-timer.C:
		err := &driver.TimeoutError{
			InCall: "releasing the memory of closed graphs of group " + c.cfg.Name(),
			Waited: c.cfg.Timeout.Get(), Members: c.cfg.Ranks,
		}
		c.failOpen(err)
		return err
	}
}

// failOpen makes the group fail, unless it has failed or been closed already.
func (c *communicator) failOpen(err error) {
	_ = c.plane.Fail(err)
	c.teardown.begin()
}
