package host

import (
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/spin"
)

// plan is a prepared call. It implements driver.Offer and, after Take, driver.Plan.
//
// A staged call runs in steps. In each step, a rank copies a chunk of its input to shared memory,
// signals this with a cache line, and reads the peers' chunks.
type plan struct {
	driver.Call
	comm       *communicator
	callMeter  driver.Meter
	isMessage  bool        // the call is a Send or a Recv
	isPairwise bool        // the call is an AllToAllV
	routed     *routedPlan // only for Dispatch and Combine
	otherCalls []*plan     // if this call begins a list, the rest of the list

	send, recv *window // nil if the call does not use windows

	elementSize int64
	partCount   int64 // parts of the input: 1 or, as in an AllToAll, one per rank
	longestPart int64 // in elements
	bytes       int64 // size of the input; AllGatherV and ReduceScatterV count every part as longest
	chunkLength int64 // elements of each part that a rank copies in one step
	isLineSized bool  // the input fits into the cache line of the first step

	useWindows     bool // peers read the input in its window instead of chunks
	reduceWhole    bool // every rank reduces the whole input instead of one slice
	yieldProcessor bool // in the first step, yield the processor instead of polling
}

// SetMeter makes the plan report its runs to m. Sends and Recvs ignore the meter.
func (p *plan) SetMeter(m driver.Meter) { p.callMeter = m }

func (p *plan) Prepared() *driver.Call { return &p.Call }

var errNoKernels = fmt.Errorf("the host backend has no GPU kernels: %w", driver.ErrUnsupported)

// Refusal refuses only the paths that need GPU kernels.
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

	p.setSizes()
	if err := p.chooseWindows(); err != nil {
		return nil, fmt.Errorf("preparing %v of %d %v: %w", p.Operation, p.Count, p.DataType, err)
	}

	return p, nil
}

// setSizes sets the fields that depend only on the arguments of the call and the tuning.
func (p *plan) setSizes() {
	p.isPairwise = p.Operation == driver.AllToAllV
	p.elementSize = int64(p.DataType.Size())
	p.longestPart = p.Count
	partsDiffer := p.Operation.SplitsOneBuffer()
	if partsDiffer {
		p.longestPart = slices.Max(p.splitCounts())
	}

	inputExtent, _ := p.Operation.Extents()
	switch inputExtent {
	case driver.AllParts, driver.AllPartsOfRoot, driver.BySplits:
		p.partCount = int64(p.comm.Size())
	case driver.NoPart, driver.OnePart:
		p.partCount = 1
	}

	if p.isPairwise {
		inputBytes, _ := p.Spans(p.comm.Size(), p.comm.cfg.Rank)
		p.bytes = inputBytes
	} else {
		p.bytes = p.partCount * p.longestPart * p.elementSize
	}

	p.isLineSized = p.bytes <= spin.LinePayload && !partsDiffer
	p.chunkLength = max(1, stageBytes/(p.partCount*p.elementSize))
	p.yieldProcessor = p.bytes > p.comm.tuning.maxPolledBytes
}

// splitCounts returns the lengths of the parts of an AllGatherV or a ReduceScatterV.
func (p *plan) splitCounts() []int64 {
	if p.Operation == driver.AllGatherV {
		return p.Splits.RecvCounts
	}

	return p.Splits.SendCounts
}

// chooseWindows sets send, recv, useWindows and reduceWhole. A rank must not write to its input
// while peers read it.
func (p *plan) chooseWindows() (err error) {
	isInPlace := p.Send == p.Recv
	isFasterStaged := p.bytes <= p.comm.tuning.maxStagedInWindow
	if p.isPairwise {
		if p.SendWindow != nil && !isInPlace && !isFasterStaged {
			p.send, err = p.groupWindow("send", p.SendWindow)
		}

		return err
	}

	if p.Path != driver.PathWindow || p.routed != nil {
		return nil
	}

	if p.send, err = p.groupWindow("send", p.SendWindow); err != nil {
		return err
	}

	if p.recv, err = p.groupWindow("receive", p.RecvWindow); err != nil {
		return err
	}

	overwritesInput := isInPlace && p.Operation == driver.AllToAll
	p.useWindows = !isFasterStaged && !overwritesInput
	isAllReduce := p.Operation == driver.AllReduce || p.Operation == driver.AllReduceRMSNorm
	isShort := p.bytes <= p.comm.tuning.maxReducedWhole
	p.reduceWhole = p.useWindows && isAllReduce && !isInPlace && isShort
	return nil
}

// groupWindow returns w if it is a window of the plan's group.
func (p *plan) groupWindow(bufferName string, w driver.Window) (*window, error) {
	hostWindow, ok := w.(*window)
	if !ok || hostWindow.registry != &p.comm.registry {
		return nil, fmt.Errorf("%s buffer: the buffer is not in a window of group %s: %w", bufferName,
			p.comm.cfg.Name(), driver.ErrOutOfRange)
	}

	return hostWindow, nil
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
