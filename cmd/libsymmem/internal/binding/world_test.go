package binding

import (
	"errors"
	"sync"
	"testing"

	"symmem"
)

// openWorld opens another world with this process as its only rank. The test may close the world.
func openWorld(t *testing.T, l *Library) (r *rank, handle uint64) {
	t.Helper()
	handle, err := l.OpenWorld([]byte(hostOptions))
	if err != nil {
		t.Fatal(err)
	}

	if r, err = l.worldRank(handle); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		err := l.CloseWorld(handle, force)
		isAlreadyClosed := errors.Is(err, symmem.ErrClosed)
		if err != nil && !isAlreadyClosed {
			t.Error(err)
		}
	})
	return r, handle
}

// If two worlds use the same stream, the second world's work waits for earlier work of the first
// world, even if the earlier work fails.
func TestStreamOrdersWorkAcrossWorlds(t *testing.T) {
	const streamHandle = 1 // arbitrary
	l, _ := openLibrary(t, hostOptions)
	first, err := l.mainWorldRank()
	if err != nil {
		t.Fatal(err)
	}

	second, _ := openWorld(t, l)
	firstStream, err := first.findStream(streamHandle)
	if err != nil {
		t.Fatal(err)
	}

	gate := make(chan struct{})
	failAfterGate := func() {
		<-gate
		panic("on purpose")
	}
	if err := firstStream.Host(failAfterGate); err != nil {
		t.Fatal(err)
	}

	secondStream, err := second.findStream(streamHandle)
	if err != nil {
		t.Fatal(err)
	}

	ran := make(chan struct{})
	if err := secondStream.Host(func() { close(ran) }); err != nil {
		t.Fatal(err)
	}

	event, err := l.RecordEvent(streamHandle) // after the work of both worlds
	if err != nil {
		t.Fatal(err)
	}

	select {
	case <-ran:
		t.Error("work of the second world ran before the earlier work of the first world was done")
	default:
	}

	if l.IsEventDone(event) {
		t.Error("IsEventDone = true before the event's work is done, want false")
	}

	close(gate)
	if err := l.WaitForEvent(event); err == nil {
		t.Error("WaitForEvent = nil, want the failure of the first world")
	}

	<-ran
	if err := l.Synchronize(streamHandle); err == nil {
		t.Error("Synchronize = nil, want the failure of the first world")
	}

	if err := l.Synchronize(streamHandle); err != nil {
		t.Errorf("second Synchronize = %v, want nil because a failure is reported once", err)
	}
}

// A Library's number for a call site is valid in all worlds, although worlds number call sites
// differently.
func TestCallSitesHaveSameNumberInAllWorlds(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	first, err := l.SiteNumber("first.py:1")
	if err != nil {
		t.Fatal(err)
	}

	r, _ := openWorld(t, l)
	r.rt.Interop().Site("engine.go:7") // shifts the numbers in this world only
	second, err := l.SiteNumber("second.py:2")
	if err != nil {
		t.Fatal(err)
	}

	for site, text := range map[uint32]string{first: "first.py:1", second: "second.py:2"} {
		siteInWorld := r.rt.Interop().Site(text)
		want := r.rt.Interop().At(siteInWorld)
		if got := r.interopAt(site); got != want {
			t.Errorf("interopAt(%d) for %s: got %v, want %v", site, text, got, want)
		}
	}
}

// After a forced close, a live buffer can still be freed. Other calls in the world fail.
func TestLiveBuffersOutliveForcedCloseOfWorld(t *testing.T) {
	const bufferBytes = 4096 // arbitrary
	l, _ := openLibrary(t, hostOptions)
	_, world := openWorld(t, l)
	poolNumber, err := l.OpenPool(world, nil)
	if err != nil {
		t.Fatal(err)
	}

	address, err := l.Alloc(poolNumber, bufferBytes, defaultStream, noSite)
	if err != nil {
		t.Fatal(err)
	}

	if err := l.CloseWorld(world, withoutForce); CodeOf(err) != CodeLive {
		t.Errorf("CloseWorld with a live buffer = %v, want an error with code %v", err, CodeLive)
	}

	if err := l.CloseWorld(world, force); err != nil {
		t.Fatal(err)
	}

	_, err = l.Alloc(poolNumber, bufferBytes, defaultStream, noSite)
	if CodeOf(err) != CodeClosed {
		t.Errorf("Alloc in a pool of the closed world = %v, want an error with code %v", err,
			CodeClosed)
	}

	if err := l.Free(address, noDelay); err != nil {
		t.Errorf("freeing a buffer of the closed world: %v", err)
	}

	if err := l.Check(world); CodeOf(err) != CodeClosed {
		t.Errorf("Check of the closed world = %v, want an error with code %v", err, CodeClosed)
	}
}

// Only the main world has a pool from the beginning.
func TestOpenWorldRefusesPoolOptions(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	options := []byte(`{"size": 1, "pool": {"capacity": 1}}`)
	if _, err := l.OpenWorld(options); CodeOf(err) != CodeInvalid {
		t.Errorf("OpenWorld(%s) = %v, want an error with code %v", options, err, CodeInvalid)
	}
}

func TestWorldsOpenAndCloseConcurrently(t *testing.T) {
	const goroutines, worldsPerGoroutine, mainWorldCalls = 3, 5, 50 // arbitrary
	l, _ := openLibrary(t, hostOptions)
	mainWorld, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	openAndClose := func() {
		world, err := l.OpenWorld([]byte(hostOptions))
		if err != nil {
			t.Error(err)
			return
		}

		if err := l.Check(world); err != nil {
			t.Error(err)
		}

		if err := l.CloseWorld(world, withoutForce); err != nil {
			t.Error(err)
		}
	}
	var openers sync.WaitGroup
	for range goroutines {
		openers.Go(func() {
			for range worldsPerGoroutine {
				openAndClose()
			}
		})
	}

	for range mainWorldCalls {
		if err := l.Check(mainWorld); err != nil {
			t.Error(err)
		}

		if err := l.Synchronize(defaultStream); err != nil {
			t.Error(err)
		}
	}

	openers.Wait()
}
