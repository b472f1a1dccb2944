package host

import (
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control/shm"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// communicator moves data between the ranks of a group, over the steps of the Group that joins
// them.
//
// States: those of shm.Group. Collectives run one at a time, in the order of their tickets, which
// Launch hands out. The one that runs owns the steps and what follows completed.
type communicator struct {
	shm.Group

	// Fields that every launch reads come first.

	check     atomic.Bool
	waiters   atomic.Int32         // for a turn
	completed atomic.Uint64        // tickets done; written by who has the turn
	launched  [driver.Paths]uint64 // guarded by Mu
	// passed is closed when completed moves and somebody waits; guarded by Mu.
	passed   chan struct{}
	captures atomic.Uint64 // with calls of the group

	device   *Device
	cfg      driver.GroupConfig
	tuning   tuning
	messages messages
	windows  map[driver.SegmentKey]*window // guarded by Mu

	stages       []unsafe.Pointer // staging by group rank
	ownStage     unsafe.Pointer
	pipes        unsafe.Pointer
	payloads     []payloadCopy // by group rank
	split        splitExchange
	sources      [reduce.MaxSources]unsafe.Pointer
	destinations [reduce.MaxDestinations]unsafe.Pointer
}

// Launched counts the calls by their path.
func (c *communicator) Launched() [driver.Paths]uint64 {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.launched
}

// SetCheck switches the comparison of calls.
func (c *communicator) SetCheck(on bool) { c.check.Store(on) }

// setData lays staging and pipes over the data of the region.
func (c *communicator) setData() {
	c.stages = make([]unsafe.Pointer, c.Size())
	for r := range c.stages {
		c.stages[r] = unsafe.Add(c.Data(), r*2*stageBytes)
	}
	c.ownStage = c.stages[c.cfg.Rank]
	c.pipes = unsafe.Add(c.Data(), c.Size()*2*stageBytes)
}

// stage is a rank's staging buffer of a step. It is computed, not selected of a struct: Go would
// check the pointer for nil by a load of a line that a peer is about to write.
func (c *communicator) stage(rank int, step uint64) unsafe.Pointer {
	return unsafe.Add(c.stages[rank], (step&1)*stageBytes)
}

// pipe is that from one rank to another.
func (c *communicator) pipe(from, to int) *pair {
	return (*pair)(unsafe.Add(c.pipes, uintptr(from*c.Size()+to)*unsafe.Sizeof(pair{})))
}

// payloadCopy is a peer's payload, copied out of its line.
type payloadCopy struct {
	payload [spin.LinePayload]byte
	_       [spin.LineBytes - spin.LinePayload]byte
}
