package tcp

import (
	"fmt"
	"strings"
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
	// tracks are those to which the rank has come; names counts those of values among them.
	tracks map[track]*steps
	names  int
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

// steps is what is known of a rank's steps on one track.
type steps struct {
	// received is the last step that has come; posts are those not taken yet.
	received uint64
	posts    [][]byte
	// completed is the last step that the rank had seen complete: this rank at any time, another one
	// when it failed.
	completed uint64
	// ordered is set, of this rank, if it launches no collective in a wait on the track.
	ordered bool
}

// on returns the rank's steps on a track, for which it must have room.
func (r *rankRecord) on(t track) (*steps, error) {
	if s := r.tracks[t]; s != nil {
		return s, nil
	}
	if name, ok := strings.CutPrefix(string(t), valuePrefix); ok {
		if err := driver.CheckValueName(name, r.names); err != nil {
			return nil, err
		}
		r.names++
	}
	if r.tracks == nil {
		r.tracks = map[track]*steps{}
	}
	s := &steps{}
	r.tracks[t] = s
	return s, nil
}

// at is what is known of the rank's steps on a track, to which it may not have come.
func (r *rankRecord) at(t track) steps {
	if s := r.tracks[t]; s != nil {
		return *s
	}
	return steps{}
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
	case kindFailAck:
		r.failAcked = true
	case kindComplete:
		if s := r.tracks[m.track]; s != nil {
			s.completed = m.step
		}
	case kindLeave:
		r.status, r.left = decodeStatus(m.payload, now), true
	}
	return nil
}

// addPost takes one step of a track.
func (r *rankRecord) addPost(m message) error {
	s, err := r.on(m.track)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	case r.failed != control.NotFailed && m.step > s.completed:
		return nil // the rank had given the step up when it failed
	case m.step != s.received+1 || len(s.posts) == maxPosts:
		return fmt.Errorf("step %d of track %q after step %d, of which %d are not taken: %w",
			m.step, m.track, s.received, len(s.posts), ErrProtocol)
	}
	s.received = m.step
	s.posts = append(s.posts, m.payload)
	return nil
}

// take returns the oldest post, which must be there.
func (s *steps) take() []byte {
	first := s.posts[0]
	s.posts = s.posts[1:]
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
	return control.RankState{
		Failed: r.failed, Completed: w.step != 0 && r.at(w.track).completed >= w.step,
		Left: r.left, Lost: r.lost, Submitted: r.submitted, InCollective: r.inCollective,
		Operation: r.operation, Exchanges: r.at(trackControl).received, InExchange: r.inExchange,
		Waited: max(0, now.Sub(r.since)),
	}
}
