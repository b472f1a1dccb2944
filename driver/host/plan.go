package host

import (
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// plan is a prepared call. It implements driver.Offer and, after Take, driver.Plan.
//
// A call copies its data in one of two ways. Without windows, it is staged: in each step, every
// rank copies a chunk of its input to a buffer in shared memory, and the peers read that. A window
// is memory that all ranks have mapped, so that the peers can read the input in place.
type plan struct {
	driver.Call
	comm           *communicator
	send, recv     *window     // windows of the buffers, or nil
	elementSize    int64       // in bytes
	partCount      int64       // number of parts that this rank contributes; see setParts
	bytes          int64       // size of these parts or, in an AllToAllV, of the send buffer
	longestPart    int64       // size of the longest part in elements
	chunkLength    int64       // elements of each part that are staged in one step
	isLineSized    bool        // the input fits into the cache line that each rank posts in a step
	isPairwise     bool        // the call is an AllToAllV: each pair of ranks has a part size
	useWindows     bool        // peers read the buffers in windows, without staging
	reduceWhole    bool        // every rank reduces the whole buffer, not only a slice for all
	yieldProcessor bool        // the first barrier yields the processor instead of polling
	otherCalls     []*plan     // the other calls of a list; nil for a single call
	isMessage      bool        // the call is a Send or a Recv
	routed         *routedPlan // for Dispatch and Combine; otherwise nil
	callMeter      driver.Meter
}

// SetMeter makes the plan report its runs to m. Messages are not reported.
func (p *plan) SetMeter(m driver.Meter) { p.callMeter = m }

var errNoKernels = fmt.Errorf("the host backend has no GPU kernels: %w", driver.ErrUnsupported)

// Refusal returns an error for the paths that need GPU kernels.
func (p *plan) Refusal(path driver.Path) error {
	if path == driver.PathDirect || path == driver.PathTwoLevel {
		return errNoKernels
	}

	return nil
}

func (p *plan) Prepared() *driver.Call { return &p.Call }

// Take completes the plan for a path. digest identifies the call, and ranks compare it.
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
	case p.routed != nil:
		// A routedPlan has separate buffers, which are in no window.
	case path == driver.PathWindow:
		err = p.setWindows()
	}

	if err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}

	p.setChunks()
	p.useWindows = path == driver.PathWindow && p.routed == nil &&
		p.bytes > p.comm.tuning.maxStagedInWindow && !p.overwritesInput()
	isSum := p.Operation == driver.AllReduce || p.Operation == driver.AllReduceRMSNorm
	isInPlace := p.Send == p.Recv
	p.reduceWhole = p.useWindows && isSum && !isInPlace &&
		p.bytes <= p.comm.tuning.maxReducedWhole
	return p, nil
}

// setParts sets the numbers and sizes of the parts. For example, an AllToAll has a part for each
// rank, and an AllReduce has a single part. The sizes are the same on all ranks, except in an
// AllToAllV.
func (p *plan) setParts() {
	p.elementSize = int64(p.DataType.Size())
	p.longestPart = p.Count
	isUneven := p.Operation.SplitsOneBuffer()
	if isUneven {
		p.longestPart = slices.Max(p.unevenCounts())
	}

	sendExtent, _ := p.Operation.Extents()
	switch sendExtent {
	case driver.AllParts, driver.AllPartsOfRoot, driver.BySplits:
		p.partCount = int64(p.comm.Size())
	case driver.NoPart, driver.OnePart:
		// Offer has set partCount to 1.
	}

	p.bytes = p.partCount * p.longestPart * p.elementSize
	p.isLineSized = p.bytes <= spin.LinePayload && !isUneven
	p.isPairwise = p.Operation == driver.AllToAllV
}

// setChunks sets the fields that depend on the sizes of the parts.
func (p *plan) setChunks() {
	p.chunkLength = max(1, stageBytes/(p.partCount*p.elementSize))
	p.yieldProcessor = p.bytes > p.comm.tuning.maxPolledBytes
}

// unevenCounts returns the counts of the parts of an AllGatherV or a ReduceScatterV.
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

// setSplitWindow sets p.bytes of an AllToAllV, and p.send if peers shall read its send buffer in a
// window. Small buffers are staged, because this saves a barrier. In-place calls are staged, too,
// because they overwrite the send buffer.
func (p *plan) setSplitWindow() error {
	p.bytes, _ = p.Spans(p.comm.Size(), p.comm.cfg.Rank)
	isInPlace := p.Send == p.Recv
	if p.SendWindow == nil || isInPlace || p.bytes <= p.comm.tuning.maxStagedInWindow {
		return nil
	}

	var err error
	if p.send, err = p.groupWindow(p.SendWindow); err != nil {
		return fmt.Errorf("send buffer: %w", err)
	}

	return nil
}
