package host

import (
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
	"symmem/internal/spin"
)

// begin posts the first step of a collective, whose turn it is.
func (c *communicator) begin(call *plan) {
	if call.Splits != nil {
		c.beginSplits(call)
		return
	}
	if call.windowed {
		c.Post(call.Digest, nil, 0)
		return
	}
	c.contribute(call, 0)
}

// claim fetches the first line of the staging that this rank writes in the next step from the peers
// while the rank does other things. They need it no more: who has posted the current step has read
// the one before.
func (c *communicator) claim() { spin.Claim(unsafe.Add(c.ownStage, ((c.Step()+1)&1)*stageBytes)) }

// arrive waits for everybody's line.
func (c *communicator) arrive(call *driver.Call, ticket uint64) error {
	if c.ArriveSoon(true) {
		c.claim()
		return nil
	}
	return c.ArriveLate(call, ticket)
}

// finish completes a collective after everybody's first line has arrived.
func (c *communicator) finish(call *plan, ticket uint64) error {
	if err := c.CompareStep(&call.Call, ticket); err != nil {
		return err
	}
	if c.Late() {
		return c.LateFault(&call.Call, ticket)
	}
	if call.Splits != nil {
		return c.finishSplits(call, ticket)
	}
	if !call.windowed {
		return c.finishStaged(call, ticket)
	}
	c.move(call)
	c.Post(call.Digest, nil, 0)
	return c.arrive(&call.Call, ticket)
}

// reduce combines n sources into m destinations, both already in place.
func (c *communicator) reduce(call *plan, sources, destinations int, count, total int64) {
	dsts, srcs := c.destinations[:destinations], c.sources[:sources]
	hint := reduce.Hint{Stream: total >= streamBytes}
	if call.ReduceOp == driver.Avg {
		n := int64(c.Size())
		reduce.Average(call.DataType, dsts, srcs, int(count), n, hint)
		return
	}
	reduce.Reduce(reduce.Op(call.ReduceOp), call.DataType, dsts, srcs, int(count), hint)
}
