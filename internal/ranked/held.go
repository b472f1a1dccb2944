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
	// shardCount is the number of parts into which the goroutines are divided. Each part has a
	// mutex, so that goroutines rarely wait for each other.
	shardCount = 64
	// maxHolders limits the goroutines in a shard that hold locks. It is fixed, because Lock must
	// not allocate.
	maxHolders = 64
	// maxLocks limits the locks that a goroutine holds.
	maxLocks = 32
	// maxFrames limits the length of a stack. Recording stacks takes most of the time of Lock.
	maxFrames = 5
	// maxTryFrames is smaller, because goroutines may poll with TryLock.
	maxTryFrames = 2
)

// stack contains the addresses of the callers of Lock, without Lock. Unused elements are 0.
type stack [maxFrames]uintptr

// heldLock is a lock that a goroutine holds.
type heldLock struct {
	lock  unsafe.Pointer // address that identifies the lock
	rank  Rank
	stack stack // where the lock was acquired
}

// holder lists a goroutine's locks in the order in which it acquired them.
type holder struct {
	goroutine uintptr // see current
	lockCount int
	locks     [maxLocks]heldLock // the first lockCount are in use
}

// shard contains the holders of some goroutines. The race detector must ignore it. Otherwise, it
// would assume that the mutex synchronizes unrelated goroutines, and would miss races.
type shard struct {
	mu          sync.Mutex
	holderCount int
	holders     [maxHolders]*holder // the first holderCount are in use
}

var (
	// goroutines holds the locks of all goroutines.
	goroutines [shardCount]shard
	// seenInOrder holds, for each pair of Orders, a stack that acquired a lock with the second
	// Order while it held a lock with the first.
	seenInOrder [MaxOrder + 1][MaxOrder + 1]atomic.Pointer[stack]
)

// shardOf returns the shard of a goroutine. The multiplication, a Fibonacci hash, distributes
// goroutines evenly.
func shardOf(goroutine uintptr) *shard {
	hash := uint64(goroutine) * 0x9e3779b97f4a7c15
	return &goroutines[(hash>>32)%shardCount]
}

// findHolder returns the holder of a goroutine, or nil if the goroutine holds no lock. The caller
// must hold s.mu.
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

// checkOrder panics if the running goroutine must not acquire a lock with this rank and address.
//
//go:norace
func checkOrder(rank Rank, lock unsafe.Pointer) {
	if rank.Order < 1 || rank.Order > MaxOrder {
		panic(fmt.Sprintf("ranked: %s has order %d: want 1 to %d", rank.Name, rank.Order, MaxOrder))
	}

	if held, found := findConflict(rank, lock); found {
		panic(orderError(held, rank, lock))
	}
}

// findConflict returns a held lock because of which the running goroutine must not acquire lock.
// found is false if there is none. For locks without a conflict, it records the order in
// seenInOrder.
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
		if other.rank.Order > rank.Order || (isSameClass && !rank.AllowsSeveral) {
			return *other, true
		}

		seen := &seenInOrder[other.rank.Order][rank.Order]
		if seen.Load() == nil {
			seen.Store(captureStack())
		}
	}

	return heldLock{}, false
}

// recordLock records that the running goroutine has acquired a lock, with the first frameCount
// frames of its stack. It panics if there are too many holders or locks.
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
		// Use the first holder that is not in use, which may exist from an earlier use.
		h = s.holders[s.holderCount]
		if h == nil {
			h = &holder{}
			s.holders[s.holderCount] = h
		}

		h.goroutine = goroutine
		h.lockCount = 0
		s.holderCount++
	}

	entry := &h.locks[h.lockCount]
	entry.lock = lock
	entry.rank = rank
	recordedCount := runtime.Callers(callersOfLock, entry.stack[:frameCount])
	clear(entry.stack[recordedCount:])
	h.lockCount++
}

// callersOfLock is the number of frames to skip in recordLock: runtime.Callers, recordLock, lock
// and Lock.
const callersOfLock = 4

// captureStack returns the stack of the caller of Lock, if findConflict calls it.
func captureStack() *stack {
	var s stack
	// The frames to skip are those of runtime.Callers, captureStack, findConflict, checkOrder, lock
	// and Lock.
	runtime.Callers(callersOfLock+2, s[:])
	return &s
}

// release removes a lock from those of its holder, which is usually the running goroutine. Go
// permits another goroutine to unlock a mutex. It panics if nothing holds the lock.
//
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

// remove removes a lock from one of its holders, and returns false if the shard has none. Several
// goroutines can hold a lock for reading, so it tries the running goroutine first.
//
//go:norace
func (s *shard) remove(lock unsafe.Pointer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	goroutine := current()
	for _, triesSelf := range [2]bool{true, false} {
		for i := range s.holderCount {
			h := s.holders[i]
			isSelf := h.goroutine == goroutine
			if isSelf != triesSelf || !h.remove(lock) {
				continue
			}

			if h.lockCount == 0 {
				// Swap h with the last holder in use.
				s.holderCount--
				s.holders[i] = s.holders[s.holderCount]
				s.holders[s.holderCount] = h
			}

			return true
		}
	}

	return false
}

// remove removes a lock, and returns false if the goroutine does not hold the lock. It looks for
// the latest locks first, because locks are usually released in reverse order.
//
//go:norace
func (h *holder) remove(lock unsafe.Pointer) bool {
	for i := h.lockCount - 1; i >= 0; i-- {
		if h.locks[i].lock != lock {
			continue
		}

		// Not copy, which would report the accesses to the race detector.
		for ; i < h.lockCount-1; i++ {
			h.locks[i] = h.locks[i+1]
		}

		h.lockCount--
		return true
	}

	return false
}

// AssertMayWait panics if the goroutine holds a lock whose Rank does not have CanWait. Call it
// before each wait for another process.
//
//go:norace
func AssertMayWait() {
	if lock, found := findHeld(func(r *Rank) bool { return !r.CanWait }); found {
		panic("ranked: waiting for another process with " + lock.rank.Name + " held, acquired at\n" +
			lock.stack.String())
	}
}

// AssertUnlocked panics if the goroutine holds any lock. Call it before each call of a user's
// function, which may acquire any lock.
//
//go:norace
func AssertUnlocked() {
	if lock, found := findHeld(func(*Rank) bool { return true }); found {
		panic("ranked: calling a user's callback with " + lock.rank.Name +
			" held, acquired at\n" + lock.stack.String())
	}
}

// findHeld returns the first lock of the running goroutine whose rank fulfills a condition.
//
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

// orderError returns the text of checkOrder's panic. held is the lock that the goroutine holds.
func orderError(held heldLock, rank Rank, lock unsafe.Pointer) string {
	var text strings.Builder
	if held.lock == lock {
		fmt.Fprintf(&text, "ranked: %s is acquired twice by one goroutine", rank.Name)
	} else {
		fmt.Fprintf(&text, "ranked: %s (order %d) is acquired while %s (order %d) is held", rank.Name,
			rank.Order, held.rank.Name, held.rank.Order)
	}

	fmt.Fprintf(&text, ".\n%s was acquired at\n%s", held.rank.Name, held.stack)
	// The frames to skip are those of runtime.Callers, orderError, checkOrder, lock and Lock.
	var here stack
	runtime.Callers(callersOfLock+1, here[:])
	fmt.Fprintf(&text, "%s is requested at\n%s", rank.Name, here)
	rightOrder := seenInOrder[rank.Order][held.rank.Order].Load()
	if rightOrder != nil {
		fmt.Fprintf(&text, "in the right order they were acquired at\n%s", rightOrder)
	}

	return text.String()
}

// String returns a line for each frame.
func (s stack) String() string {
	var text strings.Builder
	frames := runtime.CallersFrames(s[:])
	for {
		frame, hasMore := frames.Next()
		if frame.Function != "" { // It is empty for a stack without frames.
			fmt.Fprintf(&text, "\t%s %s:%d\n", frame.Function, frame.File, frame.Line)
		}

		if !hasMore {
			return text.String()
		}
	}
}
