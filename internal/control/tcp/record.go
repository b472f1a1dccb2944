package tcp

import (
	"fmt"
	"strings"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// rankRecord holds what this rank knows about one rank of the group, from the messages of that
// rank. Suppose that rank 1 has sent these messages:
//
//	kindPost    a payload for step 1 of the track "control"
//	kindPost    a payload for step 2
//	kindStatus  the rank has announced 7 collectives
//	kindLeave   the rank has left the group; the message contains its last status
//
// A track is a sequence of exchanges, its steps. In each step, every rank sends a post to all other
// ranks: a message with a payload. This rank has used the first payload, but not the second. So
// the record contains steps{received: 2, posts: [the second payload]} for the track. status is that
// of kindLeave, and hasLeft is true.
//
// After a failure, ranks exchange reports about it. A rank has a record of itself, too, but only
// for its steps and reports.
type rankRecord struct {
	status                          // latest status of the rank
	tracks         map[track]*steps // nil until the first step
	valueNameCount int              // number of tracks of named values (see driver.Values)

	failed        control.Reason // why the rank has failed, or control.NotFailed
	hasLeft       bool           // whether the rank has sent kindLeave
	isLost        bool           // whether it disconnected or became silent before kindLeave
	hasAckedFault bool           // whether the rank knows that this rank has failed
	answered      uint64         // number of the last kindAskStatus that the rank answered, or 0

	reports     [][]byte // all reports of the rank, oldest first
	reportBytes int      // total size of reports
	reportsRead int      // number of reports that nextReport has returned
	isAbsent    bool     // whether this rank expects no more reports
}

// steps records the steps of one rank on a track.
type steps struct {
	received uint64   // last step that the rank has posted
	posts    [][]byte // payloads that takePost has not returned yet, oldest first
	// completed is the last step for which the rank has received the posts of all ranks, or 0. For
	// other ranks, it is 0 until they fail.
	completed uint64
	// isOrdered is set only in the record of this rank. It is true if this rank launches no
	// collective while it waits for a step.
	isOrdered bool
}

const (
	// maxPosts limits the length of steps.posts. While this rank is in step 5, another rank may have
	// posted step 5 and, if it has received all posts of step 5, also step 6.
	maxPosts = 2
	// maxReports and maxReportBytes limit the reports of a rank. They suffice for one report of the
	// largest size and a hundred small ones.
	maxReports     = 128
	maxReportBytes = 2 * driver.MaxPayload
)

// applyMessage updates the record with a message of the rank. Errors wrap ErrProtocol.
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
		r.answered = max(r.answered, m.step) // the step is 0 if the status answers no request
	case kindAskStatus: // Plane.handle answers it
	case kindFail:
		return r.setFailed(m, now)
	case kindFailAck:
		r.hasAckedFault = true
	case kindLeave:
		r.status = decodeStatus(m.payload, now)
		r.hasLeft = true
	}

	return nil
}

// addPost records a post. If the rank has failed, it ignores posts for steps that the rank has not
// completed. Errors wrap ErrProtocol.
func (r *rankRecord) addPost(m message) error {
	s, err := r.addSteps(m.track)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}

	hasFailed := r.failed != control.NotFailed
	if hasFailed && m.step > s.completed {
		return nil
	}

	isNext := m.step == s.received+1
	isFull := len(s.posts) == maxPosts
	if !isNext || isFull {
		return fmt.Errorf("step %d of track %q follows step %d, and %d posts are unread: %w",
			m.step, m.track, s.received, len(s.posts), ErrProtocol)
	}

	s.received = m.step
	s.posts = append(s.posts, m.payload)
	return nil
}

// takePost removes and returns the oldest payload. There must be one.
func (s *steps) takePost() []byte {
	first := s.posts[0]
	s.posts = s.posts[1:]
	return first
}

// addSteps returns the steps on a track. If the track is new, it adds the track. It returns an
// error if the new track has an invalid name of a value, or if the rank has too many values.
func (r *rankRecord) addSteps(t track) (*steps, error) {
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

// stepsOn returns a copy of the steps on a track. It does not add the track.
func (r *rankRecord) stepsOn(t track) steps {
	if s := r.tracks[t]; s != nil {
		return *s
	}

	return steps{}
}

// setFailed records the failure that a kindFail announces. Errors wrap ErrProtocol.
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
	if r.failed == control.NotFailed { // a faulty rank may send any reason
		r.failed = control.FailedItself
	}

	return nil
}

// addReport adds a report. It returns an error that wraps driver.ErrClosed if the rank has sent as
// many reports as it may.
func (r *rankRecord) addReport(payload []byte) error {
	if !r.hasRoomFor(len(payload)) {
		return fmt.Errorf("the fault log is full: it holds %d reports with %d bytes in total: %w",
			len(r.reports), r.reportBytes, driver.ErrClosed)
	}

	r.reports = append(r.reports, payload)
	r.reportBytes += len(payload)
	return nil
}

// hasRoomFor reports whether addReport can add a report of this size.
func (r *rankRecord) hasRoomFor(bytes int) bool {
	return len(r.reports) < maxReports && r.reportBytes+bytes <= maxReportBytes
}

// nextReport returns the oldest report that it has not returned yet, or false if there is none.
func (r *rankRecord) nextReport() ([]byte, bool) {
	if r.reportsRead == len(r.reports) {
		return nil, false
	}

	report := r.reports[r.reportsRead]
	r.reportsRead++
	return report, true
}

// state returns the state of the rank for control.Judge, which decides whether the wait w of this
// rank continues. The caller must set Missing.
func (r *rankRecord) state(w *waitState, now time.Time) control.RankState {
	isForStep := w.step != 0
	hasCompleted := isForStep && r.stepsOn(w.track).completed >= w.step
	return control.RankState{
		Failed:       r.failed,
		Completed:    hasCompleted,
		Left:         r.hasLeft,
		Lost:         r.isLost,
		Submitted:    r.submitted,
		InCollective: r.inCollective,
		Operation:    r.operation,
		Exchanges:    r.stepsOn(trackControl).received,
		InExchange:   r.inExchange,
		Waited:       max(0, now.Sub(r.since)),
	}
}
