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

// liveView serves web pages about this rank's state.
type liveView struct {
	rt       *Runtime
	openTime time.Time
	server   *live.Server // nil without Options.HTTP
	// countsCalls makes new plans (prepared calls) count how often they run.
	countsCalls atomic.Bool
	isReady     atomic.Bool // Open has initialized the Runtime, so snapshots can read it
}

// open creates this rank's socket, or logs a warning.
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

// agreeOnJobName returns a random name, the same on all ranks.
func (v *liveView) agreeOnJobName(ctx context.Context) (string, error) {
	store, isChooser := v.rt.rankLists.store.(driver.Chooser)
	if !isChooser {
		return rand.Text(), nil
	}
	name, err := store.CompareSet(ctx, "live", nil, []byte(rand.Text()))
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
	if v.server != nil {
		if err := v.server.Close(); err != nil {
			v.rt.opts.logger().Warn("symmem: closing the live view: " + err.Error())
		}
	}
}

func (v *liveView) handler() http.Handler {
	if !v.countsCalls.Swap(true) {
		for _, g := range v.rt.registry.allGroups() {
			g.windows.makePlansStale() // because existing plans do not count their calls
		}
	}
	if v.server != nil {
		return v.server.Handler()
	}
	return live.NewHandler(v.snapshot)
}

// callClocks measures calls, grouped by operation, path and size.
type callClocks struct {
	clocksByKey sync.Map // clockKey -> *clockPair
}

type clockKey struct {
	operation driver.Operation
	path      driver.Path
	sizeBits  int // number of bits of the size in bytes
}

type clockPair struct {
	submitClock, runClock driver.CallTimer
	isTimed               atomic.Bool // runClock has measurements
}

func (c *callClocks) addMeters(call *collective, path driver.Path) {
	bytes := call.described.Bytes
	key := clockKey{call.operation, path, bits.Len64(uint64(bytes))}
	value, _ := c.clocksByKey.LoadOrStore(key, new(clockPair))
	clock := value.(*clockPair)
	call.submit = clock.submitClock.Meter(bytes)
	if timedPlan, isTimed := call.plan.(driver.Timed); isTimed && !call.operation.PointToPoint() {
		timedPlan.SetMeter(clock.runClock.MeterWithoutBytes(bytes))
		clock.isTimed.Store(true)
	}
}

func (c *callClocks) summarize() []live.Calls {
	summaries := []live.Calls{}
	c.clocksByKey.Range(func(k, value any) bool {
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
		return true
	})
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
