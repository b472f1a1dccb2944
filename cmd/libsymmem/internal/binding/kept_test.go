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
	number, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}
	words := map[int]*uint64{}
	for _, pool := range []int{0, number, LocalPool} {
		address, err := l.Alloc(pool, 4096, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		words[pool] = *(**uint64)(unsafe.Pointer(&address))
		*words[pool] = uint64(pool + 10)
	}
	if err := l.Close(false); CodeOf(err) != CodeLive {
		t.Errorf("Close with live buffers: got %v, want %v", err, CodeLive)
	}
	for _, closeMemory := range []func() error{
		func() error { return l.ClosePool(number, true) },
		func() error { return l.Close(true) },
	} {
		if err := closeMemory(); err != nil {
			t.Fatal(err)
		}
		for pool, word := range words {
			if *word != uint64(pool+10) {
				t.Errorf("buffer of pool %d contains %d, want %d", pool, *word, pool+10)
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
		if err := l.Free(address, false); CodeOf(err) != CodeOf(symmem.ErrForeign) {
			t.Errorf("freeing a buffer twice: got %v, want %v", err, symmem.ErrForeign)
		}
	}
}

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
		address, err := l.Alloc(pool, bytes, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return address
	}
	check := func(name string, address uintptr, want Code) {
		t.Helper()
		if err := allReduce(address); CodeOf(err) != want {
			t.Errorf("call on %s: got %v, want %v", name, err, want)
		}
	}
	for _, reopen := range []bool{false, true} {
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
		check("freed memory", freed, CodeOf(symmem.ErrFreed))
		if err := l.ClosePool(pool, true); err != nil {
			t.Fatal(err)
		}
		if reopen {
			if err := errors.Join(l.Close(true), l.Open([]byte(hostOptions))); err != nil {
				t.Fatal(err)
			}
		}
		check("live memory of a closed pool", live, CodeOK)
		check("freed memory of a mapped segment", freed, CodeOf(symmem.ErrFreed))
		check("freed memory of an unmapped segment", large, CodeOf(symmem.ErrFreed))
		if err := l.Free(live, false); err != nil {
			t.Fatal(err)
		}
		check("memory freed after the close", live, CodeOf(symmem.ErrFreed))
	}
}

// TestFreeDuringCloseTakesEffect closes a pool after the first step of Free, which retires the
// buffer, and before the second, which frees it.
func TestFreeDuringCloseTakesEffect(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	number, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}
	address, err := l.Alloc(number, 4096, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, p, err := l.pool(number)
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.rt.Interop().Retire(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.ClosePool(number, false); err != nil {
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
		number, err := l.OpenPool(world, nil)
		if err != nil {
			t.Fatal(err)
		}
		address, err := l.Alloc(number, 4096, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		start := make(chan struct{})
		var closers sync.WaitGroup
		for range 4 {
			closers.Go(func() {
				<-start
				if err := l.ClosePool(number, true); err != nil && CodeOf(err) != CodeOf(symmem.ErrClosed) {
					t.Errorf("closing a pool: %v", err)
				}
			})
		}
		close(start)
		closers.Wait()
		interop := l.ranks.main.Load().rt.Interop()
		if n, _ := interop.Live(nil); n != 1 {
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
	address, err := l.Alloc(0, 100<<20, 0, 0)
	if err := errors.Join(err, l.Free(address, false)); err != nil {
		t.Fatal(err)
	}
	trimmed := make(chan error, 1)
	l.closedRankBuffers.mu.Lock()
	go func() { trimmed <- l.Trim(0, 0) }()
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
