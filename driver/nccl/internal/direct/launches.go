package direct

import (
	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/ranked"
)

// maxLatest is the number of recent launches that can be looked up. It is a power of two.
const maxLatest = 256

// Launches records launches of direct kernels. It finds the call that a kernel has reported.
type Launches struct {
	mu    ranked.Spin[launchesMu]
	count uint64 // guarded by mu
	// latest holds launch n at index n % maxLatest. n starts at 1. latest is guarded by mu.
	latest [maxLatest]launch
	// recorded holds the latest calls in captures of other libraries. recordedCount counts all of
	// these calls. Both are guarded by mu.
	recorded      []driver.Call
	recordedCount int
}

// maxRecorded is the number of captured calls that can be looked up. It suffices for a hundred
// graphs of a model with 80 layers.
const maxRecorded = 1 << 14

type launch struct {
	call   *driver.Call
	ticket uint64
}

// Note adds the launches of a call. pieces is the number of launches.
func (l *Launches) Note(call *driver.Call, ticket uint64, pieces int) {
	l.mu.Lock()
	l.count += uint64(pieces)
	for i := range uint64(min(pieces, maxLatest)) {
		l.latest[(l.count-i)%maxLatest] = launch{call, ticket}
	}
	l.mu.Unlock()
}

// Record adds a call in a capture of another library, which may replay it at any time.
func (l *Launches) Record(call *driver.Call) {
	record := *call
	record.Keep = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.recorded) < maxRecorded {
		l.recorded = append(l.recorded, record)
	} else {
		l.recorded[l.recordedCount%maxRecorded] = record
	}
	l.recordedCount++
}

// CallOf returns the call that a kernel has reported. If replays by another library have changed
// the kernels' count, CallOf searches by the digest alone. The ticket is then unknown, and CallOf
// returns ticket 0.
func (l *Launches) CallOf(report *kernels.Report) (call *driver.Call, ticket uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	numbered := l.latest[report.Epoch%maxLatest]
	if numbered.call != nil && numbered.call.Digest == report.Digest {
		return numbered.call, numbered.ticket
	}
	for _, recent := range l.latest {
		if recent.call != nil && recent.call.Digest == report.Digest {
			return recent.call, 0
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
