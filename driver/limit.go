package driver

import (
	"sync/atomic"
	"time"
)

// Limit is a timeout that can be changed concurrently. A change affects only later waits.
type Limit struct{ duration atomic.Int64 }

// NewLimit returns a Limit with the value d.
func NewLimit(d time.Duration) *Limit {
	l := &Limit{}
	l.Set(d)
	return l
}

// Get returns the value.
func (l *Limit) Get() time.Duration { return time.Duration(l.duration.Load()) }

// Set changes the value.
func (l *Limit) Set(d time.Duration) { l.duration.Store(int64(d)) }
