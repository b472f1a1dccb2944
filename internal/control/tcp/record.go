package tcp

import (
	"fmt"
	"strings"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	// maxPosts bounds the posts of a track that a rank can have sent and that are not consumed yet:
	// one for the step in which this rank waits, and one for the next, if the other rank has seen
	// the first complete.
	maxPosts = 2
	// maxReports and maxReportBytes bound the reports that a rank can send on the fault lane: they
	// allow for the largest payload and a hundred small ones.
	maxReports     = 128
	maxReportBytes = 2 * driver.MaxPayload
)

// rankRecord holds what this rank knows about one rank. It does no I/O: messages go in, state comes
// out.
//
// States of the rank: present; failed; then left, after kindLeave, or lost, if its connection ends
// without kindLeave. Transitions go one way only. Messages after kindLeave are not read.
type rankRecord struct {
	status
	// tracks holds the tracks that the rank has used; names counts the tracks of values among them.
	tracks map[track]*steps
	names  int
	// reports is the log of the fault lane, reportBytes its size, and readReports the number of
	// reports that this rank has read. Reports of absent ranks are no longer awaited.
	reports                  [][]byte
	reportBytes, readReports int
	absent                   bool

	// failed classifies the failure of the rank, if it has failed.
	failed     control.Reason
	left, lost bool
	// failAcked reports whether the rank has acknowledged this rank's fault.
	failAcked bool
}

// steps holds what is known about a rank's steps on one track.
type steps struct {
	// received is the last step that has arrived; posts holds the payloads not consumed yet.
	received uint64
	posts    [][]byte
	// completed is the last step that the rank had seen complete. It is current for this rank; for
	// others it is set only when they fail.
	completed uint64
	// ordered is set, in this rank's record, if the rank launches no collective during a wait on
	// the track.
	ordered bool
}

// on returns the rank's steps on a track. It adds the track if the rank has not used it yet.
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

// at returns a copy of the rank's steps on a track, or the zero value if the rank has not used it.
func (r *rankRecord) at(t track) steps {
	if s := r.tracks[t]; s != nil {
		return *s
	}
	return steps{}
}

// apply updates the record with a message from the rank.
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

// addPost applies a post, one step of a track.
func (r *rankRecord) addPost(m message) error {
	s, err := r.on(m.track)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	case r.failed != control.NotFailed && m.step > s.completed:
		return nil // the rank had given up the step when it failed
	case m.step != s.received+1 || len(s.posts) == maxPosts:
		return fmt.Errorf("step %d of track %q after step %d, of which %d are not taken: %w",
			m.step, m.track, s.received, len(s.posts), ErrProtocol)
	}
	s.received = m.step
	s.posts = append(s.posts, m.payload)
	return nil
}

// take removes and returns the oldest post. There must be one.
func (s *steps) take() []byte {
	first := s.posts[0]
	s.posts = s.posts[1:]
	return first
}

// addReport applies a report on the fault lane.
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

// state returns the state of the rank for control.Judge, without Missing.
func (r *rankRecord) state(w *waiting, now time.Time) control.RankState {
	return control.RankState{
		Failed: r.failed, Completed: w.step != 0 && r.at(w.track).completed >= w.step,
		Left: r.left, Lost: r.lost, Submitted: r.submitted, InCollective: r.inCollective,
		Operation: r.operation, Exchanges: r.at(trackControl).received, InExchange: r.inExchange,
		Waited: max(0, now.Sub(r.since)),
	}
}
