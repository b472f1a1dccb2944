package host

import (
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// plan is a prepared call. It implements driver.Offer and, after Take, driver.Plan.
//
// A staged call runs in steps. In each, a rank copies a chunk of its input to shared memory, posts
// a cache line as a signal, and reads the peers' chunks. Tiny inputs travel in the line. Large
// inputs in windows, which all ranks have mapped, are read in place instead. If an input has a part
// for each rank, as in an AllToAll, each step stages a chunk of every part.
type plan struct {
	driver.Call
	comm           *communicator
	send, recv     *window // nil if the buffers are in no window
	elementSize    int64
	partCount      int64 // at least 1
	bytes          int64 // size of the input; uneven parts count as the longest
	longestPart    int64 // in elements
	chunkLength    int64 // elements of each part that a step stages
	isLineSized    bool  // the input fits into a cache line
	isPairwise     bool  // the call is an AllToAllV
	useWindows     bool
	reduceWhole    bool        // every rank reduces the whole input, not a slice for all
	yieldProcessor bool        // in the first step, yield the processor instead of polling
	otherCalls     []*plan     // further calls of a list
	isMessage      bool        // the call is a Send or a Recv
	routed         *routedPlan // only for Dispatch and Combine
	callMeter      driver.Meter
}

// SetMeter makes the plan report its runs to m. Sends and Recvs are not metered.
func (p *plan) SetMeter(m driver.Meter) { p.callMeter = m }

func (p *plan) Prepared() *driver.Call { return &p.Call }

var errNoKernels = fmt.Errorf("the host backend has no GPU kernels: %w", driver.ErrUnsupported)

// Refusal rejects the paths that need GPU kernels.
func (p *plan) Refusal(path driver.Path) error {
	if path == driver.PathDirect || path == driver.PathTwoLevel {
		return errNoKernels
	}

	return nil
}

// Take completes the plan. Ranks compare digests to detect that they made different calls.
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

// setParts sets the fields that depend only on the operation and its counts.
func (p *plan) setParts() {
	p.isPairwise = p.Operation == driver.AllToAllV
	p.elementSize = int64(p.DataType.Size())
	p.longestPart = p.Count
	hasUnevenParts := p.Operation.SplitsOneBuffer()
	if hasUnevenParts {
		p.longestPart = slices.Max(p.unevenCounts())
	}

	sendExtent, _ := p.Operation.Extents()
	switch sendExtent {
	case driver.AllParts, driver.AllPartsOfRoot, driver.BySplits:
		p.partCount = int64(p.comm.Size())
	case driver.NoPart, driver.OnePart:
		p.partCount = 1
	}

	p.bytes = p.partCount * p.longestPart * p.elementSize
	p.isLineSized = p.bytes <= spin.LinePayload && !hasUnevenParts
}

// unevenCounts is for an AllGatherV or a ReduceScatterV.
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
		return nil // routedPlan stages rows in buffers of its own
	case p.Path != driver.PathWindow:
		return nil
	}

	if p.send, err = p.groupWindow("send", p.SendWindow); err != nil {
		return err
	}

	p.recv, err = p.groupWindow("receive", p.RecvWindow)
	return err
}

// findSplitWindow sets the bytes of an AllToAllV, and send if peers should read its input in place.
// Small inputs are staged, because this saves a step, and so are inputs that the call overwrites.
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

// groupWindow checks that w is a window of the plan's group.
func (p *plan) groupWindow(bufferName string, w driver.Window) (*window, error) {
	own, ok := w.(*window)
	if !ok || own.registry != &p.comm.registry {
		return nil, fmt.Errorf("%s buffer: the buffer is not in a window of group %s: %w", bufferName,
			p.comm.cfg.Name(), driver.ErrOutOfRange)
	}

	return own, nil
}

func (p *plan) setChunks() {
	p.chunkLength = max(1, stageBytes/(p.partCount*p.elementSize))
	p.yieldProcessor = p.bytes > p.comm.tuning.maxPolledBytes
}

// chooseAlgorithm decides whether peers read inputs in place. Staging small inputs saves a step.
func (p *plan) chooseAlgorithm() {
	tuning := &p.comm.tuning
	isInPlace := p.Send == p.Recv
	overwritesInput := p.Operation == driver.AllToAll && isInPlace // while peers read it
	hasWindows := p.Path == driver.PathWindow && p.routed == nil
	isSmall := p.bytes <= tuning.maxStagedInWindow
	p.useWindows = hasWindows && !isSmall && !overwritesInput

	isAllReduce := p.Operation == driver.AllReduce || p.Operation == driver.AllReduceRMSNorm
	fitsWhole := p.bytes <= tuning.maxReducedWhole
	p.reduceWhole = p.useWindows && isAllReduce && !isInPlace && fitsWhole
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
