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
// machine also serves the pages of all ranks of the machine at the TCP address in Options.HTTP.
type liveView struct {
	rt          *Runtime
	openTime    time.Time
	server      *live.Server // nil without Options.HTTP, or if open failed
	countsCalls atomic.Bool  // whether calls prepared from now on are counted and timed
	isReady     atomic.Bool  // set by start; until then, the pages are almost empty
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
	var noValue []byte
	proposal := []byte(rand.Text())
	// The first rank finds no value and stores its proposal. The others get that proposal.
	name, err := v.rt.rankLists.store.CompareSet(ctx, key, noValue, proposal)
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
		g.windows.makePlansStale() // calls prepared again are counted
	}
}

// callTimers counts and times the calls of a group.
type callTimers struct {
	timersByKey sync.Map // timerKey -> *timerPair
}

type timerKey struct {
	operation driver.Operation
	path      driver.Path
	sizeBits  int // bits.Len64 of the bytes of a call: for example, 13 for 4096 to 8191
}

// timerPair measures the calls with one timerKey.
type timerPair struct {
	submit     driver.CallTimer // time until a call returns
	run        driver.CallTimer // time that the backend takes to run the work of a call
	isRunTimed atomic.Bool      // false for messages, and if the backend cannot time work
}

// add attaches timers to a prepared call, for all its later uses.
func (c *callTimers) add(call *collective, path driver.Path) {
	bytes := call.described.Bytes
	key := timerKey{
		operation: call.operation, path: path, sizeBits: bits.Len64(uint64(bytes)),
	}
	value, _ := c.timersByKey.LoadOrStore(key, new(timerPair))
	timers := value.(*timerPair)
	call.submit = timers.submit.Meter(bytes)
	timedPlan, canTime := call.plan.(driver.Timed)
	if canTime && !call.operation.PointToPoint() {
		timedPlan.SetMeter(timers.run.MeterWithoutBytes(bytes)) // submit has counted the bytes
		timers.isRunTimed.Store(true)
	}
}

// summarize returns the measurements, sorted by operation, path and size.
func (c *callTimers) summarize() []live.Calls {
	summaries := []live.Calls{} // not nil: JSON needs [] instead of null
	for k, value := range c.timersByKey.Range {
		key, timers := k.(timerKey), value.(*timerPair)
		summaries = append(summaries, timers.summarize(key))
	}

	slices.SortFunc(summaries, func(a, b live.Calls) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.MinBytes, b.MinBytes))
	})
	return summaries
}

func (t *timerPair) summarize(key timerKey) live.Calls {
	submit := t.submit.Read()
	summary := live.Calls{
		Operation: key.operation.String(), Path: key.path.String(), MaxBytes: 1 << key.sizeBits,
		Calls: submit.Calls, Bytes: submit.Bytes, Submit: newTimes(submit),
	}
	if key.sizeBits > 0 {
		summary.MinBytes = 1 << (key.sizeBits - 1)
	}

	if t.isRunTimed.Load() {
		run := newTimes(t.run.Read())
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
