package direct

import (
	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/ranked"
)

// remembered is how many launches back are known, a power of two.
const remembered = 256

// Launches are those of kernels, so that reports of kernels find theirs.
type Launches struct {
	mu    ranked.Spin[launchesMu]
	count uint64 // guarded by mu
	// latest holds the n-th launch, from 1, at n % remembered; guarded by mu.
	latest [remembered]launched
	// recorded are the latest calls in captures of other libraries, count of them ever; guarded by
	// mu.
	recorded      []driver.Call
	recordedCount int
}

// recordedRemembered is how many calls in captures of other libraries are known: those of a
// hundred graphs of a model with 80 layers. Calls before them are not told by their places.
const recordedRemembered = 1 << 14

// launched is a call that was launched under a ticket.
type launched struct {
	call   *driver.Call
	ticket uint64
}

// Note records the launches of a call that was split into pieces.
func (l *Launches) Note(call *driver.Call, ticket uint64, pieces int) {
	l.mu.Lock()
	l.count += uint64(pieces)
	for i := range uint64(min(pieces, remembered)) {
		l.latest[(l.count-i)%remembered] = launched{call, ticket}
	}
	l.mu.Unlock()
}

// Record remembers a call in a capture of another library, which runs whenever that launches it.
func (l *Launches) Record(call *driver.Call) {
	known := *call
	known.Keep = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.recorded) < recordedRemembered {
		l.recorded = append(l.recorded, known)
	} else {
		l.recorded[l.recordedCount%recordedRemembered] = known
	}
	l.recordedCount++
}

// CallOf finds the call of a report. Kernels count calls, and so does this rank; only if another
// library replays captures they do not agree, and the digest has to do. The ticket is 0 for a call
// in such a capture, and where it is not known.
func (l *Launches) CallOf(report *kernels.Report) (call *driver.Call, ticket uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.latest[report.Epoch%remembered]
	if at.call != nil && at.call.Digest == report.Digest {
		return at.call, at.ticket
	}
	for _, at := range l.latest {
		if at.call != nil && at.call.Digest == report.Digest {
			return at.call, 0
		}
	}
	for i := range l.recorded {
		if l.recorded[i].Digest == report.Digest {
			call := l.recorded[i]
			return &call, 0
		}
	}
	return &driver.Call{}, 0
}
