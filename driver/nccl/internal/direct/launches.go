package direct

import (
	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/ranked"
)

// remembered is the number of recent launches that can be looked up, a power of two.
const remembered = 256

// Launches records launches of direct kernels, to find the call that a kernel has reported.
type Launches struct {
	mu    ranked.Spin[launchesMu]
	count uint64 // guarded by mu
	// latest holds the n-th launch, from 1, at n % remembered; guarded by mu.
	latest [remembered]launched
	// recorded holds the latest calls in captures of other libraries, and recordedCount the number of
	// such calls so far; guarded by mu.
	recorded      []driver.Call
	recordedCount int
}

// recordedRemembered is the number of calls in captures of other libraries that can be looked up:
// those of a hundred graphs of a model with 80 layers.
const recordedRemembered = 1 << 14

// launched stores a call with its ticket.
type launched struct {
	call   *driver.Call
	ticket uint64
}

// Note adds the launches of a call that was split into pieces.
func (l *Launches) Note(call *driver.Call, ticket uint64, pieces int) {
	l.mu.Lock()
	l.count += uint64(pieces)
	for i := range uint64(min(pieces, remembered)) {
		l.latest[(l.count-i)%remembered] = launched{call, ticket}
	}
	l.mu.Unlock()
}

// Record adds a call in a capture of another library, which may replay it at any time.
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

// CallOf returns the call that a kernel has reported. If replays of another library have changed
// the kernels' count, it searches by the digest alone. The ticket is 0 if it is not known, as it is
// for a call in a capture of another library.
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
