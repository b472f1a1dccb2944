package binding

import (
	"errors"
	"sync"
	"testing"
	"time"
	"unsafe"

	"symmem"
)

// TestLiveBuffersOutliveForcedClose closes a pool, and then the library, while each pool has a live
// buffer. The buffers must keep their contents, because tensors may still use them. They can be
// freed even after the library was opened again.
func TestLiveBuffersOutliveForcedClose(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	openedPool, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}

	words := map[int]*uint64{} // the first word of each pool's buffer, by pool number
	valueOf := func(pool int) uint64 { return uint64(pool + 10) }
	for _, pool := range []int{mainPool, openedPool, LocalPool} {
		address, err := l.Alloc(pool, 4096, defaultStream, noSite)
		if err != nil {
			t.Fatal(err)
		}

		words[pool] = *(**uint64)(unsafe.Pointer(&address)) // a conversion that go vet accepts
		*words[pool] = valueOf(pool)
	}

	if err := l.Close(withoutForce); CodeOf(err) != CodeLive {
		t.Errorf("Close with live buffers: got %v, want an error with code %v", err, CodeLive)
	}

	checkWords := func(situation string) {
		t.Helper()
		for pool, word := range words {
			if *word != valueOf(pool) {
				t.Errorf("%s: the buffer of pool %d contains %d, want %d", situation, pool, *word,
					valueOf(pool))
			}
		}
	}
	if err := l.ClosePool(openedPool, force); err != nil {
		t.Fatal(err)
	}

	checkWords("after ClosePool")
	if err := l.Close(force); err != nil {
		t.Fatal(err)
	}

	checkWords("after Close")
	if err := l.Open([]byte(hostOptions)); err != nil {
		t.Fatal(err)
	}

	for pool, word := range words {
		address := uintptr(unsafe.Pointer(word))
		if err := l.Free(address, delay); err != nil {
			t.Errorf("freeing the buffer of pool %d: %v", pool, err)
		}

		// The library no longer knows the buffer, so the address is foreign and not a double free.
		if err := l.Free(address, noDelay); CodeOf(err) != CodeForeign {
			t.Errorf("freeing the buffer of pool %d again: got %v, want an error with code %v", pool,
				err, CodeForeign)
		}
	}
}

// TestFreedMemoryOfClosedPoolsIsRefused closes a pool and, in the second round, the whole library.
// Buffers that were live stay usable until they are freed. Other memory of the pool is refused.
func TestFreedMemoryOfClosedPoolsIsRefused(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	mainWorld := func() uint64 { // differs after the library was opened again
		t.Helper()
		world, err := l.World()
		if err != nil {
			t.Fatal(err)
		}

		return world
	}
	alloc := func(pool int, bytes uint64) uintptr {
		t.Helper()
		address, err := l.Alloc(pool, bytes, defaultStream, noSite)
		if err != nil {
			t.Fatal(err)
		}

		return address
	}
	for _, reopens := range []bool{false, true} {
		// checkCall makes a collective call on a few elements of the memory.
		checkCall := func(memory string, address uintptr, want Code) {
			t.Helper()
			err := l.Do(mainWorld(), &Arguments{
				Operation: int(symmem.OpAllReduce), Count: 4, Send: address, Recv: address,
			})
			if CodeOf(err) != want {
				t.Errorf("with library reopened = %v, call on %s: got %v, want code %v", reopens, memory,
					err, want)
			}
		}
		pool, err := l.OpenPool(mainWorld(), nil)
		if err != nil {
			t.Fatal(err)
		}

		// The first two buffers share a segment, which stays mapped as long as one of them is live.
		// The large buffer has a segment to itself, which is unmapped when the pool closes.
		freed, live := alloc(pool, 4096), alloc(pool, 4096)
		large := alloc(pool, 64<<20)
		for _, address := range []uintptr{freed, large} {
			if err := l.Free(address, noDelay); err != nil {
				t.Fatal(err)
			}
		}

		checkCall("freed memory of an open pool", freed, CodeFreed)
		if err := l.ClosePool(pool, force); err != nil {
			t.Fatal(err)
		}

		if reopens {
			if err := l.Close(force); err != nil {
				t.Fatal(err)
			}

			if err := l.Open([]byte(hostOptions)); err != nil {
				t.Fatal(err)
			}
		}

		checkCall("live memory of a closed pool", live, CodeOK)
		checkCall("freed memory of a mapped segment", freed, CodeFreed)
		checkCall("freed memory of an unmapped segment", large, CodeFreed)
		if err := l.Free(live, noDelay); err != nil {
			t.Fatal(err)
		}

		checkCall("memory freed after the close", live, CodeFreed)
	}
}

// TestFreeDuringCloseTakesEffect closes a pool in the middle of a Free. Free first retires the
// buffer, so that calls no longer find it, and then frees it. The test makes these two steps
// itself, and closes the pool between them.
func TestFreeDuringCloseTakesEffect(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	poolNumber, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}

	address, err := l.Alloc(poolNumber, 4096, defaultStream, noSite)
	if err != nil {
		t.Fatal(err)
	}

	r, p, err := l.pool(poolNumber)
	if err != nil {
		t.Fatal(err)
	}

	retired, err := r.rt.Interop().Retire(address)
	if err != nil {
		t.Fatal(err)
	}

	if err := l.ClosePool(poolNumber, withoutForce); err != nil {
		t.Fatal(err)
	}

	if err := p.free(retired, delay); err != nil {
		t.Errorf("freeing the retired buffer after ClosePool: %v", err)
	}

	if _, err := r.rt.Interop().Buffer(address); !errors.Is(err, symmem.ErrForeign) {
		t.Errorf("Buffer of the freed address: got %v, want %v", err, symmem.ErrForeign)
	}
}

// TestConcurrentClosesKeepBufferOnce closes a pool with one live buffer from several goroutines.
// The library must record the buffer only once, so that no record remains after its free.
func TestConcurrentClosesKeepBufferOnce(t *testing.T) {
	const rounds = 50 // because the order of the goroutines differs
	const closerCount = 4
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	for range rounds {
		poolNumber, err := l.OpenPool(world, nil)
		if err != nil {
			t.Fatal(err)
		}

		address, err := l.Alloc(poolNumber, 4096, defaultStream, noSite)
		if err != nil {
			t.Fatal(err)
		}

		start := make(chan struct{}) // closed to start all closers at the same time
		var closers sync.WaitGroup
		for range closerCount {
			closers.Go(func() {
				<-start
				err := l.ClosePool(poolNumber, force)
				isLate := CodeOf(err) == CodeClosed // another goroutine has closed the pool
				if err != nil && !isLate {
					t.Errorf("ClosePool: got %v, want nil or an error with code %v", err, CodeClosed)
				}
			})
		}

		close(start)
		closers.Wait()
		interop := l.ranks.main.Load().rt.Interop()
		if n, _ := interop.Live(nil); n != 1 { // nil means all pools
			t.Fatalf("%d buffers are live after the close, want 1", n)
		}

		if err := l.Free(address, noDelay); err != nil {
			t.Fatalf("freeing the last buffer: %v", err)
		}

		if n, _ := interop.Live(nil); n != 0 {
			t.Fatalf("%d buffers are live after the last free, want 0", n)
		}
	}
}

// TestTrimDoesNotWaitForClosedRanks trims a pool, which unmaps its free segments, while the list of
// closed ranks is locked. Trim must not wait for that lock: it records unmapped segments with the
// pool's lock held, so a wait could become a deadlock.
func TestTrimDoesNotWaitForClosedRanks(t *testing.T) {
	const keepBytes = 0 // unmap all free segments
	l, _ := openLibrary(t, hostOptions)
	address, err := l.Alloc(mainPool, 100<<20, defaultStream, noSite)
	if err != nil {
		t.Fatal(err)
	}

	if err := l.Free(address, noDelay); err != nil {
		t.Fatal(err)
	}

	trimmed := make(chan error, 1) // has room, so that the goroutine ends even after the deadline
	l.closedRanks.mu.Lock()
	go func() { trimmed <- l.Trim(mainPool, keepBytes) }()
	select {
	case err = <-trimmed:
	case <-time.After(time.Minute): // much longer than Trim takes
		err = errors.New("Trim waits for the list of closed ranks")
	}

	l.closedRanks.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}

	if !l.unmappedSegments.contains(address) {
		t.Error("the trimmed segment is not recorded as unmapped")
	}
}
