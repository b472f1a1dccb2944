package binding

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"symmem"
)

// pads implements the functions in symmem.h for checked pads.
type pads struct{ session *session }

// pad is one rank's part of a checked pad. Kernels of a group signal each other through the pads of
// all ranks. Each signal contains its call site, so that the receiving kernel finds signals that do
// not match its wait. If a wait fails, the kernel writes a report to the pads of all ranks.
type pad struct {
	owner   *rank
	group   *group
	address uintptr       // of this rank's memory on the device
	sites   []string      // the name of call site n is sites[n]
	timeout time.Duration // maximum wait of a kernel
	// isFailed is set once CheckPad has found a failed wait. The signals left on a failed pad do not
	// explain failures of other pads.
	isFailed atomic.Bool

	// mu keeps the memory mapped during copies: a copy holds it for reading, and close for writing.
	mu       sync.RWMutex
	isClosed bool // guarded by mu
}

// padReadTimeout limits a copy to or from a pad's memory. The copy does not wait for kernels.
const padReadTimeout = 10 * time.Second

// OpenPad creates a checked pad on every rank of a group, and returns the address of this rank's
// pad. Errors name call site n as sites[n]. OpenPad is collective over the group.
func (ps *pads) OpenPad(handle uint64, sites []string) (uintptr, error) {
	r, g, err := ps.session.group(handle)
	if err != nil {
		return 0, err
	}

	if size := len(g.Ranks()); size > maxPadRanks {
		return 0, fmt.Errorf("a checked pad is for at most %d ranks, not %d: %w", maxPadRanks, size,
			symmem.ErrUnsupported)
	}

	words := windows{ps.session} // a pad consists of signal words, which begin as 0
	addresses, err := words.OpenSignalWords(handle, padBytes/SignalWordBytes)
	if err != nil {
		return 0, err
	}

	p := &pad{
		owner: r, group: g, address: addresses[g.Rank()], sites: sites, timeout: g.Timeout(),
	}
	number := g.nextPadNumber()
	if err := p.writeHeader(addresses, number); err != nil {
		closeErr := words.CloseSignalWords(p.address)
		return 0, errors.Join(err, closeErr)
	}

	ps.session.padTable.set(p.address, p)
	return p.address, nil
}

// ClosePad frees this rank's pad. After an error, it can be called again.
func (ps *pads) ClosePad(address uintptr) error {
	if p, ok := ps.session.padTable.remove(address); ok {
		p.close()
	}

	words := windows{ps.session}
	return words.CloseSignalWords(address)
}

// close prevents later copies of the pad's memory. It waits for those in progress.
func (p *pad) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isClosed = true
}

// find returns the open pad that begins at an address.
func (ps *pads) find(address uintptr) (*pad, error) {
	if err := ps.session.checkOpen(); err != nil {
		return nil, err
	}

	if p, ok := ps.session.padTable.find(address); ok {
		return p, nil
	}

	return nil, fmt.Errorf("no open checked pad begins at %#x: %w", address, symmem.ErrForeign)
}

// CheckPad returns an error if a wait on a pad has failed on any rank.
func (ps *pads) CheckPad(address uintptr) error {
	p, err := ps.find(address)
	if err != nil {
		return err
	}

	head, err := p.read(padArrivalsOffset) // the header and the reports, which precede the arrivals
	if err != nil {
		return err
	}

	if head.uint32At(padFailedOffset) == 0 {
		return nil
	}

	p.isFailed.Store(true)
	reports := head.reports(len(p.group.Ranks()))
	report := p.mainReport(reports)
	if report == nil {
		return fmt.Errorf("the checked pad at %#x has failed without a valid report", address)
	}

	switch report.failure {
	case padTimedOut:
		return ps.timeoutError(p, report, reports)
	case padStopped:
		return p.stoppedError(report)
	case padBadArgument:
		return p.argumentError(report)
	default: // padWrongWord or padOverwritten
		return p.differenceError(report)
	}
}

// ExplainPad describes the signals on this rank's pad for which it has not waited, one per line.
func (ps *pads) ExplainPad(address uintptr) (string, error) {
	p, err := ps.find(address)
	if err != nil {
		return "", err
	}

	isAnyRank := func(int) bool { return true }
	lines, err := p.signalsFrom(isAnyRank)
	return strings.Join(lines, "\n"), err
}

// writeHeader writes the header except the failure, which peers may already have set. addresses[i]
// is the pad of rank i.
func (p *pad) writeHeader(addresses []uintptr, number uint32) error {
	header := make([]byte, padReportsOffset)
	order := binary.NativeEndian
	order.PutUint32(header[padNumberOffset:], number)
	order.PutUint32(header[padOwnRankOffset:], uint32(p.group.Rank()))
	order.PutUint32(header[padGroupSizeOffset:], uint32(len(addresses)))
	order.PutUint64(header[padTimeoutOffset:], uint64(p.timeout))
	stopWord := p.owner.rt.Interop().StopWord(p.group.Group)
	order.PutUint64(header[padStopOffset:], uint64(stopWord))
	for rank, address := range addresses {
		order.PutUint64(header[padPeersOffset+8*rank:], uint64(address))
	}

	written := header[padNumberOffset:]
	return p.copy(padNumberOffset, len(written), func(s *symmem.Stream, m symmem.Memory) error {
		return s.Copy(m, symmem.Host(written))
	})
}

// read copies the first bytes of the pad. It does not wait for kernels.
func (p *pad) read(bytes int) (padMemory, error) {
	memory := make(padMemory, bytes)
	err := p.copy(0, bytes, func(s *symmem.Stream, m symmem.Memory) error {
		return s.Copy(symmem.Host([]byte(memory)), m)
	})
	return memory, err
}

// copy copies to or from the bytes of the pad that begin at offset. It passes the memory of these
// bytes to queueCopy, with a stream on which no kernel runs. copy then waits for the stream.
func (p *pad) copy(
	offset uintptr, bytes int, queueCopy func(*symmem.Stream, symmem.Memory) error,
) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.isClosed {
		return fmt.Errorf("the checked pad at %#x: %w", p.address, symmem.ErrClosed)
	}

	ctx, cancel := context.WithTimeout(context.Background(), padReadTimeout)
	defer cancel()
	s, err := p.owner.padStream()
	if err != nil {
		return fmt.Errorf("creating a stream for checked pads: %w", err)
	}

	m, err := p.owner.rt.Interop().Memory(p.address+offset, int64(bytes))
	if err == nil {
		err = queueCopy(s, m)
	}

	if err == nil {
		err = s.Synchronize(ctx)
	}

	if err != nil {
		return fmt.Errorf("copying a checked pad of group %s: %w", p.group.name, err)
	}

	return nil
}

// mainReport returns the report that explains the failure best, or nil if there is none.
func (p *pad) mainReport(reports []padReport) *padReport {
	var best *padReport
	for i := range reports {
		r := &reports[i]
		if r.failure == padPeerFailed {
			continue // the report of the peer contains the cause
		}

		if best == nil || p.compareReports(r, best) < 0 {
			best = r
		}
	}

	return best
}

// compareReports returns a negative number if report a explains a failure better than report b.
// Time-outs and stops often follow from another failure, so the other failure is better. Next,
// this rank's report is better than others, and reports of low ranks are better.
func (p *pad) compareReports(a, b *padReport) int {
	failureOrder := func(r *padReport) int {
		if r.failure == padTimedOut || r.failure == padStopped {
			return 1
		}

		return 0
	}
	ownerOrder := func(r *padReport) int {
		if r.rank == p.group.Rank() {
			return 0
		}

		return 1
	}
	return cmp.Or(
		cmp.Compare(failureOrder(a), failureOrder(b)),
		cmp.Compare(ownerOrder(a), ownerOrder(b)),
		cmp.Compare(a.rank, b.rank),
	)
}

// signalsFrom describes signals on this rank's pad for which it has not waited, one per line. It
// leaves out signals from ranks of the world for which isIncluded returns false.
func (p *pad) signalsFrom(isIncluded func(worldRank int) bool) ([]string, error) {
	memory, err := p.read(padBytes)
	if err != nil {
		return nil, err
	}

	var lines []string
	for _, s := range memory.pending(len(p.group.Ranks())) {
		worldRank := p.worldRank(s.sender)
		if !isIncluded(worldRank) {
			continue
		}

		where := p.describePlace(s.channel, s.site)
		lines = append(lines, fmt.Sprintf("rank %d has %s %s", worldRank, signalVerb(s.isArrival), where))
	}

	return lines, nil
}

func (p *pad) describeSite(number int) string {
	if number < len(p.sites) { // otherwise, the caller of OpenPad has not named the site
		return fmt.Sprintf("site %d (%q)", number, p.sites[number])
	}

	return fmt.Sprintf("site %d", number)
}

func (p *pad) describePlace(channel, site int) string {
	return fmt.Sprintf("on channel %d at %s", channel, p.describeSite(site))
}
