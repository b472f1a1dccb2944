package host

import (
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// plan implements driver.Offer and, after Take, driver.Plan.
type plan struct {
	driver.Call
	comm           *communicator
	send, recv     *window     // windows of the buffers, or nil
	elementSize    int64       // in bytes
	partCount      int64       // number of parts that this rank contributes
	bytes          int64       // size of these parts or, in an AllToAllV, of the send buffer
	longestPart    int64       // size of the longest part in elements
	chunkLength    int64       // elements of each part that are staged in one step
	isLineSized    bool        // the input fits into the line that each rank posts
	isPairwise     bool        // parts can differ in size between pairs of ranks
	useWindows     bool        // peers read the buffers in windows, without staging
	reduceWhole    bool        // every rank reduces the whole buffer
	yieldProcessor bool        // the first barrier yields the processor instead of polling
	otherCalls     []*plan     // the other calls of a list
	isMessage      bool        // the call is a Send or a Recv
	routed         *routedPlan // for Dispatch and Combine
	callMeter      driver.Meter
}

// SetMeter makes the plan report its runs to m, except for messages.
func (p *plan) SetMeter(m driver.Meter) { p.callMeter = m }

var errNoKernels = fmt.Errorf("the host backend has no GPU kernels: %w", driver.ErrUnsupported)

func (p *plan) Refusal(path driver.Path) error {
	if path == driver.PathDirect || path == driver.PathTwoLevel {
		return errNoKernels
	}
	return nil
}

func (p *plan) Prepared() *driver.Call { return &p.Call }

func (p *plan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	if p.Route != nil {
		p.routed = newRoutedPlan(p)
	}
	p.setParts()
	var err error
	switch {
	case p.isPairwise:
		err = p.setSplitWindow()
	case p.routed != nil: // routedPlan has its own buffers
	case path == driver.PathWindow:
		err = p.setWindows()
	}
	if err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}
	p.chunkLength = max(1, stageBytes/(p.partCount*p.elementSize))
	p.yieldProcessor = p.bytes > p.comm.tuning.maxPolledBytes
	if path == driver.PathWindow && p.bytes > p.comm.tuning.maxStagedInWindow &&
		!p.overwritesInput() && p.routed == nil {
		p.useWindows = true
		isSum := p.Operation == driver.AllReduce || p.Operation == driver.AllReduceRMSNorm
		p.reduceWhole = isSum && p.bytes <= p.comm.tuning.maxReducedWhole && p.Send != p.Recv
	}
	return p, nil
}

// setParts sets the numbers and sizes of the parts. They are the same on all ranks, except in an
// AllToAllV.
func (p *plan) setParts() {
	p.elementSize, p.longestPart = int64(p.DataType.Size()), p.Count
	isUneven := p.Operation.SplitsOneBuffer()
	if isUneven {
		p.longestPart = slices.Max(p.unevenCounts())
	}
	switch send, _ := p.Operation.Extents(); send {
	case driver.AllParts, driver.AllPartsOfRoot, driver.BySplits:
		p.partCount = int64(p.comm.Size())
	case driver.NoPart, driver.OnePart:
	}
	p.bytes = p.partCount * p.longestPart * p.elementSize
	p.isLineSized = p.bytes <= spin.LinePayload && !isUneven
	p.isPairwise = p.Operation == driver.AllToAllV
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

// overwritesInput reports whether a rank would overwrite data in a window that peers still read.
func (p *plan) overwritesInput() bool {
	return p.Operation == driver.AllToAll && p.Send == p.Recv
}

func (p *plan) setWindows() error {
	var err error
	if p.send, err = p.groupWindow(p.SendWindow); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	if p.recv, err = p.groupWindow(p.RecvWindow); err != nil {
		return fmt.Errorf("receive buffer: %w", err)
	}
	return nil
}

// groupWindow returns w as a window of the plan's group.
func (p *plan) groupWindow(w driver.Window) (*window, error) {
	own, ok := w.(*window)
	if !ok || own.registry != &p.comm.registry {
		return nil, fmt.Errorf("the buffer is not in a window of group %s: %w", p.comm.cfg.Name(),
			driver.ErrOutOfRange)
	}
	return own, nil
}

// setSplitWindow sets the fields of an AllToAllV. Large send buffers in a window are not staged.
func (p *plan) setSplitWindow() error {
	p.bytes, _ = p.Spans(p.comm.Size(), p.comm.cfg.Rank)
	if p.SendWindow == nil || p.bytes <= p.comm.tuning.maxStagedInWindow || p.Send == p.Recv {
		return nil
	}
	var err error
	if p.send, err = p.groupWindow(p.SendWindow); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}
	return nil
}
