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
	// shards is the number of parts into which goroutines that hold locks are divided.
	shards = 64
	// holders limits the goroutines of one shard that hold locks at the same time, and depth the
	// locks of one goroutine. Exceeding them panics: the arrays have a fixed size so that Lock does
	// not allocate.
	holders = 64
	depth   = 32
	// frames is the number of frames kept of a stack. Fewer are kept for TryLock: a goroutine that
	// polls calls it many thousand times a second, and would spend most of its time on stacks.
	frames      = 10
	triedFrames = 2
)

// stack records where a lock was acquired.
type stack [frames]uintptr

// held describes a lock that a goroutine holds.
type held struct {
	lock  unsafe.Pointer
	rank  Rank
	stack stack
}

// holder lists the locks that a goroutine holds, in the order in which it acquired them.
type holder struct {
	goroutine uintptr
	count     int
	locks     [depth]held
}

// shard holds the holders of some goroutines. Its functions are hidden from the race detector,
// which would otherwise assume that its mutex orders unrelated goroutines.
type shard struct {
	mu      sync.Mutex
	count   int
	holders [holders]*holder // the first count are in use
}

var (
	goroutines [shards]shard
	// seenInOrder holds a stack for each pair of orders that were acquired one after the other.
	seenInOrder [MaxOrder + 1][MaxOrder + 1]atomic.Pointer[stack]
)

// shardOf returns the shard of a goroutine.
func shardOf(goroutine uintptr) *shard {
	return &goroutines[uint64(goroutine)*0x9e3779b97f4a7c15>>32%shards]
}

// find returns the holder of a goroutine, or nil. s.mu is held.
//
//go:norace
func (s *shard) find(goroutine uintptr) *holder {
	for _, h := range s.holders[:s.count] {
		if h.goroutine == goroutine {
			return h
		}
	}
	return nil
}

// check panics unless the goroutine may wait for a lock with the given rank.
//
//go:norace
func check(rank Rank, lock unsafe.Pointer) {
	if rank.Order < 1 || rank.Order > MaxOrder {
		panic(fmt.Sprintf("ranked: %s has order %d: want 1 to %d", rank.Name, rank.Order, MaxOrder))
	}
	if first, broken := conflict(rank, lock); broken {
		panic(inversion(first, rank, lock))
	}
}

// conflict returns a lock of this goroutine under which a lock of the given rank must not be taken.
//
//go:norace
func conflict(rank Rank, lock unsafe.Pointer) (first held, broken bool) {
	hide()
	defer show()
	goroutine := current()
	s := shardOf(goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.find(goroutine)
	if h == nil {
		return held{}, false
	}
	for i := range h.count {
		if h.locks[i].lock == lock {
			return h.locks[i], true
		}
	}
	for i := range h.count {
		have := &h.locks[i]
		same := have.rank.Order == rank.Order
		if have.rank.Order > rank.Order || same && !rank.Many {
			return *have, true
		}
		if seen := &seenInOrder[have.rank.Order][rank.Order]; seen.Load() == nil {
			seen.Store(trace())
		}
	}
	return held{}, false
}

// hold records that the goroutine holds a lock, with the given number of frames of its stack.
//
//go:norace
func hold(rank Rank, lock unsafe.Pointer, frames int) {
	hide()
	defer show()
	goroutine := current()
	s := shardOf(goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.find(goroutine)
	if h == nil {
		h = s.holders[s.count]
		if h == nil {
			h = &holder{}
			s.holders[s.count] = h
		}
		h.goroutine, h.count = goroutine, 0
		s.count++
	}
	have := &h.locks[h.count]
	have.lock, have.rank = lock, rank
	n := runtime.Callers(callersOfLock, have.stack[:frames])
	clear(have.stack[n:])
	h.count++
}

// callersOfLock is the number of frames to skip: runtime.Callers, hold, lock and Lock.
const callersOfLock = 4

// trace returns the stack of the caller of Lock.
func trace() *stack {
	var s stack
	runtime.Callers(callersOfLock+2, s[:])
	return &s
}

// release records that a lock is about to be released, usually by the goroutine that holds it.
//
//go:norace
func release(lock unsafe.Pointer) {
	hide()
	defer show()
	own := shardOf(current())
	if own.drop(lock) {
		return
	}
	for i := range goroutines {
		if goroutines[i].drop(lock) {
			return
		}
	}
	panic("ranked: Unlock of a lock that is not held")
}

// drop removes a lock from its holder in the shard, and reports whether there was one.
//
//go:norace
func (s *shard) drop(lock unsafe.Pointer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	goroutine := current()
	for own := range 2 {
		for i := range s.count {
			h := s.holders[i]
			if (h.goroutine == goroutine) == (own == 0) && h.drop(lock) {
				if h.count == 0 {
					s.count--
					s.holders[i], s.holders[s.count] = s.holders[s.count], h
				}
				return true
			}
		}
	}
	return false
}

// drop removes a lock from the list.
//
//go:norace
func (h *holder) drop(lock unsafe.Pointer) bool {
	for i := h.count - 1; i >= 0; i-- {
		if h.locks[i].lock != lock {
			continue
		}
		for ; i < h.count-1; i++ {
			h.locks[i] = h.locks[i+1]
		}
		h.count--
		return true
	}
	return false
}

// checkWait panics if the goroutine holds a lock that must not be held while ranks wait.
//
//go:norace
func checkWait() {
	if have, found := holds(func(r *Rank) bool { return !r.Waits }); found {
		panic("ranked: a rank waits for another one with " + have.rank.Name + " held, taken at\n" +
			have.stack.String())
	}
}

// checkUnlocked panics if the goroutine holds any lock.
//
//go:norace
func checkUnlocked() {
	if have, found := holds(func(*Rank) bool { return true }); found {
		panic("ranked: a function of the user is called with " + have.rank.Name +
			" held, acquired at\n" + have.stack.String())
	}
}

// holds returns a lock of the goroutine whose rank satisfies the condition.
//
//go:norace
func holds(condition func(*Rank) bool) (have held, found bool) {
	hide()
	defer show()
	goroutine := current()
	s := shardOf(goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.find(goroutine)
	if h == nil {
		return held{}, false
	}
	for i := range h.count {
		if condition(&h.locks[i].rank) {
			return h.locks[i], true
		}
	}
	return held{}, false
}

// inversion returns a message about locks that were acquired in the wrong order, and where.
func inversion(first held, rank Rank, lock unsafe.Pointer) string {
	var text strings.Builder
	if first.lock == lock {
		fmt.Fprintf(&text, "ranked: %s is taken twice by one goroutine", rank.Name)
	} else {
		fmt.Fprintf(&text, "ranked: %s (order %d) is taken while %s (order %d) is held", rank.Name,
			rank.Order, first.rank.Name, first.rank.Order)
	}
	fmt.Fprintf(&text, ".\n%s was taken at\n%s", first.rank.Name, first.stack)
	var here stack
	runtime.Callers(callersOfLock+1, here[:])
	fmt.Fprintf(&text, "%s is asked for at\n%s", rank.Name, here)
	if other := seenInOrder[rank.Order][first.rank.Order].Load(); other != nil {
		fmt.Fprintf(&text, "in the right order they were taken at\n%s", other)
	}
	return text.String()
}

// String lists the frames, one per line.
func (s stack) String() string {
	var text strings.Builder
	all := runtime.CallersFrames(s[:])
	for {
		f, more := all.Next()
		if f.Function != "" {
			fmt.Fprintf(&text, "\t%s %s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return text.String()
		}
	}
}
