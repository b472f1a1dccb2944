package binding

import (
	"errors"
	"sync"
	"testing"

	"symmem"
)

// openWorld opens another world of one rank. It returns this process's rank in the world and the
// world's handle. The cleanup accepts that the test has closed the world.
func openWorld(t *testing.T, l *Library) (r *rank, handle uint64) {
	t.Helper()
	handle, err := l.OpenWorld([]byte(hostOptions))
	if err != nil {
		t.Fatal(err)
	}
	if r, err = l.world(handle); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.CloseWorld(handle, true); err != nil && !errors.Is(err, symmem.ErrClosed) {
			t.Error(err)
		}
	})
	return r, handle
}

// TestStreamOrdersWorkAcrossWorlds uses one stream in two worlds. The work of the first world
// waits at a gate and then fails. The work of the second world must run after it, without failing.
func TestStreamOrdersWorkAcrossWorlds(t *testing.T) {
	const handle = 1 // of the stream
	l, _ := openLibrary(t, hostOptions)
	first, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}
	second, _ := openWorld(t, l)
	firstStream, err := first.findStream(handle)
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	if err := firstStream.Host(func() { <-gate; panic("on purpose") }); err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{})
	secondStream, err := second.findStream(handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := secondStream.Host(func() { close(ran) }); err != nil {
		t.Fatal(err)
	}
	e, err := l.RecordEvent(handle)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-ran:
		t.Error("work of the second world ran before the stream's earlier work was done")
	default:
	}
	if l.IsEventDone(e) {
		t.Error("IsEventDone = true before the event's work is done, want false")
	}
	close(gate)
	if err := l.WaitForEvent(e); err == nil {
		t.Error("WaitForEvent = nil, want the failure of the first world")
	}
	<-ran // the failure of the first world does not affect the second
	if err := l.Synchronize(handle); err == nil {
		t.Error("Synchronize = nil, want the failure of the first world")
	}
	if err := l.Synchronize(handle); err != nil {
		t.Errorf("second Synchronize = %v, want nil", err)
	}
}

func TestCallSitesHaveSameNumberInAllWorlds(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	first, err := l.SiteNumber("first.py:1")
	if err != nil {
		t.Fatal(err)
	}
	r, handle := openWorld(t, l)
	r.rt.Interop().Site("engine.go:7") // so that this world numbers its sites differently
	second, err := l.SiteNumber("second.py:2")
	if err != nil {
		t.Fatal(err)
	}
	for site, text := range map[uint32]string{first: "first.py:1", second: "second.py:2"} {
		wantNumber := r.rt.Interop().Site(text)
		if got := r.interopAt(site); got != r.rt.Interop().At(wantNumber) {
			t.Errorf("site %d (%s) in world %d: got %v, want number %d", site, text, handle, got,
				wantNumber)
		}
	}
}

func TestLiveBuffersOutliveForcedCloseOfWorld(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	_, world := openWorld(t, l)
	poolNumber, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}
	address, err := l.Alloc(poolNumber, 4096, defaultStream, noSite)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.CloseWorld(world, false); CodeOf(err) != CodeLive {
		t.Errorf("CloseWorld with a live buffer = %v, want %v", err, CodeLive)
	}
	if err := l.CloseWorld(world, true); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Alloc(poolNumber, 4096, defaultStream, noSite); CodeOf(err) != CodeClosed {
		t.Errorf("Alloc in a pool of the closed world = %v, want %v", err, CodeClosed)
	}
	if err := l.Free(address, false); err != nil {
		t.Errorf("freeing a buffer of the closed world: %v", err)
	}
	if err := l.Check(world); CodeOf(err) != CodeClosed {
		t.Errorf("Check of the closed world = %v, want %v", err, CodeClosed)
	}
	options := []byte(`{"size": 1, "pool": {"capacity": 1}}`)
	if _, err := l.OpenWorld(options); CodeOf(err) != CodeInvalid {
		t.Errorf("OpenWorld with a pool = %v, want %v", err, CodeInvalid)
	}
}

func TestWorldsOpenAndCloseConcurrently(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	mainWorld, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	var users sync.WaitGroup
	for range 3 {
		users.Go(func() {
			for range 5 {
				world, err := l.OpenWorld([]byte(hostOptions))
				if err == nil {
					err = errors.Join(l.Check(world), l.CloseWorld(world, false))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		if err := errors.Join(l.Check(mainWorld), l.Synchronize(0)); err != nil {
			t.Error(err)
		}
	}
	users.Wait()
}
