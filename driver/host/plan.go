package host

import (
	"fmt"
	"math"

	"symmem/driver"
	"symmem/internal/spin"
)

// tuning holds the sizes at which algorithms change, in bytes that a rank contributes. It depends
// on the number of ranks and of the processors that they have between them, so that all ranks
// choose alike. docs/measurements/host-2026-11.md has the measurements.
type tuning struct {
	// eager is the largest message that goes through staging although windows are there: that
	// saves the second barrier of the windowed algorithms, at the price of a copy. Where every rank
	// has a processor this pays for what fits into a line, since that is claimed ahead: 267 ns
	// instead of 317 for an all-reduce of 64 bytes on 2 ranks, but 336 instead of 313 for 128.
	eager int64
	// oneShot is the largest all-reduce in which every rank reduces everything for itself. Up to
	// there reading all inputs costs less than writing into all outputs, whose cache lines the
	// peers have.
	oneShot int64
	// polled is the largest message whose first barrier polls before it yields. Where ranks take
	// turns, who came first and gave way at once is also the first to go on, with in its caches what
	// it has used last: a fifth of the time of a reduce-scatter of 1 MiB.
	polled int64
}

// streamBytes is where results no longer fit into caches, so that stores go past them.
const streamBytes = 8 << 20

// newTuning chooses by whether every rank has a processor of its own. Where ranks take turns a
// barrier costs as much as copying some ten thousand bytes.
func newTuning(ranks, processors int) tuning {
	if ranks > processors {
		return tuning{eager: 4 << 10, oneShot: 32 << 10, polled: 256 << 10}
	}
	return tuning{eager: spin.LineBytes, oneShot: 32 << 10, polled: math.MaxInt64}
}

// plan is a prepared call.
type plan struct {
	driver.Call
	c *communicator
	// send and recv are the windows of the buffers on the window path.
	send, recv *window
	// size is that of an element; parts is how many parts of Count elements this rank
	// contributes, and bytes what that makes.
	size, parts, bytes int64
	// chunk is how many elements of each part go through staging in one step.
	chunk int64
	// windowed tells that the call works in peers' windows and not through staging, oneShot that
	// it is an all-reduce in which every rank reduces everything for itself.
	windowed, oneShot bool
	// givesWay tells that its first barrier does not poll.
	givesWay bool
}

// Windowed tells that every operation can take the window path.
func (c *communicator) Windowed(*driver.Call) error { return nil }

// Direct tells that no operation can take the direct path.
func (c *communicator) Direct(*driver.Call) error {
	return fmt.Errorf("the host backend has no kernels of a GPU: %w", driver.ErrUnsupported)
}

// Prepared returns what was prepared.
func (p *plan) Prepared() *driver.Call { return &p.Call }

// Prepare checks a call and chooses its algorithm.
func (c *communicator) Prepare(call driver.Call) (driver.Plan, error) {
	p := &plan{Call: call, c: c, parts: 1}
	if err := p.validate(); err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w",
			call.Operation, call.Count, call.DataType, err)
	}
	p.size = int64(call.DataType.Size())
	if call.Operation == driver.ReduceScatter || call.Operation == driver.AllToAll {
		p.parts = int64(c.Size())
	}
	p.bytes = p.parts * call.Count * p.size
	if p.Splits != nil {
		if err := p.resolveSplits(); err != nil {
			return nil, fmt.Errorf("preparing %v: %w", call.Operation, err)
		}
	}
	p.chunk = max(1, stageBytes/(p.parts*p.size))
	p.givesWay = p.bytes > c.tuning.polled
	if call.Path == driver.PathWindow && p.bytes > c.tuning.eager && !p.overwrites() {
		p.windowed = true
		p.oneShot = call.Operation == driver.AllReduce && p.bytes <= c.tuning.oneShot &&
			call.Send != call.Recv
	}
	return p, nil
}

// overwrites tells that a rank would overwrite what peers still read from its window.
func (p *plan) overwrites() bool {
	return p.Operation == driver.AllToAll && p.Send == p.Recv
}

func (p *plan) validate() error {
	if err := p.Validate(p.c.Size(), p.c.cfg.Rank); err != nil {
		return err
	}
	if p.Path == driver.PathDirect {
		return fmt.Errorf("path %v: %w", p.Path, driver.ErrUnsupported)
	}
	if p.Path == driver.PathWindow {
		return p.resolve()
	}
	return nil
}

// resolve finds the windows of a call and checks that its buffers lie inside them.
func (p *plan) resolve() error {
	sendBytes, recvBytes := p.Spans(p.c.Size())
	var err error
	if p.send, err = p.c.holding(p.SendWindow, p.Send, sendBytes); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	if p.recv, err = p.c.holding(p.RecvWindow, p.Recv, recvBytes); err != nil {
		return fmt.Errorf("receive buffer: %w", err)
	}
	return nil
}

// holding returns a window of this communicator that holds a buffer, or nil for no buffer.
func (c *communicator) holding(w driver.Window, at uintptr, bytes int64) (*window, error) {
	if bytes == 0 {
		return nil, nil
	}
	own, ok := w.(*window)
	if !ok || own.c != c {
		return nil, fmt.Errorf("no window of group %s: %w", c.cfg.Name(), driver.ErrOutOfRange)
	}
	if !own.holds(at, bytes) {
		return nil, fmt.Errorf("%d bytes at offset %d of a window of %d bytes: %w", bytes,
			at-uintptr(own.bases[c.cfg.Rank]), own.bytes, driver.ErrOutOfRange)
	}
	return own, nil
}
