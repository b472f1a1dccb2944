package tcp

import (
	"encoding/binary"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	// mostPosts is how many steps of a track can have come from a rank and not be taken yet: the
	// one that this rank waits in, and the next, of a rank that has seen it complete.
	mostPosts = 2
	// mostReports and mostReported bound what a rank can say on the fault lane, in reports and in
	// bytes: room for the largest payload and for a hundred small ones.
	mostReports  = 128
	mostReported = 2 * driver.MaxPayload
)

// row is what this rank knows of one rank. It is pure: messages go in, answers come out.
//
// States of the rank: present; failed; then left, after a goodbye, or lost, after the end of its
// connection without one. Transitions go one way only, and nothing is believed of a rank that has
// left.
type row struct {
	board
	// came is the last step of each track that has come; posts are those not taken yet.
	came  [tracks]uint64
	posts [tracks][][]byte
	// completed is the last step of each track that the rank had seen complete when it failed.
	completed [tracks]uint64
	// values are the steps under names, of which there are driver.MaxValueNames at most.
	values map[string]*values
	// reports is the log of the fault lane, reported its bytes, and read how much of it this rank
	// has read; absent ranks are no longer waited for there.
	reports        [][]byte
	reported, read int
	absent         bool

	// failed says how the rank has failed, if it has.
	failed     control.Reason
	left, lost bool
	// heard reports whether the rank knows of this rank's fault.
	heard bool
}

// apply takes a message from the rank.
func (r *row) apply(m message, now time.Time) error {
	switch m.kind {
	case kindPost:
		return r.post(m)
	case kindReport:
		if err := r.report(m.payload); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	case kindBoard:
		r.board = decodeBoard(m.payload, now)
	case kindFail:
		if m.step > uint64(control.Followed) {
			return fmt.Errorf("a rank has failed for reason %d: %w", m.step, ErrProtocol)
		}
		r.board = decodeBoard(m.payload, now)
		r.failed = max(control.FailedItself, control.Reason(m.step))
		for t := range r.completed {
			r.completed[t] = binary.LittleEndian.Uint64(m.payload[boardBytes+8*t:])
		}
	case kindHeard:
		r.heard = true
	case kindValue:
		return r.give(m)
	case kindComplete:
		if v := r.values[string(m.payload)]; v != nil {
			v.completed = m.step
		}
	case kindBye:
		r.board, r.left = decodeBoard(m.payload, now), true
	}
	return nil
}

// post takes one step of a track.
func (r *row) post(m message) error {
	if r.failed != control.NotFailed && m.step > r.completed[m.track] {
		return nil // the rank had given the step up when it failed
	}
	if m.step != r.came[m.track]+1 || len(r.posts[m.track]) == mostPosts {
		return fmt.Errorf("step %d of track %d after step %d, of which %d are not taken: %w",
			m.step, m.track, r.came[m.track], len(r.posts[m.track]), ErrProtocol)
	}
	r.came[m.track] = m.step
	r.posts[m.track] = append(r.posts[m.track], m.payload)
	return nil
}

// take returns the oldest post of a track, which must be there.
func (r *row) take(t track) []byte {
	first := r.posts[t][0]
	r.posts[t] = r.posts[t][1:]
	return first
}

// report takes a report on the fault lane.
func (r *row) report(payload []byte) error {
	if !r.hasRoom(len(payload)) {
		return fmt.Errorf("the log of faults is full after %d reports of %d bytes: %w",
			len(r.reports), r.reported, driver.ErrClosed)
	}
	r.reports = append(r.reports, payload)
	r.reported += len(payload)
	return nil
}

func (r *row) hasRoom(bytes int) bool {
	return len(r.reports) < mostReports && r.reported+bytes <= mostReported
}

// next returns the next report, if there is one.
func (r *row) next() ([]byte, bool) {
	if r.read == len(r.reports) {
		return nil, false
	}
	r.read++
	return r.reports[r.read-1], true
}

// known says what is known of the rank, but for whether it is missing.
func (r *row) known(w *waiting, now time.Time) control.Row {
	_, completed := r.steps(w)
	return control.Row{
		Failed: r.failed, Completed: w.step != 0 && completed >= w.step,
		Left: r.left, Lost: r.lost, Submitted: r.submitted, InCollective: r.inCollective,
		Operation: r.operation, Exchanges: r.came[trackControl], InExchange: r.inExchange,
		Waited: max(0, now.Sub(r.since)),
	}
}
