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

// envHTTP is the variable that provides Options.HTTP if the program does not set it.
const envHTTP = "SYMMEM_HTTP"

// envHTTPToken is the variable that holds the token of the live view. If it is not set, the token
// is random.
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
	// counting reports whether new plans count their calls.
	counting atomic.Bool
	// ready reports whether the fields of the Runtime are set.
	ready atomic.Bool
}

// open creates this rank's socket. If that fails, the program runs without a live view.
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

// start begins to serve the TCP address. It is called once the Runtime is open, because all ranks
// have created their sockets by then.
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
			g.windows.revise() // makes the group replace its plans with plans that count
		}
	}
	if v.server != nil {
		return v.server.Handler()
	}
	return live.NewHandler(v.snapshot)
}

// callClocks holds the clocks of a group's calls. It is empty without a live view.
type callClocks struct {
	all sync.Map // clockKey -> *clocks
}

// clockKey identifies the calls of one operation on one path, in a range of sizes.
type clockKey struct {
	operation driver.Operation
	path      driver.Path
	size      int // bit length of the size in bytes
}

// clocks measures the calls with the same key.
type clocks struct {
	submit, run driver.Clock
	// timed reports whether the backend measures run times.
	timed atomic.Bool
}

// attach makes the calls of a new plan update the clocks for the plan's operation, path and size.
func (m *callClocks) attach(c *collective, path driver.Path) {
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

// read returns the readings of all clocks in a fixed order.
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
