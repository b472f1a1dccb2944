package direct

import (
	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/ranked"
)

const lastLaunchCount = 256 // a power of two

// Launches records launches of symmem's own kernels, to find the call that a kernel reports.
type Launches struct {
	mu          ranked.Spin[launchesMu] // guards the following fields
	launchCount uint64
	// lastLaunches holds launch n, counted from 1, at index n % lastLaunchCount.
	lastLaunches  [lastLaunchCount]launch
	capturedCalls []driver.Call // the latest of capturedCount calls
	capturedCount int
}

// maxCapturedCalls suffices for a hundred graphs of a model with 80 layers.
const maxCapturedCalls = 1 << 14

type launch struct {
	call   *driver.Call
	ticket uint64
}

// Add records a call that was launched as kernelCount kernels.
func (l *Launches) Add(call *driver.Call, ticket uint64, kernelCount int) {
	l.mu.Lock()
	l.launchCount += uint64(kernelCount)
	for i := range uint64(min(kernelCount, lastLaunchCount)) {
		l.lastLaunches[(l.launchCount-i)%lastLaunchCount] = launch{call, ticket}
	}

	l.mu.Unlock()
}

// AddCaptured records a call that another library captures.
func (l *Launches) AddCaptured(call *driver.Call) {
	record := *call
	record.Keep = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.capturedCalls) < maxCapturedCalls {
		l.capturedCalls = append(l.capturedCalls, record)
	} else {
		l.capturedCalls[l.capturedCount%maxCapturedCalls] = record
	}

	l.capturedCount++
}

// CallOf returns the call that a kernel reported, and its number in the group. The number is 0 if
// replays by another library have changed the kernels' count.
func (l *Launches) CallOf(report *kernels.Report) (call *driver.Call, ticket uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	launched := l.lastLaunches[report.Epoch%lastLaunchCount]
	if launched.call != nil && launched.call.Digest == report.Digest {
		return launched.call, launched.ticket
	}

	for _, recent := range l.lastLaunches {
		if recent.call != nil && recent.call.Digest == report.Digest {
			return recent.call, 0
		}
	}

	for i := range l.capturedCalls {
		if l.capturedCalls[i].Digest == report.Digest {
			call := l.capturedCalls[i]
			return &call, 0
		}
	}

	return &driver.Call{}, 0
}
