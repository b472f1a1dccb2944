package host

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control/shm"
)

// communicator moves data between the ranks of a group. It embeds shm.Group, which synchronizes
// them.
//
// Launch gives each collective a ticket, its position in the group's order, and collectives run one
// at a time in this order. Only the running collective may use the steps of shm.Group and the
// fields mover, split and normalizer.
type communicator struct {
	shm.Group

	// Every launch reads the first fields.

	checkCalls   atomic.Bool
	turns        turns
	callCounts   [driver.Paths]uint64 // guarded by Mu
	captureCount atomic.Uint64        // captures that contain calls of the group

	device   *Device
	cfg      driver.GroupConfig
	tuning   tuning
	messages messages
	registry
	pipes      unsafe.Pointer
	mover      mover
	split      splitExchange
	normalizer normalizer
}

func (c *communicator) Launched() [driver.Paths]uint64 {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.callCounts
}

func (c *communicator) SetCheck(on bool) { c.checkCalls.Store(on) }

func (c *communicator) setBuffers() {
	c.mover.init(&c.Group, &c.cfg)
	c.pipes = unsafe.Add(c.Data(), c.Size()*2*stageBytes)
}

func (c *communicator) pipe(src, dst int) *sharedPipe {
	return (*sharedPipe)(unsafe.Add(c.pipes, uintptr(src*c.Size()+dst)*unsafe.Sizeof(sharedPipe{})))
}
