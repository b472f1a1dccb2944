package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// starvation measures how long the threads of this process were ready to run and waited for a
// processor. On a busy machine, a rank reacts to a fault later by that time.
type starvation struct {
	mu      sync.Mutex
	samples []starved // guarded by mu
}

// starved is the time for which the threads of a process have waited for a processor in all. At is
// in nanoseconds since 1970.
type starved struct {
	At   int64
	Time time.Duration
}

// sampleInterval is the time between two samples. maxSamples is the number of samples that are
// kept.
const (
	sampleInterval = 50 * time.Millisecond
	maxSamples     = 400
)

// measure takes samples until the process ends.
func (s *starvation) measure() {
	for {
		s.sample()
		<-time.After(sampleInterval)
	}
}

func (s *starvation) sample() {
	now := starved{At: time.Now().UnixNano()}
	files, _ := filepath.Glob("/proc/self/task/*/schedstat")
	for _, file := range files {
		var running, waiting time.Duration
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		if _, err := fmt.Sscan(string(text), &running, &waiting); err == nil {
			now.Time += waiting
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples = append(s.samples, now)
	s.samples = s.samples[max(0, len(s.samples)-maxSamples):]
}

// all returns the samples, including one of now.
func (s *starvation) all() []starved {
	s.sample()
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]starved(nil), s.samples...)
}

// starvedSince returns for how long a process has waited for a processor since a time.
func starvedSince(samples []starved, begin time.Time) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	before := starved{}
	for _, s := range samples {
		if s.At <= begin.UnixNano() {
			before = s
		}
	}
	return samples[len(samples)-1].Time - before.Time
}
