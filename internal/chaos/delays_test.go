package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// starvation measures how long the threads of this process were ready to run but had to wait for
// a processor. On a busy machine, such waits delay a rank's reaction to a fault.
type starvation struct {
	mu      sync.Mutex
	samples []waitSample // guarded by mu
}

// waitSample holds the total time that the threads of a process had spent waiting for a
// processor by the time At, which is in nanoseconds since 1970.
type waitSample struct {
	At   int64
	Time time.Duration
}

// A sample is taken every sampleInterval, and the last maxSamples samples are kept.
const (
	sampleInterval = 50 * time.Millisecond
	maxSamples     = 400
)

func (s *starvation) measure() {
	for {
		s.sample()
		<-time.After(sampleInterval)
	}
}

func (s *starvation) sample() {
	now := waitSample{At: time.Now().UnixNano()}
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

// all takes another sample and returns all samples.
func (s *starvation) all() []waitSample {
	s.sample()
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]waitSample(nil), s.samples...)
}

// starvedSince returns the total time that the threads of a process have spent waiting for a
// processor since begin.
func starvedSince(samples []waitSample, begin time.Time) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	before := waitSample{}
	for _, s := range samples {
		if s.At <= begin.UnixNano() {
			before = s
		}
	}
	return samples[len(samples)-1].Time - before.Time
}
