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

// plan is a call, first offered and then prepared.
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
	// windowed reports whether the call works in peers' windows and not through staging, oneShot
	// whether it is an all-reduce in which every rank reduces everything for itself.
	windowed, oneShot bool
	// givesWay reports whether its first barrier does not poll.
	givesWay bool
}

// errNoKernels is why nothing goes direct.
var errNoKernels = fmt.Errorf("the host backend has no kernels of a GPU: %w", driver.ErrUnsupported)

// Offer resolves nothing: the window path takes what the plain one does, and nothing goes direct.
func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, c: c, parts: 1}
}

// Refusal refuses the direct path alone.
func (p *plan) Refusal(path driver.Path) error {
	if path == driver.PathDirect {
		return errNoKernels
	}
	return nil
}

// Prepared returns what was prepared.
func (p *plan) Prepared() *driver.Call { return &p.Call }

// Take chooses the algorithm of a path.
func (p *plan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	p.size = int64(p.DataType.Size())
	if p.Operation == driver.ReduceScatter || p.Operation == driver.AllToAll {
		p.parts = int64(p.c.Size())
	}
	p.bytes = p.parts * p.Count * p.size
	var err error
	switch {
	case p.Splits != nil:
		err = p.resolveSplits()
	case path == driver.PathWindow:
		err = p.findWindows()
	}
	if err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}
	p.chunk = max(1, stageBytes/(p.parts*p.size))
	p.givesWay = p.bytes > p.c.tuning.polled
	if path == driver.PathWindow && p.bytes > p.c.tuning.eager && !p.overwrites() {
		p.windowed = true
		p.oneShot = p.Operation == driver.AllReduce && p.bytes <= p.c.tuning.oneShot && p.Send != p.Recv
	}
	return p, nil
}

// overwrites reports whether a rank would overwrite what peers still read from its window.
func (p *plan) overwrites() bool {
	return p.Operation == driver.AllToAll && p.Send == p.Recv
}

// findWindows finds the windows that the call names.
func (p *plan) findWindows() error {
	var err error
	if p.send, err = p.c.own(p.SendWindow); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	if p.recv, err = p.c.own(p.RecvWindow); err != nil {
		return fmt.Errorf("receive buffer: %w", err)
	}
	return nil
}

// own is a window of this communicator.
func (c *communicator) own(w driver.Window) (*window, error) {
	own, ok := w.(*window)
	if !ok || own.c != c {
		return nil, fmt.Errorf("no window of group %s: %w", c.cfg.Name(), driver.ErrOutOfRange)
	}
	return own, nil
}
