package host

import (
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// plan implements Offer for a call and, once the call is prepared, Plan.
type plan struct {
	driver.Call
	comm *communicator
	// send and recv are set on the window path.
	send, recv  *window
	elementSize int64 // in bytes
	parts       int64 // number of parts that this rank contributes
	bytes       int64 // size of these parts
	longestPart int64 // in elements
	chunk       int64 // number of elements of each part that are staged in one step
	// fitsLine is set if the input fits into the cache line that each rank posts in every step.
	// pairwise is set if each pair of ranks may exchange parts of a different size.
	fitsLine, pairwise bool
	usesWindows        bool // instead of staging buffers
	// oneShot is set if every rank reduces the whole buffer.
	oneShot bool
	// yields is set if the first barrier yields the processor instead of polling.
	yields       bool
	others       []*plan // the other calls of a list
	pointToPoint bool
	meter        driver.Meter
}

// SetMeter makes the communicator report runs of the call, except messages, to m.
func (p *plan) SetMeter(m driver.Meter) { p.meter = m }

var errNoKernels = fmt.Errorf("the host backend has no GPU kernels: %w", driver.ErrUnsupported)

// Refusal returns an error for the direct and the two-level path.
func (p *plan) Refusal(path driver.Path) error {
	if path == driver.PathDirect || path == driver.PathTwoLevel {
		return errNoKernels
	}
	return nil
}

// Prepared returns the call.
func (p *plan) Prepared() *driver.Call { return &p.Call }

// Take prepares the call for a path and chooses its algorithm.
func (p *plan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	p.setParts()
	var err error
	switch {
	case p.pairwise:
		err = p.resolveSplits()
	case path == driver.PathWindow:
		err = p.findWindows()
	}
	if err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}
	p.chunk = max(1, stageBytes/(p.parts*p.elementSize))
	p.yields = p.bytes > p.comm.tuning.maxPolled
	if path == driver.PathWindow && p.bytes > p.comm.tuning.maxEager && !p.overwrites() {
		p.usesWindows = true
		sums := p.Operation == driver.AllReduce || p.Operation == driver.AllReduceRMSNorm
		p.oneShot = sums && p.bytes <= p.comm.tuning.maxOneShot && p.Send != p.Recv
	}
	return p, nil
}

// setParts sets the sizes, which are the same on all ranks except in an AllToAllV.
func (p *plan) setParts() {
	p.elementSize, p.longestPart = int64(p.DataType.Size()), p.Count
	uneven := p.Operation.Uneven()
	if uneven {
		p.longestPart = slices.Max(p.unevenCounts())
	}
	switch send, _ := p.Operation.Extents(); send {
	case driver.AllParts, driver.AllPartsOfRoot, driver.BySplits:
		p.parts = int64(p.comm.Size())
	case driver.NoPart, driver.OnePart:
	}
	p.bytes = p.parts * p.longestPart * p.elementSize
	p.fitsLine = p.bytes <= spin.LinePayload && !uneven
	p.pairwise = p.Operation == driver.AllToAllV
}

func (p *plan) unevenCounts() []int64 {
	if p.Operation == driver.AllGatherV {
		return p.Splits.RecvCounts
	}
	return p.Splits.SendCounts
}

// sendPart returns the offset and count, in elements, of a part that this rank contributes.
func (p *plan) sendPart(part int64) (offset, count int64) {
	if p.Operation == driver.ReduceScatterV {
		return p.Splits.SendOffsets[part], p.Splits.SendCounts[part]
	}
	return part * p.Count, p.Count
}

// recvPart returns the offset and count, in elements, of the part from the given rank.
func (p *plan) recvPart(rank int) (offset, count int64) {
	if p.Operation == driver.AllGatherV {
		return p.Splits.RecvOffsets[rank], p.Splits.RecvCounts[rank]
	}
	return int64(rank) * p.Count, p.Count
}

// overwrites reports whether a rank would overwrite data that peers are still reading.
func (p *plan) overwrites() bool {
	return p.Operation == driver.AllToAll && p.Send == p.Recv
}

func (p *plan) findWindows() error {
	var err error
	if p.send, err = p.hostWindow(p.SendWindow); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	if p.recv, err = p.hostWindow(p.RecvWindow); err != nil {
		return fmt.Errorf("receive buffer: %w", err)
	}
	return nil
}

func (p *plan) hostWindow(w driver.Window) (*window, error) {
	own, ok := w.(*window)
	if !ok || own.registry != &p.comm.registry {
		return nil, fmt.Errorf("not in a window of group %s: %w", p.comm.cfg.Name(),
			driver.ErrOutOfRange)
	}
	return own, nil
}

// resolveSplits finds the window, if any, through which other ranks read the send buffer.
func (p *plan) resolveSplits() error {
	p.bytes, _ = p.Spans(p.comm.Size(), p.comm.cfg.Rank)
	if p.SendWindow == nil || p.bytes <= p.comm.tuning.maxEager || p.Send == p.Recv {
		return nil
	}
	var err error
	if p.send, err = p.hostWindow(p.SendWindow); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	return nil
}
