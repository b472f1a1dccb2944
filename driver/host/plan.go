package host

import (
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// plan is a prepared call. It implements driver.Offer and, after Take, driver.Plan.
//
// Suppose that ranks 0 and 1 call an AllReduce that is staged. In its first step, each rank copies
// a chunk of its input to a buffer in shared memory. Then it posts a cache line there, and waits
// for the line of the other rank. Both ranks read both chunks, and compute the result for them. In
// the next step, they continue with the next chunk.
//
// If the buffers are in windows (memory that all ranks have mapped), the ranks can read each
// other's input in place instead. Very small inputs are sent in the cache lines.
//
// The input of some calls has parts. For example, the input of an AllToAll has a part for each
// rank. In each step, a rank stages a chunk of every part.
type plan struct {
	driver.Call
	comm        *communicator
	send, recv  *window // windows of the buffers, or nil
	elementSize int64   // in bytes
	partCount   int64   // number of parts of this rank's input; 1 if it has no parts
	bytes       int64   // size of these parts or, in an AllToAllV, of the send buffer
	longestPart int64   // size of the longest part in elements
	chunkLength int64   // elements of each part that are staged in one step
	isLineSized bool    // the input fits into a cache line
	isPairwise  bool    // the call is an AllToAllV: each pair of ranks has a part size
	useWindows  bool    // peers read the buffers in windows, without staging
	// reduceWhole is set if every rank of an AllReduce over windows reduces the whole buffer.
	// Otherwise, each rank reduces a slice, and stores the result on all ranks.
	reduceWhole    bool
	yieldProcessor bool        // in the first step, yield the processor instead of polling
	otherCalls     []*plan     // the other calls of a list; nil for a single call
	isMessage      bool        // the call is a Send or a Recv
	routed         *routedPlan // for Dispatch and Combine; otherwise nil
	callMeter      driver.Meter
}

// SetMeter makes the plan report its runs to m. Messages are not reported.
func (p *plan) SetMeter(m driver.Meter) { p.callMeter = m }

// Prepared returns the call.
func (p *plan) Prepared() *driver.Call { return &p.Call }

var errNoKernels = fmt.Errorf("the host backend has no GPU kernels: %w", driver.ErrUnsupported)

// Refusal returns an error for the paths that need GPU kernels.
func (p *plan) Refusal(path driver.Path) error {
	if path == driver.PathDirect || path == driver.PathTwoLevel {
		return errNoKernels
	}

	return nil
}

// Take completes the plan for a path. digest identifies the call, and ranks compare it.
func (p *plan) Take(path driver.Path, digest uint64) (driver.Plan, error) {
	p.SetPath(path, digest)
	if p.Route != nil {
		p.routed = newRoutedPlan(p)
	}

	p.setParts()
	if err := p.findWindows(); err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}

	p.setChunks()
	p.chooseAlgorithm()
	return p, nil
}

// setParts sets the numbers and sizes of the parts. The sizes are the same on all ranks, except in
// an AllToAllV.
func (p *plan) setParts() {
	p.isPairwise = p.Operation == driver.AllToAllV
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
		// partCount is already 1.
	}

	p.bytes = p.partCount * p.longestPart * p.elementSize
	p.isLineSized = p.bytes <= spin.LinePayload && !isUneven
}

// unevenCounts returns the counts of the parts of an AllGatherV or a ReduceScatterV.
func (p *plan) unevenCounts() []int64 {
	if p.Operation == driver.AllGatherV {
		return p.Splits.RecvCounts
	}

	return p.Splits.SendCounts
}

// findWindows sets send and recv if the call may use windows.
func (p *plan) findWindows() (err error) {
	switch {
	case p.isPairwise:
		return p.findSplitWindow()
	case p.routed != nil:
		return nil // a routedPlan has separate buffers, which are in no window
	case p.Path != driver.PathWindow:
		return nil
	}

	if p.send, err = p.groupWindow("send", p.SendWindow); err != nil {
		return err
	}

	p.recv, err = p.groupWindow("receive", p.RecvWindow)
	return err
}

// findSplitWindow sets p.bytes of an AllToAllV, and p.send if peers shall read its send buffer in a
// window. Small buffers are staged, because this saves a step. In-place calls are staged, too,
// because they overwrite the send buffer.
func (p *plan) findSplitWindow() (err error) {
	p.bytes, _ = p.Spans(p.comm.Size(), p.comm.cfg.Rank)
	isInPlace := p.Send == p.Recv
	isSmall := p.bytes <= p.comm.tuning.maxStagedInWindow
	if p.SendWindow == nil || isInPlace || isSmall {
		return nil
	}

	p.send, err = p.groupWindow("send", p.SendWindow)
	return err
}

// groupWindow returns w as a window of the plan's group. buffer names the buffer in an error.
func (p *plan) groupWindow(buffer string, w driver.Window) (*window, error) {
	own, ok := w.(*window)
	if !ok || own.registry != &p.comm.registry {
		return nil, fmt.Errorf("%s buffer: the buffer is not in a window of group %s: %w", buffer,
			p.comm.cfg.Name(), driver.ErrOutOfRange)
	}

	return own, nil
}

// setChunks sets the fields that depend on the sizes of the parts.
func (p *plan) setChunks() {
	p.chunkLength = max(1, stageBytes/(p.partCount*p.elementSize))
	p.yieldProcessor = p.bytes > p.comm.tuning.maxPolledBytes
}

// chooseAlgorithm decides whether the call uses windows, and how it then reduces. Small calls are
// staged even if they could use windows, because this saves a step.
func (p *plan) chooseAlgorithm() {
	tuning := &p.comm.tuning
	hasWindows := p.Path == driver.PathWindow && p.routed == nil
	isSmall := p.bytes <= tuning.maxStagedInWindow
	p.useWindows = hasWindows && !isSmall && !p.overwritesInput()

	isAllReduce := p.Operation == driver.AllReduce || p.Operation == driver.AllReduceRMSNorm
	isInPlace := p.Send == p.Recv
	fitsWhole := p.bytes <= tuning.maxReducedWhole
	p.reduceWhole = p.useWindows && isAllReduce && !isInPlace && fitsWhole
}

// overwritesInput reports whether a rank would overwrite data in a window that peers still read.
func (p *plan) overwritesInput() bool {
	return p.Operation == driver.AllToAll && p.Send == p.Recv
}

// sendPart returns the offset and count, in elements, of a part of this rank's input.
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
