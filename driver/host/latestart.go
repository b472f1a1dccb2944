package host

import (
	"time"

	"symmem/internal/ranked"
)

// lateStarts starts the workers of lazy streams for which no caller has waited.
type lateStarts struct {
	mu      ranked.Mutex[lateStartsMu]
	streams []lateStart // guarded by mu
}

type lateStart struct {
	stream     *stream
	busyPeriod *busyPeriod // in which the stream was lazy
}

// lateStartDelay bounds the time for which a lazy stream has no worker.
const lateStartDelay = time.Millisecond

func (l *lateStarts) add(s *stream, b *busyPeriod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.streams) == 0 {
		time.AfterFunc(lateStartDelay, l.start)
	}
	l.streams = append(l.streams, lateStart{s, b})
}

func (l *lateStarts) start() {
	l.mu.Lock()
	late := l.streams
	l.streams = nil
	l.mu.Unlock()
	for _, start := range late {
		start.stream.mu.Lock()
		if start.stream.busyPeriod == start.busyPeriod {
			start.stream.startWorker()
		}
		start.stream.mu.Unlock()
	}
}
