package tcp

import (
	"fmt"
	"strings"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// rankRecord holds what one rank, the sender, has announced in its messages. In this rank's own
// record, only tracks and reports are used.
type rankRecord struct {
	status                          // latest status of the sender
	tracks         map[track]*steps // allocated by ensureSteps
	valueNameCount int              // number of tracks for named values

	failed       control.Reason // from kindFail, or control.NotFailed
	hasLeft      bool           // whether the sender has sent kindLeave
	isLost       bool           // whether the connection failed before kindLeave
	hasAckedFail bool           // whether the sender has sent kindFailAck
	answered     uint64         // number of the last answered kindAskStatus, or 0

	reports     [][]byte // about the group's failure, oldest first
	reportBytes int      // total size
	reportsRead int      // number of reports returned by nextReport
	isAbsent    bool     // whether no more reports of the sender are expected
}

// steps records the sender's steps on a track. In each step, every rank posts one payload to every
// other rank.
type steps struct {
	posted      uint64   // last step that the sender has posted
	unreadPosts [][]byte // payloads, oldest first
	completed   uint64   // from kindComplete: last step in which the sender received all posts
	isOrdered   bool     // whether waits are ordered with collectives (see driver.Values)
}

const (
	maxPosts = 2 // current step and next step
	// A rank may send one report of the maximum size and many small ones.
	maxReports     = 128
	maxReportBytes = 2 * driver.MaxPayload
)

// applyMessage updates the record. Errors wrap ErrProtocol.
func (r *rankRecord) applyMessage(m message, now time.Time) error {
	switch m.kind {
	case kindPost:
		return r.addPost(m)
	case kindComplete:
		if s := r.tracks[m.track]; s != nil {
			s.completed = m.step
		}
	case kindReport:
		if err := r.addReport(m.payload); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	case kindStatus:
		r.status = decodeStatus(m.payload, now)
		r.answered = max(r.answered, m.step) // step is 0 if the status answers no request
	case kindAskStatus: // Plane.handle answers it
	case kindFail:
		return r.setFailed(m, now)
	case kindFailAck:
		r.hasAckedFail = true
	case kindLeave:
		r.status = decodeStatus(m.payload, now)
		r.hasLeft = true
	}

	return nil
}

// addPost records a post. After kindFail, it ignores posts for steps that the sender has not
// completed.
func (r *rankRecord) addPost(m message) error {
	s, err := r.ensureSteps(m.track)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}

	hasFailed := r.failed != control.NotFailed
	isCompleted := m.step <= s.completed
	if hasFailed && !isCompleted {
		return nil
	}

	isNext := m.step == s.posted+1
	isFull := len(s.unreadPosts) == maxPosts
	if !isNext || isFull {
		return fmt.Errorf("step %d of track %q follows step %d, and %d posts are unread: %w",
			m.step, m.track, s.posted, len(s.unreadPosts), ErrProtocol)
	}

	s.posted = m.step
	s.unreadPosts = append(s.unreadPosts, m.payload)
	return nil
}

// takePost removes and returns the oldest payload, which must exist.
func (s *steps) takePost() []byte {
	first := s.unreadPosts[0]
	s.unreadPosts = s.unreadPosts[1:]
	return first
}

// ensureSteps returns the steps on a track, which it adds if necessary. It returns an error for an
// invalid name of a named value, or for too many names.
func (r *rankRecord) ensureSteps(t track) (*steps, error) {
	if s := r.tracks[t]; s != nil {
		return s, nil
	}

	name, isValue := strings.CutPrefix(string(t), valuePrefix)
	if isValue {
		if err := driver.CheckValueName(name, r.valueNameCount); err != nil {
			return nil, err
		}

		r.valueNameCount++
	}

	if r.tracks == nil {
		r.tracks = map[track]*steps{}
	}

	s := &steps{}
	r.tracks[t] = s
	return s, nil
}

// stepsOn returns a copy of the steps on a track.
func (r *rankRecord) stepsOn(t track) steps {
	if s := r.tracks[t]; s != nil {
		return *s
	}

	return steps{}
}

// setFailed applies a kindFail, whose step is a control.Reason.
func (r *rankRecord) setFailed(m message, now time.Time) error {
	const lastReason = control.FailedAfterPeer
	if m.step > uint64(lastReason) {
		return fmt.Errorf("a rank has failed for reason %d: %w", m.step, ErrProtocol)
	}

	if r.failed != control.NotFailed {
		return fmt.Errorf("a rank has failed twice: %w", ErrProtocol)
	}

	r.status = decodeStatus(m.payload, now)
	r.failed = control.Reason(m.step)
	if r.failed == control.NotFailed { // the reason is missing
		r.failed = control.FailedItself
	}

	return nil
}

// addReport records a report. The error wraps driver.ErrClosed if there are too many.
func (r *rankRecord) addReport(payload []byte) error {
	if !r.hasRoomFor(len(payload)) {
		return fmt.Errorf("the fault log is full: it holds %d reports with %d bytes in total: %w",
			len(r.reports), r.reportBytes, driver.ErrClosed)
	}

	r.reports = append(r.reports, payload)
	r.reportBytes += len(payload)
	return nil
}

func (r *rankRecord) hasRoomFor(bytes int) bool {
	return len(r.reports) < maxReports && r.reportBytes+bytes <= maxReportBytes
}

// nextReport returns the oldest unread report, or false if all have been read.
func (r *rankRecord) nextReport() ([]byte, bool) {
	if r.reportsRead == len(r.reports) {
		return nil, false
	}

	report := r.reports[r.reportsRead]
	r.reportsRead++
	return report, true
}

// state summarizes the record for control.Judge, which decides about the wait w. It leaves
// RankState.Missing to the caller.
func (r *rankRecord) state(w *waitState, now time.Time) control.RankState {
	awaitsStep := w.step != 0
	hasCompleted := awaitsStep && r.stepsOn(w.track).completed >= w.step
	return control.RankState{
		Failed:       r.failed,
		Completed:    hasCompleted,
		Left:         r.hasLeft,
		Lost:         r.isLost,
		Submitted:    r.submitted,
		InCollective: r.awaitedTicket,
		Operation:    r.operation,
		Exchanges:    r.stepsOn(trackControl).posted,
		InExchange:   r.awaitedStep,
		Waited:       max(0, now.Sub(r.since)),
	}
}
