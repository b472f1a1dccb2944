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
// posts a cache line as a signal, and reads the peers' chunks. An input of a few bytes travels in
// the line itself. Peers read a large input in place if it lies in a window, memory that all ranks
// have mapped. An input can have a part for each rank, as in an AllToAll.
type plan struct {
	driver.Call
	comm           *communicator
	send, recv     *window // nil if the buffers are in no window
	elementSize    int64
	partCount      int64       // number of parts of the input; 1 if it is not divided
	bytes          int64       // size of the input if all parts were as long as the longest
	longestPart    int64       // in elements
	chunkLength    int64       // elements of each part that a step stages
	isLineSized    bool        // the input fits into a cache line
	isPairwise     bool        // the call is an AllToAllV
	useWindows     bool        // peers read the input in place
	reduceWhole    bool        // every rank reduces the whole input instead of one slice
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

	p.setStaging()
	p.chooseInPlace()
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

// findWindows sets send and recv if the call may use windows. It also sets the bytes of an
// AllToAllV.
func (p *plan) findWindows() (err error) {
	switch {
	case p.isPairwise:
		return p.findSplitWindow()
	case p.routed != nil:
		return nil // routedPlan stages the rows
	case p.Path != driver.PathWindow:
		return nil
	}

	if p.send, err = p.groupWindow("send", p.SendWindow); err != nil {
		return err
	}

	p.recv, err = p.groupWindow("receive", p.RecvWindow)
	return err
}

// findSplitWindow sets the bytes of an AllToAllV, and sets send if peers should read the input in
// place.
func (p *plan) findSplitWindow() (err error) {
	p.bytes, _ = p.Spans(p.comm.Size(), p.comm.cfg.Rank)
	isBetterStaged := p.bytes <= p.comm.tuning.maxStagedInWindow // staging saves a step
	if p.SendWindow == nil || p.overwritesInput() || isBetterStaged {
		return nil
	}

	p.send, err = p.groupWindow("send", p.SendWindow)
	return err
}

func (p *plan) overwritesInput() bool { return p.Send == p.Recv }

// groupWindow checks that w is a window of the plan's group.
func (p *plan) groupWindow(bufferName string, w driver.Window) (*window, error) {
	own, ok := w.(*window)
	if !ok || own.registry != &p.comm.registry {
		return nil, fmt.Errorf("%s buffer: the buffer is not in a window of group %s: %w", bufferName,
			p.comm.cfg.Name(), driver.ErrOutOfRange)
	}

	return own, nil
}

// setStaging sets the size of a step and how the first step waits.
func (p *plan) setStaging() {
	p.chunkLength = max(1, stageBytes/(p.partCount*p.elementSize))
	p.yieldProcessor = p.bytes > p.comm.tuning.maxPolledBytes
}

// chooseInPlace decides whether peers read the input in place and how they then reduce it.
func (p *plan) chooseInPlace() {
	tuning := &p.comm.tuning
	hasWindows := p.Path == driver.PathWindow && p.routed == nil
	isBetterStaged := p.bytes <= tuning.maxStagedInWindow // staging saves a step
	overwritesWhileRead := p.Operation == driver.AllToAll && p.overwritesInput()
	p.useWindows = hasWindows && !isBetterStaged && !overwritesWhileRead

	isAllReduce := p.Operation == driver.AllReduce || p.Operation == driver.AllReduceRMSNorm
	isShort := p.bytes <= tuning.maxReducedWhole
	p.reduceWhole = p.useWindows && isAllReduce && !p.overwritesInput() && isShort
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
