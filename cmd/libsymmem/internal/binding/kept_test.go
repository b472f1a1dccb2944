package binding

import (
	"errors"
	"sync"
	"testing"
	"time"
	"unsafe"

	"symmem"
)

func TestLiveBuffersOutliveForcedClose(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	const force = true
	openedPool, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}
	words := map[int]*uint64{} // the first word of a buffer in each pool, by pool number
	valueOf := func(pool int) uint64 { return uint64(pool + 10) }
	for _, pool := range []int{mainPool, openedPool, LocalPool} {
		address, err := l.Alloc(pool, 4096, defaultStream, noSite)
		if err != nil {
			t.Fatal(err)
		}
		words[pool] = *(**uint64)(unsafe.Pointer(&address)) // a conversion that go vet accepts
		*words[pool] = valueOf(pool)
	}
	if err := l.Close(false); CodeOf(err) != CodeLive {
		t.Errorf("Close with live buffers: got %v, want %v", err, CodeLive)
	}
	for _, closing := range []struct {
		name  string
		close func() error
	}{
		{"ClosePool", func() error { return l.ClosePool(openedPool, force) }},
		{"Close", func() error { return l.Close(force) }},
	} {
		if err := closing.close(); err != nil {
			t.Fatalf("%s: %v", closing.name, err)
		}
		for pool, word := range words {
			if *word != valueOf(pool) {
				t.Errorf("after %s, the buffer of pool %d contains %d, want %d", closing.name, pool, *word,
					valueOf(pool))
			}
		}
	}
	if err := l.Open([]byte(hostOptions)); err != nil {
		t.Fatal(err)
	}
	for pool, word := range words {
		address := uintptr(unsafe.Pointer(word))
		if err := l.Free(address, true); err != nil {
			t.Errorf("freeing a buffer of pool %d: %v", pool, err)
		}
		if err := l.Free(address, false); CodeOf(err) != CodeForeign {
			t.Errorf("freeing a buffer of pool %d again: got %v, want %v", pool, err, CodeForeign)
		}
	}
}

// TestFreedMemoryOfClosedPoolsIsRefused closes a pool and, in the second round, the whole library.
// Buffers that were live stay usable until they are freed. Other memory of the pool is refused.
func TestFreedMemoryOfClosedPoolsIsRefused(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	allReduce := func(address uintptr) error {
		world, err := l.World()
		if err != nil {
			t.Fatal(err)
		}
		return l.Do(world, &Arguments{
			Operation: int(symmem.OpAllReduce), Count: 4, Send: address, Recv: address,
		})
	}
	alloc := func(pool int, bytes uint64) uintptr {
		t.Helper()
		address, err := l.Alloc(pool, bytes, defaultStream, noSite)
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	const force = true
	for _, reopens := range []bool{false, true} {
		checkCall := func(memory string, address uintptr, want Code) {
			t.Helper()
			if err := allReduce(address); CodeOf(err) != want {
				t.Errorf("library reopened: %v: call on %s: got %v, want %v", reopens, memory, err, want)
			}
		}
		world, err := l.World()
		if err != nil {
			t.Fatal(err)
		}
		pool, err := l.OpenPool(world, nil)
		if err != nil {
			t.Fatal(err)
		}
		freed, live := alloc(pool, 4096), alloc(pool, 4096)
		large := alloc(pool, 64<<20) // has a segment to itself
		for _, address := range []uintptr{freed, large} {
			if err := l.Free(address, false); err != nil {
				t.Fatal(err)
			}
		}
		checkCall("freed memory of an open pool", freed, CodeFreed)
		if err := l.ClosePool(pool, force); err != nil {
			t.Fatal(err)
		}
		if reopens {
			if err := errors.Join(l.Close(force), l.Open([]byte(hostOptions))); err != nil {
				t.Fatal(err)
			}
		}
		checkCall("live memory of a closed pool", live, CodeOK)
		checkCall("freed memory of a mapped segment", freed, CodeFreed)
		checkCall("freed memory of an unmapped segment", large, CodeFreed)
		if err := l.Free(live, false); err != nil {
			t.Fatal(err)
		}
		checkCall("memory freed after the close", live, CodeFreed)
	}
}

// TestFreeDuringCloseTakesEffect closes a pool during a Free: after Free has retired the buffer
// and before it frees the buffer.
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
	b, err := r.rt.Interop().Retire(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.ClosePool(poolNumber, false); err != nil {
		t.Fatal(err)
	}
	if err := p.free(b, true); err != nil {
		t.Error(err)
	}
	if _, err := r.rt.Interop().Buffer(address); !errors.Is(err, symmem.ErrForeign) {
		t.Errorf("Buffer of the freed address: got %v, want ErrForeign", err)
	}
}

// TestConcurrentClosesKeepBufferOnce closes a pool with one live buffer from several goroutines,
// after which freeing the buffer must leave no record of it.
func TestConcurrentClosesKeepBufferOnce(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		poolNumber, err := l.OpenPool(world, nil)
		if err != nil {
			t.Fatal(err)
		}
		address, err := l.Alloc(poolNumber, 4096, defaultStream, noSite)
		if err != nil {
			t.Fatal(err)
		}
		start := make(chan struct{})
		var closers sync.WaitGroup
		for range 4 {
			closers.Go(func() {
				<-start
				const force = true
				err := l.ClosePool(poolNumber, force)
				if code := CodeOf(err); code != CodeOK && code != CodeClosed {
					t.Errorf("closing a pool: %v", err)
				}
			})
		}
		close(start)
		closers.Wait()
		interop := l.ranks.main.Load().rt.Interop()
		if n, _ := interop.Live(nil); n != 1 { // in all pools
			t.Fatalf("%d buffers are live, want 1", n)
		}
		if err := l.Free(address, false); err != nil {
			t.Fatalf("freeing the last buffer: %v", err)
		}
		if n, _ := interop.Live(nil); n != 0 {
			t.Fatalf("%d buffers are live after the last free, want 0", n)
		}
	}
}

// TestTrimDoesNotWaitForClosedRanks trims a pool while the list of closed ranks is locked. Trim
// must not wait for that lock, because it records unmapped segments with the pool's lock held.
func TestTrimDoesNotWaitForClosedRanks(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	address, err := l.Alloc(mainPool, 100<<20, defaultStream, noSite)
	if err := errors.Join(err, l.Free(address, false)); err != nil {
		t.Fatal(err)
	}
	trimmed := make(chan error, 1)
	const keepBytes = 0
	l.closedRankBuffers.mu.Lock()
	go func() { trimmed <- l.Trim(mainPool, keepBytes) }()
	select {
	case err = <-trimmed:
	case <-time.After(time.Minute):
		err = errors.New("Trim waits for the list of closed ranks")
	}
	l.closedRankBuffers.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if !l.closedRankBuffers.isUnmapped(address) {
		t.Error("the segment is not recorded as unmapped")
	}
}
