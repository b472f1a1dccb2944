package tcp

import (
	"fmt"
	"strings"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	// maxPosts limits the unread posts of a rank on a track: one for the step in which this rank is,
	// and one for the next step, which the other rank may have begun.
	maxPosts = 2
	// maxReports and maxReportBytes suffice for one fault report of the largest size and a hundred
	// small ones.
	maxReports     = 128
	maxReportBytes = 2 * driver.MaxPayload
)

// rankRecord holds the state of one rank according to its messages.
//
// No messages are read after kindLeave. A rank is lost if its connection closes without kindLeave.
// A rank that has failed may still leave or be lost.
type rankRecord struct {
	status         // latest status
	tracks         map[track]*steps
	valueNameCount int      // number of tracks of named values
	reports        [][]byte // all fault reports
	reportBytes    int      // total size of reports
	reportsRead    int      // number of reports that nextReport has returned
	isAbsent       bool     // whether no more reports are expected
	answered       uint64   // number of the last kindAskStatus that the rank has answered

	failed          control.Reason
	hasLeft, isLost bool
	hasAckedFault   bool // whether the rank knows that this rank has failed
}

// steps records the steps of one rank on a track.
type steps struct {
	received uint64   // last step that the rank has posted
	posts    [][]byte // payloads that takePost has not returned
	// completed is the last step for which the rank has received the posts of all ranks. For other
	// ranks, it is set only when they fail.
	completed uint64
	// isOrdered is set in this rank's record if the rank launches no collective while it waits.
	isOrdered bool
}

// addSteps returns the steps on a track, which it adds if it is new. It returns an error if a
// track of a named value is invalid.
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
		r.status, r.answered = decodeStatus(m.payload, now), max(r.answered, m.step)
	case kindAskStatus: // Plane.handle answers it
	case kindFail:
		if m.step > uint64(control.FailedAfterPeer) {
			return fmt.Errorf("a rank has failed for reason %d: %w", m.step, ErrProtocol)
		}
		if r.failed != control.NotFailed {
			return fmt.Errorf("a rank has failed twice: %w", ErrProtocol)
		}
		r.status = decodeStatus(m.payload, now)
		r.failed = max(control.FailedItself, control.Reason(m.step))
	case kindFailAck:
		r.hasAckedFault = true
	case kindComplete:
		if s := r.tracks[m.track]; s != nil {
			s.completed = m.step
		}
	case kindLeave:
		r.status, r.hasLeft = decodeStatus(m.payload, now), true
	}
	return nil
}

func (r *rankRecord) addPost(m message) error {
	s, err := r.addSteps(m.track)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	case r.failed != control.NotFailed && m.step > s.completed:
		return nil // the step has failed on the sender
	case m.step != s.received+1 || len(s.posts) == maxPosts:
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

// nextReport returns the oldest report that has not been read, or false if there is none.
func (r *rankRecord) nextReport() ([]byte, bool) {
	if r.reportsRead == len(r.reports) {
		return nil, false
	}
	r.reportsRead++
	return r.reports[r.reportsRead-1], true
}

// state returns the state of the rank for control.Judge, but does not set Missing. w is the wait
// of this rank that Judge examines.
func (r *rankRecord) state(w *waitState, now time.Time) control.RankState {
	return control.RankState{
		Failed: r.failed, Completed: w.step != 0 && r.stepsOn(w.track).completed >= w.step,
		Left: r.hasLeft, Lost: r.isLost, Submitted: r.submitted, InCollective: r.inCollective,
		Operation: r.operation,
		Exchanges: r.stepsOn(trackControl).received, InExchange: r.inExchange,
		Waited: max(0, now.Sub(r.since)),
	}
}
