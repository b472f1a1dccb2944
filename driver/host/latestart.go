package host

import (
	"time"

	"symmem/internal/ranked"
)

// lateStarts starts the workers of lazy streams for which no caller has waited.
type lateStarts struct {
	mu     ranked.Mutex[lateStartsMu]
	starts []func() // guarded by mu
}

// lateStartDelay bounds the time for which a lazy stream has no worker.
const lateStartDelay = time.Millisecond

// add arranges that start is called within lateStartDelay.
func (l *lateStarts) add(start func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.starts) == 0 {
		time.AfterFunc(lateStartDelay, l.startAll)
	}

	l.starts = append(l.starts, start)
}

func (l *lateStarts) startAll() {
	l.mu.Lock()
	starts := l.starts
	l.starts = nil
	l.mu.Unlock()
	for _, start := range starts {
		start()
	}
}
