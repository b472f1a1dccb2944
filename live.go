package symmem

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"math/bits"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/live"
)

const (
	envHTTP      = "SYMMEM_HTTP"       // sets Options.HTTP
	envHTTPToken = "SYMMEM_HTTP_TOKEN" // access token of the web pages; random by default
)

// checkHTTP checks Options.HTTP.
func checkHTTP(address string) error {
	if address == "" {
		return nil
	}

	if err := live.CheckAddress(address); err != nil {
		return fmt.Errorf("HTTP address: %w: %w", err, ErrInvalid)
	}

	return nil
}

// liveView serves web pages about this rank's state.
type liveView struct {
	rt       *Runtime
	openTime time.Time
	server   *live.Server // nil without Options.HTTP, or if it could not be opened
	// countsCalls is set if new plans (prepared calls) must count and time their runs.
	countsCalls atomic.Bool
	// isReady is set once Open has initialized the Runtime. Until then, snapshots are almost empty.
	isReady atomic.Bool
}

// open creates the socket of this rank's web pages if Options.HTTP is set. If that fails, it only
// logs a warning: the Runtime works without the pages.
func (v *liveView) open(ctx context.Context) {
	v.openTime = time.Now()
	if v.rt.opts.HTTP == "" {
		return
	}

	v.countsCalls.Store(true)
	job, err := v.agreeOnJobName(ctx)
	if err == nil {
		config := live.Config{
			Job: job, Rank: v.rt.rank, Address: v.rt.opts.HTTP, Token: os.Getenv(envHTTPToken),
			Snapshot: v.snapshot, Log: v.rt.opts.logger(),
		}
		v.server, err = live.Open(config)
	}

	if err != nil {
		v.rt.opts.logger().Warn("symmem: there is no live view of this rank: "+err.Error(),
			"rank", v.rt.rank)
	}
}

// agreeOnJobName returns a random name. It is the same on all ranks, unless their store is not a
// driver.Chooser.
func (v *liveView) agreeOnJobName(ctx context.Context) (string, error) {
	store, canChoose := v.rt.rankLists.store.(driver.Chooser)
	if !canChoose {
		return rand.Text(), nil
	}

	// The first rank's proposal becomes the value of the key "live". All ranks get that value.
	proposal := []byte(rand.Text())
	name, err := store.CompareSet(ctx, "live", nil, proposal)
	if err != nil {
		return "", fmt.Errorf("agreeing on the name of the job: %w", err)
	}

	return string(name), nil
}

// start starts the server. Call it after all ranks have created their sockets.
func (v *liveView) start() {
	v.isReady.Store(true)
	if v.server != nil {
		v.server.Start()
	}
}

func (v *liveView) close() {
	if v.server != nil {
		if err := v.server.Close(); err != nil {
			v.rt.opts.logger().Warn("symmem: closing the live view: " + err.Error())
		}
	}
}

// handler returns a handler for the web pages, and makes plans count calls from now on.
func (v *liveView) handler() http.Handler {
	hadCounted := v.countsCalls.Swap(true)
	if !hadCounted {
		for _, g := range v.rt.registry.allGroups() {
			g.windows.makePlansStale() // existing plans do not count: prepare them again
		}
	}

	if v.server != nil {
		return v.server.Handler()
	}

	return live.NewHandler(v.snapshot)
}

// callClocks measures a group's calls, by operation, path (the way in which a call runs) and size.
type callClocks struct {
	clocksByKey sync.Map // clockKey -> *clockPair
}

type clockKey struct {
	operation driver.Operation
	path      driver.Path
	sizeBits  int // n for sizes in bytes from 1<<(n-1) to 1<<n - 1, and 0 for size 0
}

// clockPair measures the calls with one clockKey.
type clockPair struct {
	submitClock driver.CallTimer // times of submissions
	runClock    driver.CallTimer // times of executions by the backend, if isTimed is set
	isTimed     atomic.Bool
}

// addMeters makes a prepared call report its times to the clocks of its key.
func (c *callClocks) addMeters(call *collective, path driver.Path) {
	bytes := call.described.Bytes
	key := clockKey{
		operation: call.operation, path: path, sizeBits: bits.Len64(uint64(bytes)),
	}
	value, _ := c.clocksByKey.LoadOrStore(key, new(clockPair))
	clocks := value.(*clockPair)
	call.submit = clocks.submitClock.Meter(bytes)
	timedPlan, canTime := call.plan.(driver.Timed)
	if canTime && !call.operation.PointToPoint() {
		timedPlan.SetMeter(clocks.runClock.MeterWithoutBytes(bytes))
		clocks.isTimed.Store(true)
	}
}

// summarize returns the measurements, sorted by key.
func (c *callClocks) summarize() []live.Calls {
	summaries := []live.Calls{} // not nil, so that JSON has a list
	for k, value := range c.clocksByKey.Range {
		key, clocks := k.(clockKey), value.(*clockPair)
		submit := clocks.submitClock.Read()
		calls := live.Calls{
			Operation: key.operation.String(), Path: key.path.String(), MaxBytes: 1 << key.sizeBits,
			Calls: submit.Calls, Bytes: submit.Bytes, Submit: newTimes(submit),
		}
		if key.sizeBits > 0 {
			calls.MinBytes = 1 << (key.sizeBits - 1)
		}

		if clocks.isTimed.Load() {
			run := newTimes(clocks.runClock.Read())
			calls.Run = &run
		}

		summaries = append(summaries, calls)
	}

	slices.SortFunc(summaries, func(a, b live.Calls) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.MinBytes, b.MinBytes))
	})
	return summaries
}

func newTimes(r driver.CallTimes) live.Times {
	return live.Times{
		Samples: r.Samples, Seconds: r.Time.Seconds(), RecentSeconds: r.RecentTime.Seconds(),
		RecentBytes: r.RecentBytes,
	}
}
