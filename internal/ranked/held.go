//go:build invariants

package ranked

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	shardCount = 64
	// maxHolders limits the goroutines in a shard that hold locks. It is fixed, because Lock must
	// not allocate.
	maxHolders = 64
	maxLocks   = 32 // for each goroutine
	maxFrames  = 5  // for each stack; recording them takes most of the time of Lock
	// tryFrames is small, because goroutines may poll with TryLock.
	tryFrames = 2
)

type stack [maxFrames]uintptr

type heldLock struct {
	lock  unsafe.Pointer
	rank  Rank
	stack stack
}

// holder lists a goroutine's locks in the order in which it acquired them.
type holder struct {
	goroutine uintptr
	lockCount int
	locks     [maxLocks]heldLock
}

// shard is ignored by the race detector, which would otherwise assume that the shard's mutex
// synchronizes unrelated goroutines.
type shard struct {
	mu          sync.Mutex
	holderCount int
	holders     [maxHolders]*holder // the first holderCount are in use
}

var (
	goroutines [shardCount]shard
	// seenInOrder holds, for each pair of Orders, a stack that acquired a lock with the second
	// Order while it held a lock with the first.
	seenInOrder [MaxOrder + 1][MaxOrder + 1]atomic.Pointer[stack]
)

func shardOf(goroutine uintptr) *shard {
	return &goroutines[uint64(goroutine)*0x9e3779b97f4a7c15>>32%shardCount]
}

// The caller must hold s.mu.
//
//go:norace
func (s *shard) findHolder(goroutine uintptr) *holder {
	for _, h := range s.holders[:s.holderCount] {
		if h.goroutine == goroutine {
			return h
		}
	}
	return nil
}

//go:norace
func checkOrder(rank Rank, lock unsafe.Pointer) {
	if rank.Order < 1 || rank.Order > MaxOrder {
		panic(fmt.Sprintf("ranked: %s has order %d: want 1 to %d", rank.Name, rank.Order, MaxOrder))
	}
	if held, found := findConflict(rank, lock); found {
		panic(orderError(held, rank, lock))
	}
}

// findConflict returns a held lock that this goroutine must release before it acquires lock.
//
//go:norace
func findConflict(rank Rank, lock unsafe.Pointer) (held heldLock, found bool) {
	disableRaceDetector()
	defer enableRaceDetector()
	goroutine := current()
	s := shardOf(goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.findHolder(goroutine)
	if h == nil {
		return heldLock{}, false
	}
	for i := range h.lockCount {
		if h.locks[i].lock == lock {
			return h.locks[i], true
		}
	}
	for i := range h.lockCount {
		other := &h.locks[i]
		isSameClass := other.rank.Order == rank.Order
		if other.rank.Order > rank.Order || isSameClass && !rank.AllowsSeveral {
			return *other, true
		}
		if seen := &seenInOrder[other.rank.Order][rank.Order]; seen.Load() == nil {
			seen.Store(captureStack())
		}
	}
	return heldLock{}, false
}

// recordLock records the lock and the top of the stack.
//
//go:norace
func recordLock(rank Rank, lock unsafe.Pointer, frameCount int) {
	disableRaceDetector()
	defer enableRaceDetector()
	goroutine := current()
	s := shardOf(goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.findHolder(goroutine)
	if h == nil {
		h = s.holders[s.holderCount]
		if h == nil {
			h = &holder{}
			s.holders[s.holderCount] = h
		}
		h.goroutine, h.lockCount = goroutine, 0
		s.holderCount++
	}
	entry := &h.locks[h.lockCount]
	entry.lock, entry.rank = lock, rank
	n := runtime.Callers(callersOfLock, entry.stack[:frameCount])
	clear(entry.stack[n:])
	h.lockCount++
}

// callersOfLock is the number of frames to skip in recordLock: runtime.Callers, recordLock, lock
// and Lock.
const callersOfLock = 4

func captureStack() *stack {
	var s stack
	runtime.Callers(callersOfLock+2, s[:])
	return &s
}

//go:norace
func release(lock unsafe.Pointer) {
	disableRaceDetector()
	defer enableRaceDetector()
	ownShard := shardOf(current())
	if ownShard.remove(lock) {
		return
	}
	for i := range goroutines {
		if goroutines[i].remove(lock) {
			return
		}
	}
	panic("ranked: Unlock of a lock that is not held")
}

// remove tries the running goroutine first.
//
//go:norace
func (s *shard) remove(lock unsafe.Pointer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	goroutine := current()
	for pass := range 2 {
		for i := range s.holderCount {
			h := s.holders[i]
			if (h.goroutine == goroutine) == (pass == 0) && h.remove(lock) {
				if h.lockCount == 0 {
					s.holderCount--
					s.holders[i], s.holders[s.holderCount] = s.holders[s.holderCount], h
				}
				return true
			}
		}
	}
	return false
}

//go:norace
func (h *holder) remove(lock unsafe.Pointer) bool {
	for i := h.lockCount - 1; i >= 0; i-- {
		if h.locks[i].lock != lock {
			continue
		}
		for ; i < h.lockCount-1; i++ {
			h.locks[i] = h.locks[i+1]
		}
		h.lockCount--
		return true
	}
	return false
}

//go:norace
func checkWait() {
	if lock, found := findHeld(func(r *Rank) bool { return !r.CanWait }); found {
		panic("ranked: waiting for another process with " + lock.rank.Name + " held, acquired at\n" +
			lock.stack.String())
	}
}

//go:norace
func checkUnlocked() {
	if lock, found := findHeld(func(*Rank) bool { return true }); found {
		panic("ranked: calling a user's callback with " + lock.rank.Name +
			" held, acquired at\n" + lock.stack.String())
	}
}

//go:norace
func findHeld(condition func(*Rank) bool) (lock heldLock, found bool) {
	disableRaceDetector()
	defer enableRaceDetector()
	goroutine := current()
	s := shardOf(goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.findHolder(goroutine)
	if h == nil {
		return heldLock{}, false
	}
	for i := range h.lockCount {
		if condition(&h.locks[i].rank) {
			return h.locks[i], true
		}
	}
	return heldLock{}, false
}

func orderError(held heldLock, rank Rank, lock unsafe.Pointer) string {
	var text strings.Builder
	if held.lock == lock {
		fmt.Fprintf(&text, "ranked: %s is acquired twice by one goroutine", rank.Name)
	} else {
		fmt.Fprintf(&text, "ranked: %s (order %d) is acquired while %s (order %d) is held", rank.Name,
			rank.Order, held.rank.Name, held.rank.Order)
	}
	fmt.Fprintf(&text, ".\n%s was acquired at\n%s", held.rank.Name, held.stack)
	var here stack
	runtime.Callers(callersOfLock+1, here[:])
	fmt.Fprintf(&text, "%s is requested at\n%s", rank.Name, here)
	if other := seenInOrder[rank.Order][held.rank.Order].Load(); other != nil {
		fmt.Fprintf(&text, "in the right order they were acquired at\n%s", other)
	}
	return text.String()
}

func (s stack) String() string {
	var text strings.Builder
	frames := runtime.CallersFrames(s[:])
	for {
		f, more := frames.Next()
		if f.Function != "" {
			fmt.Fprintf(&text, "\t%s %s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return text.String()
		}
	}
}
