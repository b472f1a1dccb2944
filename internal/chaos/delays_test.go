package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// starvation measures how long this process's threads wait for a processor although they are ready
// to run. On a busy machine, this delays a rank's reaction to a fault.
type starvation struct {
	mu      sync.Mutex
	samples []waitSample // guarded by mu
}

// waitSample holds the total waiting time by the time At, in nanoseconds since 1970.
type waitSample struct {
	At   int64
	Time time.Duration
}

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

// sampleAll takes another sample and returns all.
func (s *starvation) sampleAll() []waitSample {
	s.sample()
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]waitSample(nil), s.samples...)
}

// starvedSince returns the total waiting time since begin.
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
