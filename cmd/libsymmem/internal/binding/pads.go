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

// pad is memory through which kernels of all ranks of a group signal each other, with checks.
type pad struct {
	owner    *rank
	group    *group
	address  uintptr
	sites    []string
	timeout  time.Duration
	isFailed atomic.Bool // if set, the signals left on the pad do not explain failures of other pads

	mu       sync.RWMutex // held during copies, to keep the memory mapped
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

// ClosePad frees this rank's pad. It can be called again after an error.
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
	first := p.firstCause(reports)
	switch {
	case first == nil:
		return fmt.Errorf("the checked pad at %#x has failed without a valid report", address)
	case first.failure == padTimedOut:
		return ps.timeoutError(p, first, reports)
	case first.failure == padStopped:
		return p.stoppedError(first)
	}
	return p.differenceError(first)
}

// ExplainPad describes the signals that this rank has not waited for, one per line.
func (ps *pads) ExplainPad(address uintptr) (string, error) {
	p, err := ps.find(address)
	if err != nil {
		return "", err
	}
	lines, err := p.signalsFrom(func(int) bool { return true })
	return strings.Join(lines, "\n"), err
}

func (p *pad) writeHeader(addresses []uintptr, number uint32) error {
	// The header begins after the first word (padFailed), which peers may already have written.
	header := make([]byte, padReports-padNumber)
	put := binary.NativeEndian
	put.PutUint32(header, number)
	put.PutUint32(header[4:], uint32(p.group.Rank()))
	put.PutUint32(header[8:], uint32(len(addresses)))
	put.PutUint64(header[12:], uint64(p.timeout))
	put.PutUint64(header[padStop-padNumber:], uint64(p.owner.rt.Interop().StopWord(p.group.Group)))
	for i, address := range addresses {
		put.PutUint64(header[padPeers-padNumber+8*i:], uint64(address))
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

// copy calls queue with a part of the pad's memory and a stream on which no kernel runs, and waits
// for the stream.
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

// firstCause returns the report that explains the failure. It prefers other causes to time-outs and
// stops, and then this rank's report to those of other ranks.
func (p *pad) firstCause(reports []padReport) *padReport {
	var first *padReport
	orderOf := func(r *padReport) int {
		order := r.rank
		if r.failure == padTimedOut || r.failure == padStopped {
			order += 2 * padRanks
		}
		if r.rank != p.group.Rank() {
			order += padRanks
		}
		return order
	}
	for i := range reports {
		r := &reports[i]
		if r.failure != padPeerFailed && (first == nil || orderOf(r) < orderOf(first)) {
			first = r
		}
	}
	return first
}

// signalsFrom describes the signals of some ranks of the world that this rank has not waited for.
func (p *pad) signalsFrom(includes func(rank int) bool) ([]string, error) {
	memory, err := p.read(padBytes)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, s := range memory.pending(len(p.group.Ranks())) {
		rank := p.group.Ranks()[s.source]
		if !includes(rank) {
			continue
		}
		did := "signalled"
		if s.isArrival {
			did = "arrived"
		}
		lines = append(lines, fmt.Sprintf("rank %d has %s %s", rank, did, p.place(s.channel, s.site)))
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
