package tcp

import (
	"encoding/binary"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	// maxPosts is how many steps of a track can have come from a rank and not be taken yet: the
	// one that this rank waits in, and the next, of a rank that has seen it complete.
	maxPosts = 2
	// maxReports and maxReportBytes bound what a rank can send on the fault lane, in reports and in
	// bytes: room for the largest payload and for a hundred small ones.
	maxReports     = 128
	maxReportBytes = 2 * driver.MaxPayload
)

// rankRecord is what this rank knows of one rank. It is pure: messages go in, answers come out.
//
// States of the rank: present; failed; then left, after kindLeave, or lost, after the end of its
// connection without kindLeave. Transitions go one way only. Messages of a rank that has left are
// not read.
type rankRecord struct {
	status
	// received is the last step of each track that has come; posts are those not taken yet.
	received [tracks]uint64
	posts    [tracks][][]byte
	// completed is the last step of each track that the rank had seen complete when it failed.
	completed [tracks]uint64
	// values are the steps under names, of which there are driver.MaxValueNames at most.
	values map[string]*values
	// reports is the log of the fault lane, reportBytes its size, and readReports how many of them
	// this rank has read; absent ranks are no longer waited for there.
	reports                  [][]byte
	reportBytes, readReports int
	absent                   bool

	// failed says how the rank has failed, if it has.
	failed     control.Reason
	left, lost bool
	// failAcked reports whether the rank knows of this rank's fault.
	failAcked bool
}

// apply takes a message from the rank.
func (r *rankRecord) apply(m message, now time.Time) error {
	switch m.kind {
	case kindPost:
		return r.addPost(m)
	case kindReport:
		if err := r.addReport(m.payload); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	case kindStatus:
		r.status = decodeStatus(m.payload, now)
	case kindFail:
		if m.step > uint64(control.FailedAfterPeer) {
			return fmt.Errorf("a rank has failed for reason %d: %w", m.step, ErrProtocol)
		}
		r.status = decodeStatus(m.payload, now)
		r.failed = max(control.FailedItself, control.Reason(m.step))
		for t := range r.completed {
			r.completed[t] = binary.LittleEndian.Uint64(m.payload[statusBytes+8*t:])
		}
	case kindFailAck:
		r.failAcked = true
	case kindValue:
		return r.addValue(m)
	case kindComplete:
		if v := r.values[string(m.payload)]; v != nil {
			v.completed = m.step
		}
	case kindLeave:
		r.status, r.left = decodeStatus(m.payload, now), true
	}
	return nil
}

// addPost takes one step of a track.
func (r *rankRecord) addPost(m message) error {
	if r.failed != control.NotFailed && m.step > r.completed[m.track] {
		return nil // the rank had given the step up when it failed
	}
	if m.step != r.received[m.track]+1 || len(r.posts[m.track]) == maxPosts {
		return fmt.Errorf("step %d of track %d after step %d, of which %d are not taken: %w",
			m.step, m.track, r.received[m.track], len(r.posts[m.track]), ErrProtocol)
	}
	r.received[m.track] = m.step
	r.posts[m.track] = append(r.posts[m.track], m.payload)
	return nil
}

// takePost returns the oldest post of a track, which must be there.
func (r *rankRecord) takePost(t track) []byte {
	first := r.posts[t][0]
	r.posts[t] = r.posts[t][1:]
	return first
}

// addReport takes a report on the fault lane.
func (r *rankRecord) addReport(payload []byte) error {
	if !r.hasRoom(len(payload)) {
		return fmt.Errorf("the log of faults is full after %d reports of %d bytes: %w",
			len(r.reports), r.reportBytes, driver.ErrClosed)
	}
	r.reports = append(r.reports, payload)
	r.reportBytes += len(payload)
	return nil
}

func (r *rankRecord) hasRoom(bytes int) bool {
	return len(r.reports) < maxReports && r.reportBytes+bytes <= maxReportBytes
}

// nextReport returns the next report, if there is one.
func (r *rankRecord) nextReport() ([]byte, bool) {
	if r.readReports == len(r.reports) {
		return nil, false
	}
	r.readReports++
	return r.reports[r.readReports-1], true
}

// state is what is known of the rank, but for whether it is missing.
func (r *rankRecord) state(w *waiting, now time.Time) control.RankState {
	_, completed := r.steps(w)
	return control.RankState{
		Failed: r.failed, Completed: w.step != 0 && completed >= w.step,
		Left: r.left, Lost: r.lost, Submitted: r.submitted, InCollective: r.inCollective,
		Operation: r.operation, Exchanges: r.received[trackControl], InExchange: r.inExchange,
		Waited: max(0, now.Sub(r.since)),
	}
}
