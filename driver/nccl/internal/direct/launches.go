package direct

import (
	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/ranked"
)

// maxLatest is a power of two.
const maxLatest = 256

// Launches records launches of direct kernels, so that the call that a kernel reports can be found.
type Launches struct {
	mu    ranked.Spin[launchesMu] // guards the following fields
	count uint64
	// latest holds launch n, counted from 1, at index n % maxLatest.
	latest [maxLatest]launch
	// captured holds the latest calls captured by other libraries. capturedCount counts all of
	// them.
	captured      []driver.Call
	capturedCount int
}

// maxCaptured suffices for a hundred graphs of a model with 80 layers.
const maxCaptured = 1 << 14

type launch struct {
	call   *driver.Call
	ticket uint64
}

// Add records a call that was launched as the given number of kernels.
func (l *Launches) Add(call *driver.Call, ticket uint64, pieces int) {
	l.mu.Lock()
	l.count += uint64(pieces)
	for i := range uint64(min(pieces, maxLatest)) {
		l.latest[(l.count-i)%maxLatest] = launch{call, ticket}
	}
	l.mu.Unlock()
}

// AddCaptured records a call that another library captures, and may replay at any time.
func (l *Launches) AddCaptured(call *driver.Call) {
	record := *call
	record.Keep = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.captured) < maxCaptured {
		l.captured = append(l.captured, record)
	} else {
		l.captured[l.capturedCount%maxCaptured] = record
	}
	l.capturedCount++
}

// CallOf returns the call that a kernel reported, and the call's ticket. If replays by another
// library have changed the kernels' count, CallOf returns ticket 0.
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
	for i := range l.captured {
		if l.captured[i].Digest == report.Digest {
			call := l.captured[i]
			return &call, 0
		}
	}
	return &driver.Call{}, 0
}
