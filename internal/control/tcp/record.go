package tcp

import (
	"fmt"
	"strings"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	// maxPosts limits the unread posts of a rank on a track. A post is the payload for one step of
	// a track, a sequence of exchanges. One post is for the step in which this rank is. Another one
	// is for the next step, which the other rank may have begun.
	maxPosts = 2
	// maxReports and maxReportBytes limit the fault reports of a rank. They suffice for one report
	// of the largest size and a hundred small ones.
	maxReports     = 128
	maxReportBytes = 2 * driver.MaxPayload
)

// rankRecord holds the state of one rank according to its messages.
//
// No messages are read after kindLeave. A rank is lost if its connection closes without kindLeave.
// A rank that has failed may still leave or be lost.
type rankRecord struct {
	status                          // latest status of the rank
	tracks         map[track]*steps // nil until the first step
	valueNameCount int              // number of tracks of named values
	reports        [][]byte         // all fault reports
	reportBytes    int              // total size of reports
	reportsRead    int              // number of reports that nextReport has returned
	isAbsent       bool             // whether no more reports are expected
	answered       uint64           // step of the last kindAskStatus that the rank answered, or 0

	failed        control.Reason // why the rank has failed, or control.NotFailed
	hasLeft       bool           // whether the rank has sent kindLeave
	isLost        bool
	hasAckedFault bool // whether the rank knows that this rank has failed
}

// steps records the steps of one rank on a track.
type steps struct {
	received uint64   // last step that the rank has posted
	posts    [][]byte // payloads that takePost has not returned yet, oldest first
	// completed is the last step for which the rank has received the posts of all ranks, or 0. For
	// other ranks, it is set only when they fail.
	completed uint64
	// isOrdered is set only in the record of this rank. It is true if this rank launches no
	// collective while it waits for a step.
	isOrdered bool
}

// addSteps adds a track if it is new, and returns the steps on the track. It returns an error if
// the name of a new named value is invalid, or if there are too many named values.
func (r *rankRecord) addSteps(t track) (*steps, error) {
	if s := r.tracks[t]; s != nil {
		return s, nil
	}

	if name, ok := strings.CutPrefix(string(t), valuePrefix); ok {
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

// applyMessage updates the record with a message of the rank. Errors wrap ErrProtocol.
func (r *rankRecord) applyMessage(m message, now time.Time) error {
	switch m.kind {
	case kindPost:
		return r.addPost(m)
	case kindReport:
		if err := r.addReport(m.payload); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	case kindStatus:
		r.status = decodeStatus(m.payload, now)
		r.answered = max(r.answered, m.step) // the step is 0 if the status answers no request
	case kindAskStatus: // changes nothing; Plane.handle answers it
	case kindFail:
		if m.step > uint64(control.FailedAfterPeer) {
			return fmt.Errorf("a rank has failed for reason %d: %w", m.step, ErrProtocol)
		}

		if r.failed != control.NotFailed {
			return fmt.Errorf("a rank has failed twice: %w", ErrProtocol)
		}

		r.status = decodeStatus(m.payload, now)
		// max replaces NotFailed, which is no reason.
		r.failed = max(control.FailedItself, control.Reason(m.step))
	case kindFailAck:
		r.hasAckedFault = true
	case kindComplete:
		if s := r.tracks[m.track]; s != nil {
			s.completed = m.step
		}
	case kindLeave:
		r.status = decodeStatus(m.payload, now)
		r.hasLeft = true
	}

	return nil
}

// addPost adds the payload of a kindPost to the posts of its track. It ignores the post if the step
// has failed on the sender. Errors wrap ErrProtocol.
func (r *rankRecord) addPost(m message) error {
	s, err := r.addSteps(m.track)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}

	if r.failed != control.NotFailed && m.step > s.completed {
		return nil
	}

	if m.step != s.received+1 || len(s.posts) == maxPosts {
		return fmt.Errorf("step %d of track %q follows step %d, and %d posts are unread: %w",
			m.step, m.track, s.received, len(s.posts), ErrProtocol)
	}

	s.received = m.step
	s.posts = append(s.posts, m.payload)
	return nil
}

// takePost removes and returns the oldest post. There must be one.
func (s *steps) takePost() []byte {
	first := s.posts[0]
	s.posts = s.posts[1:]
	return first
}

// addReport adds a fault report. It returns an error that wraps driver.ErrClosed if the rank has
// sent as many reports as it may.
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

// state returns the state of the rank for control.Judge, but does not set Missing. w is the wait
// of this rank that Judge examines.
func (r *rankRecord) state(w *waitState, now time.Time) control.RankState {
	isForStep := w.step != 0
	return control.RankState{
		Failed:       r.failed,
		Completed:    isForStep && r.stepsOn(w.track).completed >= w.step,
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
