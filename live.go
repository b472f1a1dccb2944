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

func checkHTTP(address string) error {
	if address == "" {
		return nil
	}

	if err := live.CheckAddress(address); err != nil {
		return fmt.Errorf("HTTP address: %w: %w", err, ErrInvalid)
	}

	return nil
}

// liveView serves web pages about this rank's state through a Unix socket. The lowest rank of each
// machine also serves the pages of the machine's ranks at the TCP address in Options.HTTP.
type liveView struct {
	rt          *Runtime
	openTime    time.Time
	server      *live.Server // nil without Options.HTTP, or if open failed
	countsCalls atomic.Bool  // makes newly prepared calls count and time themselves
	isReady     atomic.Bool  // false until start; the pages are then almost empty
}

// open creates this rank's socket if Options.HTTP is set. Errors are only logged, because the
// Runtime works without the pages.
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

// agreeOnJobName returns a random name for the directory of the job's sockets. All ranks get the
// same name.
func (v *liveView) agreeOnJobName(ctx context.Context) (string, error) {
	const key = "live"
	var missing []byte // only the first rank finds no value and stores its proposal
	proposal := []byte(rand.Text())
	name, err := v.rt.rankLists.store.CompareSet(ctx, key, missing, proposal)
	if err != nil {
		return "", fmt.Errorf("agreeing on the name of the job: %w", err)
	}

	return string(name), nil
}

// start must be called after all ranks have created their sockets.
func (v *liveView) start() {
	v.isReady.Store(true)
	if v.server != nil {
		v.server.Start()
	}
}

func (v *liveView) close() {
	if v.server == nil {
		return
	}

	if err := v.server.Close(); err != nil {
		v.rt.opts.logger().Warn("symmem: closing the live view: " + err.Error())
	}
}

// handler returns a handler for the web pages, and starts to count calls.
func (v *liveView) handler() http.Handler {
	v.startCountingCalls()
	if v.server != nil {
		return v.server.Handler()
	}

	return live.NewHandler(v.snapshot)
}

func (v *liveView) startCountingCalls() {
	wasCounting := v.countsCalls.Swap(true)
	if wasCounting {
		return
	}

	for _, g := range v.rt.registry.allGroups() {
		g.windows.makePlansStale() // calls prepared so far do not count themselves
	}
}

// callClocks counts and times the calls of a group, by operation, path and size.
type callClocks struct {
	clocksByKey sync.Map // clockKey -> *clockPair
}

type clockKey struct {
	operation driver.Operation
	path      driver.Path
	sizeBits  int // bits.Len64 of the size in bytes, for example 13 for 4096 to 8191
}

// clockPair measures the calls with one clockKey.
type clockPair struct {
	submitClock driver.CallTimer // time until a call returns
	runClock    driver.CallTimer // time that the backend takes to run the work of a call
	isRunTimed  atomic.Bool      // whether runClock is used
}

// addMeters makes a prepared call report its times. The runs of messages are not timed.
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
		clocks.isRunTimed.Store(true)
	}
}

// summarize returns the measurements, sorted by operation, path and size.
func (c *callClocks) summarize() []live.Calls {
	summaries := []live.Calls{} // not nil: JSON needs [] instead of null
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

func (c *clockPair) summarize(key clockKey) live.Calls {
	submit := c.submitClock.Read()
	summary := live.Calls{
		Operation: key.operation.String(), Path: key.path.String(), MaxBytes: 1 << key.sizeBits,
		Calls: submit.Calls, Bytes: submit.Bytes, Submit: newTimes(submit),
	}
	if key.sizeBits > 0 {
		summary.MinBytes = 1 << (key.sizeBits - 1)
	}

	if c.isRunTimed.Load() {
		run := newTimes(c.runClock.Read())
		summary.Run = &run
	}

	return summary
}

func newTimes(measured driver.CallTimes) live.Times {
	return live.Times{
		Samples: measured.Samples, Seconds: measured.Time.Seconds(),
		RecentSeconds: measured.RecentTime.Seconds(), RecentBytes: measured.RecentBytes,
	}
}
