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

// envHTTP provides Options.HTTP if the program does not set it.
const envHTTP = "SYMMEM_HTTP"

// envHTTPToken holds the token of the live view. If it is not set, the token is random.
const envHTTPToken = "SYMMEM_HTTP_TOKEN"

func checkHTTP(address string) error {
	if address == "" {
		return nil
	}
	if err := live.CheckAddress(address); err != nil {
		return fmt.Errorf("HTTP address: %w: %w", err, ErrInvalid)
	}
	return nil
}

type liveView struct {
	rt     *Runtime
	opened time.Time
	server *live.Server // nil without Options.HTTP
	// counting is set if new plans must count their calls.
	counting atomic.Bool
	// ready is set once Open has initialized the Runtime, so that snapshots can read its fields.
	ready atomic.Bool
}

// open creates this rank's socket for the live view. If that fails, open only logs a warning.
func (v *liveView) open(ctx context.Context) {
	v.opened = time.Now()
	if v.rt.opts.HTTP == "" {
		return
	}
	v.counting.Store(true)
	job, err := v.agreeOnJob(ctx)
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

// agreeOnJob returns the job's random name, which the first rank with a live view chooses.
func (v *liveView) agreeOnJob(ctx context.Context) (string, error) {
	store, ok := v.rt.rankLists.store.(driver.Chooser)
	if !ok {
		return rand.Text(), nil
	}
	name, err := store.CompareSet(ctx, "live", nil, []byte(rand.Text()))
	if err != nil {
		return "", fmt.Errorf("agreeing on the name of the job: %w", err)
	}
	return string(name), nil
}

// start begins to serve the TCP address. By then, all ranks must have created their sockets.
func (v *liveView) start() {
	v.ready.Store(true)
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
	if !v.counting.Swap(true) {
		for _, g := range v.rt.registry.allGroups() {
			g.windows.makePlansStale() // so that the group makes new plans, which count their calls
		}
	}
	if v.server != nil {
		return v.server.Handler()
	}
	return live.NewHandler(v.snapshot)
}

type callClocks struct {
	all sync.Map // clockKey -> *clocks
}

type clockKey struct {
	operation driver.Operation
	path      driver.Path
	size      int // bit length of the size in bytes
}

type clocks struct {
	submit, run driver.Clock
	// timed is set if the backend measures how long the calls run.
	timed atomic.Bool
}

func (m *callClocks) measure(c *collective, path driver.Path) {
	bytes := c.described.Bytes
	key := clockKey{c.operation, path, bits.Len64(uint64(bytes))}
	found, _ := m.all.LoadOrStore(key, new(clocks))
	k := found.(*clocks)
	c.submit = k.submit.Meter(bytes)
	if timed, ok := c.plan.(driver.Timed); ok && !c.operation.PointToPoint() {
		timed.SetMeter(k.run.MeterWithoutSum(bytes))
		k.timed.Store(true)
	}
}

func (m *callClocks) read() []live.Calls {
	all := []live.Calls{}
	m.all.Range(func(key, value any) bool {
		k, c := key.(clockKey), value.(*clocks)
		submit := c.submit.Read()
		calls := live.Calls{
			Operation: k.operation.String(), Path: k.path.String(), MaxBytes: 1 << k.size,
			Calls: submit.Calls, Bytes: submit.Bytes, Submit: timesOf(submit),
		}
		if k.size > 0 {
			calls.MinBytes = 1 << (k.size - 1)
		}
		if c.timed.Load() {
			run := timesOf(c.run.Read())
			calls.Run = &run
		}
		all = append(all, calls)
		return true
	})
	slices.SortFunc(all, func(a, b live.Calls) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.MinBytes, b.MinBytes))
	})
	return all
}

func timesOf(r driver.ClockReading) live.Times {
	return live.Times{
		Samples: r.Samples, Seconds: r.Time.Seconds(), RecentSeconds: r.RecentTime.Seconds(),
		RecentBytes: r.RecentBytes,
	}
}
