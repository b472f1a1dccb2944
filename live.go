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

// With Options.HTTP, each rank serves web pages about its state: the live view. Open creates the
// socket of each rank. When the sockets of all ranks exist, the lowest rank of each machine also
// serves the pages of that machine's ranks at the TCP address in Options.HTTP.
//
// Among other things, the pages show how long collectives take. A group counts and times its calls
// separately for each operation, path (the way in which a call runs) and range of sizes. For
// example, an AllReduce of 5000 bytes belongs to the sizes from 4096 to 8191.

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

// liveView serves the web pages of this rank.
type liveView struct {
	rt       *Runtime
	openTime time.Time
	server   *live.Server // nil without Options.HTTP, or if it could not be opened
	// countsCalls is set if groups must count and time the calls that they prepare from now on.
	countsCalls atomic.Bool
	// isReady is set once Open has initialized the Runtime. Until then, the pages are almost empty.
	isReady atomic.Bool
}

// open creates this rank's socket if Options.HTTP is set. If that fails, it only logs a warning:
// the Runtime works without the pages.
func (v *liveView) open(ctx context.Context) {
	v.openTime = time.Now()
	if v.rt.opts.HTTP == "" {
		return
	}

	v.countsCalls.Store(true)
	var err error
	v.server, err = v.openServer(ctx)
	if err != nil {
		v.rt.opts.logger().Warn("symmem: there is no live view of this rank: "+err.Error(),
			"rank", v.rt.rank)
	}
}

func (v *liveView) openServer(ctx context.Context) (*live.Server, error) {
	job, err := v.agreeOnJobName(ctx)
	if err != nil {
		return nil, err
	}

	return live.Open(live.Config{
		Job: job, Rank: v.rt.rank, Address: v.rt.opts.HTTP, Token: os.Getenv(envHTTPToken),
		Snapshot: v.snapshot, Log: v.rt.opts.logger(),
	})
}

// agreeOnJobName returns a random name for the folder of the job's sockets. It is the same on all
// ranks, unless their store (through which ranks find each other) is not a driver.Chooser.
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

// close closes the server. If that fails, it logs a warning.
func (v *liveView) close() {
	if v.server == nil {
		return
	}

	if err := v.server.Close(); err != nil {
		v.rt.opts.logger().Warn("symmem: closing the live view: " + err.Error())
	}
}

// handler returns a handler for the web pages, and makes groups count all calls from now on.
func (v *liveView) handler() http.Handler {
	hadCounted := v.countsCalls.Swap(true)
	if !hadCounted {
		for _, g := range v.rt.registry.allGroups() {
			// Groups keep prepared calls, which are not counted. Prepare them again.
			g.windows.makePlansStale()
		}
	}

	if v.server != nil {
		return v.server.Handler()
	}

	return live.NewHandler(v.snapshot)
}

// callClocks counts and times the calls of a group.
type callClocks struct {
	clocksByKey sync.Map // clockKey -> *clockPair
}

// clockKey identifies calls that are counted together.
type clockKey struct {
	operation driver.Operation
	path      driver.Path
	sizeBits  int // number of bits of the size in bytes: 13 for 4096 to 8191, and 0 for size 0
}

// clockPair measures the calls with one clockKey.
type clockPair struct {
	submitClock driver.CallTimer // how long the submission of a call takes
	runClock    driver.CallTimer // how long the backend runs a call; used only if isTimed is set
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

// summarize returns the measurements, sorted by operation, path and size.
func (c *callClocks) summarize() []live.Calls {
	summaries := []live.Calls{} // not nil, so that JSON has a list
	for k, value := range c.clocksByKey.Range {
		key, clocks := k.(clockKey), value.(*clockPair)
		summaries = append(summaries, clocks.summarize(key))
	}

	slices.SortFunc(summaries, func(a, b live.Calls) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.MinBytes, b.MinBytes))
	})
	return summaries
}

// summarize returns the measurements of the calls with a key.
func (c *clockPair) summarize(key clockKey) live.Calls {
	submit := c.submitClock.Read()
	summary := live.Calls{
		Operation: key.operation.String(), Path: key.path.String(), MaxBytes: 1 << key.sizeBits,
		Calls: submit.Calls, Bytes: submit.Bytes, Submit: newTimes(submit),
	}
	if key.sizeBits > 0 {
		summary.MinBytes = 1 << (key.sizeBits - 1)
	}

	if c.isTimed.Load() {
		run := newTimes(c.runClock.Read())
		summary.Run = &run
	}

	return summary
}

func newTimes(r driver.CallTimes) live.Times {
	return live.Times{
		Samples: r.Samples, Seconds: r.Time.Seconds(), RecentSeconds: r.RecentTime.Seconds(),
		RecentBytes: r.RecentBytes,
	}
}
