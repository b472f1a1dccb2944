package binding

import (
	"errors"
	"sync"
	"testing"

	"symmem"
)

func openWorld(t *testing.T, l *Library) (*rank, uint64) {
	t.Helper()
	handle, err := l.OpenWorld([]byte(hostOptions))
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.world(handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.CloseWorld(handle, true); err != nil && !errors.Is(err, symmem.ErrClosed) {
			t.Error(err)
		}
	})
	return r, handle
}

// TestStreamOrdersWorkAcrossWorlds uses one stream in two worlds while the first world has
// unfinished work.
func TestStreamOrdersWorkAcrossWorlds(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	main, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}
	other, _ := openWorld(t, l)
	slow, err := main.findStream(1)
	if err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	if err := slow.Host(func() { <-gate; panic("on purpose") }); err != nil {
		t.Fatal(err)
	}
	ran := make(chan struct{})
	later, err := other.findStream(1)
	if err == nil {
		err = later.Host(func() { close(ran) })
	}
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.RecordEvent(1)
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
	if err := l.Synchronize(1); err == nil {
		t.Error("Synchronize = nil, want the failure of the first world")
	}
	if err := l.Synchronize(1); err != nil {
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
	r.rt.Interop().Site("engine.go:7") // a number that only this world uses
	second, err := l.SiteNumber("second.py:2")
	if err != nil {
		t.Fatal(err)
	}
	for site, want := range map[uint32]string{first: "first.py:1", second: "second.py:2"} {
		number := r.rt.Interop().Site(want)
		if got := r.interopAt(site); got != r.rt.Interop().At(number) {
			t.Errorf("site %d in world %d: got %v, want number %d", site, handle, got, number)
		}
	}
}

func TestLiveBuffersOutliveForcedCloseOfWorld(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	_, world := openWorld(t, l)
	number, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}
	address, err := l.Alloc(number, 4096, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.CloseWorld(world, false); CodeOf(err) != CodeLive {
		t.Errorf("CloseWorld with a live buffer = %v, want %v", err, CodeLive)
	}
	if err := l.CloseWorld(world, true); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Alloc(number, 4096, 0, 0); CodeOf(err) != CodeClosed {
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
	main, err := l.World()
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
		if err := errors.Join(l.Check(main), l.Synchronize(0)); err != nil {
			t.Error(err)
		}
	}
	users.Wait()
}
