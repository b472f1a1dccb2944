package symmem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem"
	"symmem/event"
	"symmem/internal/live"
)

// useLiveFolder creates a folder for the live views of a test. The folder has a short path, because
// the kernel limits the length of socket paths.
func useLiveFolder(t *testing.T) {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "live")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(folder) })
	t.Setenv("TMPDIR", folder)
}

func viewOf(t *testing.T, rt *symmem.Runtime) live.Machine {
	t.Helper()
	w := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/symmem", nil)
	rt.Handler().ServeHTTP(w, request)
	var m live.Machine
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil || w.Code != http.StatusOK {
		t.Fatalf("status %d, body %.300q: %v", w.Code, w.Body, err)
	}

	return m
}

func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	const testTimeout = time.Minute
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for begin := time.Now(); !f(); <-ticks.C {
		if time.Since(begin) > testTimeout {
			t.Errorf("%s has not happened after %v", what, testTimeout)
			return
		}
	}
}

// TestLiveViewShowsWaits makes rank 0 wait for rank 1, which reads the live view during the wait.
func TestLiveViewShowsWaits(t *testing.T) {
	useLiveFolder(t)
	runRanks(t, 2, symmem.Options{HTTP: "unix"}, func(r *rank) {
		b := r.window(r.pool(), 4096)
		r.checkSum(r.World(), b)
		if r.Rank() == 1 {
			await(t, "the wait of rank 0 for rank 1", func() bool {
				m := viewOf(t, r.Runtime)
				if len(m.Ranks) != 2 || len(m.Ranks[0].Waits) == 0 {
					return false
				}

				w := m.Ranks[0].Waits[0]
				if len(w.Ranks) != 1 || w.Ranks[0] != 1 || w.Group != "world" ||
					!strings.Contains(w.InCall, "AllReduce 2 of group world") ||
					!strings.Contains(w.Activity[1], "in no call of this group") {
					t.Errorf("wait of rank 0 = %+v; want a wait in AllReduce 2 for rank 1", w)
				}

				return true
			})
		}

		r.checkSum(r.World(), b)
	})
}

// TestLiveViewShowsValues makes rank 0 wait for rank 1 in Agree.
func TestLiveViewShowsValues(t *testing.T) {
	useLiveFolder(t)
	runRanks(t, 2, symmem.Options{HTTP: "unix"}, func(r *rank) {
		if r.Rank() == 1 {
			await(t, "the wait of rank 0 in Agree", func() bool {
				m := viewOf(t, r.Runtime)
				return len(m.Ranks) == 2 && len(m.Ranks[0].Waits) == 1 &&
					strings.Contains(m.Ranks[0].Waits[0].InCall, "batch")
			})
		}

		r.ok(r.World().Agree(r.ctx, "batch", 8))
	})
}

// calls returns the calls in a rank's world that the view shows, and the number of collectives.
func calls(t *testing.T, rt *symmem.Runtime) (all []live.Calls, collectives uint64) {
	t.Helper()
	world := viewOf(t, rt).Ranks[0].Groups[0]
	for _, n := range world.Paths {
		collectives += n
	}

	return world.Calls, collectives
}

// TestHandlerCountsCalls checks that calls are counted once Handler has been called for the first
// time, even if the group cached their plan before that. Replays count as collectives, but are
// not timed.
func TestHandlerCountsCalls(t *testing.T) {
	rt := openAlone(t)
	sum := sumAlone(t, rt, 4096)
	sum()
	if all, n := calls(t, rt); len(all) != 0 || n != 1 {
		t.Errorf("before the first counted call, calls = %+v, collectives = %d; want none and 1", all, n)
	}

	sum()
	if err := rt.DefaultStream().BeginCapture(); err != nil {
		t.Fatal(err)
	}

	sum()
	graph, err := rt.DefaultStream().EndCapture()
	if err != nil {
		t.Fatal(err)
	}

	for range 300 {
		if err := graph.Launch(rt.DefaultStream()); err != nil {
			t.Fatal(err)
		}
	}

	if err := rt.DefaultStream().Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}

	all, n := calls(t, rt)
	if n != 302 || len(all) != 1 || all[0].Calls != 2 || all[0].Bytes != 8192 ||
		all[0].Submit.Samples != 1 || all[0].Run != nil && all[0].Run.Samples > 1 {
		t.Errorf("calls = %+v, collectives = %d; want 2 calls, one of them timed, and 302 collectives",
			all, n)
	}

	if err := graph.Close(); err != nil {
		t.Fatal(err)
	}

	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}

	if all, _ := calls(t, rt); len(all) != 1 {
		t.Errorf("after Close, calls = %+v; want the same as before", all)
	}
}

func sumAlone(tb testing.TB, rt *symmem.Runtime, bytes int64) func() {
	tb.Helper()
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		tb.Fatal(err)
	}

	b, err := p.Alloc(bytes)
	if err != nil {
		tb.Fatal(err)
	}

	m := b.Memory()
	return func() {
		err := rt.World().AllReduce(tb.Context(), m, m, bytes/4, symmem.Float32, symmem.Sum, nil)
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// TestLiveViewTimesRuns checks that one call in 128 is timed on each path.
func TestLiveViewTimesRuns(t *testing.T) {
	useLiveFolder(t)
	for _, choice := range []symmem.PathChoice{
		symmem.PathPlain, symmem.PathWindow, symmem.PathDirect,
	} {
		runRanks(t, 2, symmem.Options{HTTP: "unix", Path: choice}, func(r *rank) {
			b := r.window(r.pool(), 4096)
			for range 130 {
				r.ok(r.sum(r.World(), b))
			}

			await(t, "times of two calls", func() bool {
				for _, c := range viewOf(t, r.Runtime).Ranks[r.Rank()].Groups[0].Calls {
					if c.Operation == "AllReduce" && c.Run != nil && c.Run.Samples == 2 &&
						c.Run.RecentSeconds > 0 && c.Run.RecentBytes == 4096 {
						return true
					}
				}

				return false
			})
		})
	}
}

// TestLiveViewAllocatesNothing repeats a collective with and without a live view. Without one,
// package live must run no goroutine.
func TestLiveViewAllocatesNothing(t *testing.T) {
	useLiveFolder(t)
	for _, address := range []string{"", "unix"} {
		rt := openAloneWith(t, symmem.Options{HTTP: address})
		sum := sumAlone(t, rt, 64)
		if n := testing.AllocsPerRun(1000, sum); n > 0 {
			t.Errorf("with HTTP %q, a collective makes %v allocations; want none", address, n)
		}

		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if runs := strings.Contains(string(stacks), "symmem/internal/live"); runs != (address != "") {
			t.Errorf("with HTTP %q, a goroutine of package live: %v; want %v. Stacks:\n%s", address,
				runs, !runs, stacks)
		}

		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLiveViewDoesNotWaitForPool(t *testing.T) {
	rt := openAlone(t)
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		t.Fatal(err)
	}

	unlock := symmem.LockPool(p)
	pools := viewOf(t, rt).Ranks[0].Pools
	unlock()
	if last := pools[len(pools)-1]; !last.Busy {
		t.Errorf("pool = %+v; want Busy", last)
	}

	pools = viewOf(t, rt).Ranks[0].Pools
	if last := pools[len(pools)-1]; last.Busy {
		t.Errorf("pool = %+v; want its sizes", last)
	}
}

func TestInvalidHTTPAddressIsRefused(t *testing.T) {
	for _, address := range []string{
		"9400", "localhost", "localhost:http", "localhost:70000", "a:b:1",
	} {
		rt, err := symmem.Open(t.Context(), symmem.Options{Size: 1, HTTP: address})
		if err == nil {
			t.Errorf("Open with HTTP %q succeeded; want ErrInvalid (Close: %v)", address, rt.Close())
			continue
		}

		if !errors.Is(err, symmem.ErrInvalid) {
			t.Errorf("Open with HTTP %q = %v; want ErrInvalid", address, err)
		}
	}
}

// TestUnusableFolderDisablesLiveView opens a rank when the folder for sockets cannot be created.
func TestUnusableFolderDisablesLiveView(t *testing.T) {
	useLiveFolder(t)
	t.Setenv("TMPDIR", os.Getenv("TMPDIR")+"/missing")
	rt := openAloneWith(t, symmem.Options{HTTP: "unix"})
	if m := viewOf(t, rt); len(m.Ranks) != 1 || m.Ranks[0].Error != "" {
		t.Errorf("view = %+v; want one rank without an error", m)
	}
}

// TestLiveViewSurvivesFaults aborts a group while the view is read.
func TestLiveViewSurvivesFaults(t *testing.T) {
	useLiveFolder(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	runRanks(t, 2, symmem.Options{HTTP: "unix"}, func(r *rank) {
		if r.Rank() == 1 {
			defer cancel()
			g, err := r.World().Split(r.ctx, 0, 0)
			r.ok(err)
			g.Abort()
			r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
			await(t, "the fault of the group", func() bool {
				return strings.Contains(faults(viewOf(t, r.Runtime)), "aborted")
			})
			return
		}

		g, err := r.World().Split(r.ctx, 0, 0)
		r.ok(err)
		for ctx.Err() == nil {
			viewOf(t, r.Runtime)
		}

		r.wantErr(g.Cause(r.ctx), symmem.ErrAborted)
	})
}

func faults(m live.Machine) string {
	var b strings.Builder
	for i := range m.Ranks {
		for k := range m.Ranks[i].Groups {
			b.WriteString(m.Ranks[i].Groups[k].Fault)
		}
	}

	return b.String()
}

func TestLiveViewHasLatestEvents(t *testing.T) {
	rt := openAlone(t)
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	if err != nil {
		t.Fatal(err)
	}

	if err := p.Reserve(t.Context(), 4096, rt.World()); err != nil {
		t.Fatal(err)
	}

	for range 5 {
		b, err := p.Alloc(1000)
		if err == nil {
			err = b.Free()
		}

		if err != nil {
			t.Fatal(err)
		}
	}

	position := p.Stats().Events
	for events, want := range map[int]uint64{0: 0, 3: 3, 8192: position} {
		w := httptest.NewRecorder()
		rt.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet,
			fmt.Sprintf("/debug/symmem?events=%d", events), nil))
		var m live.Machine
		if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
			t.Fatal(err)
		}

		all := m.Ranks[0].Pools
		got := all[slices.IndexFunc(all, func(p live.Pool) bool { return p.Domain == "world" })]
		if uint64(len(got.Recent)) != want || want > 0 && (got.First != position-want ||
			got.Recent[want-1][0] != int64(event.KindFree) || len(got.Registered) != 1) {
			t.Errorf("with events=%d of %d, pool = %+v; want %d events that end with a free, and 1 window",
				events, position, got, want)
		}
	}
}
