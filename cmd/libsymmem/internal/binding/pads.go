package binding

import (
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

// pad is memory through which kernels of all ranks of a group signal each other, with checks. If a
// wait fails, the kernel writes a report to the pads of all ranks.
type pad struct {
	owner   *rank
	group   *group
	address uintptr
	sites   []string      // the names of call sites, by number
	timeout time.Duration // maximum wait of a kernel
	// isFailed is set once CheckPad has found a failed wait. The signals left on a failed pad do not
	// explain failures of other pads.
	isFailed atomic.Bool

	mu       sync.RWMutex // held for reading during copies, which keeps the memory mapped
	isClosed bool         // guarded by mu
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
	if size := len(g.Ranks()); size > padRanks {
		return 0, fmt.Errorf("a checked pad is for at most %d ranks, not %d: %w", padRanks, size,
			symmem.ErrUnsupported)
	}
	words := windows{ps.session}
	addresses, err := words.OpenSignalWords(handle, padBytes/SignalWordBytes)
	if err != nil {
		return 0, err
	}
	p := &pad{
		owner: r, group: g, address: addresses[g.Rank()], sites: sites, timeout: g.Timeout(),
	}
	if err := p.writeHeader(addresses, g.nextPadNumber()); err != nil {
		return 0, errors.Join(err, words.CloseSignalWords(p.address))
	}
	ps.session.padTable.add(p.address, p)
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

// close waits for copies of the pad's memory and prevents later ones.
func (p *pad) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isClosed = true
}

func (ps *pads) find(address uintptr) (*pad, error) {
	if _, err := ps.session.anyRank(); err != nil {
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
	head, err := p.read(padArrivals)
	if err != nil || head.uint32(padFailed) == 0 {
		return err
	}
	p.isFailed.Store(true)
	reports := head.reports(len(p.group.Ranks()))
	cause := p.likeliestCause(reports)
	switch {
	case cause == nil:
		return fmt.Errorf("the checked pad at %#x has failed without a valid report", address)
	case cause.failure == padTimedOut:
		return ps.timeoutError(p, cause, reports)
	case cause.failure == padStopped:
		return p.stoppedError(cause)
	}
	return p.differenceError(cause)
}

// ExplainPad describes the signals on this rank's pad for which it has not waited, one per line.
func (ps *pads) ExplainPad(address uintptr) (string, error) {
	p, err := ps.find(address)
	if err != nil {
		return "", err
	}
	includesAll := func(int) bool { return true }
	lines, err := p.signalsFrom(includesAll)
	return strings.Join(lines, "\n"), err
}

// writeHeader writes the fields between padNumber and padReports. It leaves padFailed, because
// peers may already have set it. addresses lists the pads of all ranks.
func (p *pad) writeHeader(addresses []uintptr, number uint32) error {
	header := make([]byte, padReports-padNumber) // fields are at their offset minus padNumber
	order := binary.NativeEndian
	order.PutUint32(header, number)
	order.PutUint32(header[4:], uint32(p.group.Rank()))
	order.PutUint32(header[8:], uint32(len(addresses)))
	order.PutUint64(header[12:], uint64(p.timeout))
	stopWord := p.owner.rt.Interop().StopWord(p.group.Group)
	order.PutUint64(header[padStop-padNumber:], uint64(stopWord))
	for rank, address := range addresses {
		order.PutUint64(header[padPeers-padNumber+8*rank:], uint64(address))
	}
	return p.copy(int64(len(header)), func(s *symmem.Stream, m symmem.Memory) error {
		return s.Copy(m, symmem.Host(header))
	}, padNumber)
}

// read returns the first bytes of the pad. It does not wait for kernels.
func (p *pad) read(bytes int64) (padMemory, error) {
	memory := make(padMemory, bytes)
	err := p.copy(bytes, func(s *symmem.Stream, m symmem.Memory) error {
		return s.Copy(symmem.Host([]byte(memory)), m)
	}, 0)
	return memory, err
}

// copy copies to or from the bytes of the pad that begin at offset. It calls queue with a stream
// on which no kernel runs and with the memory of these bytes, and then waits for the stream.
func (p *pad) copy(
	bytes int64, queue func(*symmem.Stream, symmem.Memory) error, offset uintptr,
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
	m, err := p.owner.rt.Interop().Memory(p.address+offset, bytes)
	if err == nil {
		err = queue(s, m)
	}
	if err == nil {
		err = s.Synchronize(ctx)
	}
	if err != nil {
		return fmt.Errorf("copying a checked pad of group %s: %w", p.group.name, err)
	}
	return nil
}

// likeliestCause returns the report that explains the failure best, or nil if there is none. It
// prefers other failures to time-outs and stops, then this rank's report, then low ranks.
func (p *pad) likeliestCause(reports []padReport) *padReport {
	var best *padReport
	preference := func(r *padReport) int { // the lowest value is the best
		value := r.rank // is less than padRanks
		if r.failure == padTimedOut || r.failure == padStopped {
			value += 2 * padRanks
		}
		if r.rank != p.group.Rank() {
			value += padRanks
		}
		return value
	}
	for i := range reports {
		r := &reports[i]
		if r.failure == padPeerFailed {
			continue // the report of the peer contains the cause
		}
		if best == nil || preference(r) < preference(best) {
			best = r
		}
	}
	return best
}

// signalsFrom describes the signals on this rank's pad for which it has not waited, one per line.
// Only signals from included ranks of the world count.
func (p *pad) signalsFrom(includes func(worldRank int) bool) ([]string, error) {
	memory, err := p.read(padBytes)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, s := range memory.pending(len(p.group.Ranks())) {
		worldRank := p.group.Ranks()[s.source]
		if !includes(worldRank) {
			continue
		}
		verb := "signalled"
		if s.isArrival {
			verb = "arrived"
		}
		line := fmt.Sprintf("rank %d has %s %s", worldRank, verb, p.place(s.channel, s.site))
		lines = append(lines, line)
	}
	return lines, nil
}

func (p *pad) site(number int) string {
	if number < len(p.sites) {
		return fmt.Sprintf("site %d (%q)", number, p.sites[number])
	}
	return fmt.Sprintf("site %d", number)
}

func (p *pad) place(channel, site int) string {
	return fmt.Sprintf("on channel %d at %s", channel, p.site(site))
}
