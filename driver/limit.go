package driver

import (
	"sync/atomic"
	"time"
)

// Limit is a duration that can change at any time. A wait uses the value at its beginning. A Limit
// is safe for concurrent use.
type Limit struct{ duration atomic.Int64 }

// NewLimit returns a Limit with a value.
func NewLimit(d time.Duration) *Limit {
	l := &Limit{}
	l.Set(d)
	return l
}

// Get returns the value.
func (l *Limit) Get() time.Duration { return time.Duration(l.duration.Load()) }

// Set changes the value.
func (l *Limit) Set(d time.Duration) { l.duration.Store(int64(d)) }
