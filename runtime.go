package symmem

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/ledger"
	"symmem/internal/ranked"
	"symmem/internal/rendezvous"
)

// Runtime represents this process as a rank. It owns the rank's device, groups, pools and streams,
// and is safe for concurrent use.
type Runtime struct {
	opts      Options
	source    string
	rank      int
	size      int
	device    driver.Device
	level     atomic.Int32 // a CheckLevel
	local     *Pool        // pool without a domain, for disabled scopes
	stream    *Stream
	observers observers
	stepGuard bool // whether Step makes comparisons
	recording recording
	live      liveView
	sites     callSites
	// adoptedIdle holds the argument of SetIdle.
	adoptedIdle atomic.Bool

	mu        ranked.Mutex[runtimeMu] // also guards fields of the structs below
	adopted   []*AdoptedCommunicator  // replaced rather than modified; guarded by mu
	creation  creation
	registry  registry
	streams   streamList
	captures  captures
	monitor   rankMonitor
	rankLists rankLists
}

func newRuntime(
	opts Options, w *rendezvous.World, store driver.Store, watcher rankWatcher,
) *Runtime {
	rt := &Runtime{opts: opts, source: string(w.Source), rank: w.Rank, size: w.Size}
	rt.creation.mu = &rt.mu
	rt.creation.life, rt.creation.cancel = context.WithCancelCause(context.Background())
	rt.observers.mu = &rt.mu
	rt.registry.mu, rt.registry.context = &rt.mu, rt.creation.life
	rt.streams.mu = &rt.mu
	rt.captures.mu, rt.captures.timeout = &rt.mu, closeTimeout(opts.Timeout)
	rt.monitor = rankMonitor{watcher: watcher, mu: &rt.mu}
	rt.rankLists = rankLists{store, w.Rank, w.Size}
	rt.recording.onEvent, rt.recording.mu = opts.OnEvent != nil, &rt.mu
	rt.live.rt = rt
	rt.sites.names = ledger.NewSites()
	rt.stepGuard = os.Getenv(envStepGuard) != "0"
	return rt
}

// Open finds the other ranks, opens this rank's device and joins the world. It is collective: it
// returns once all ranks have called it. If some ranks do not, the error names them.
//
// A process may be a rank of several worlds, each with a separate Runtime and Options.Store. A
// fault in one of them does not affect the others.
func Open(ctx context.Context, opts Options) (*Runtime, error) {
	ctx = orBackground(ctx)
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("opening symmem: %w", err)
	}
	w, err := rendezvous.Discover(os.LookupEnv, opts.rendezvous())
	if err != nil {
		return nil, fmt.Errorf("opening symmem: %w", err)
	}
	ctx, cancel := opts.withTimeout(ctx)
	defer cancel()
	w.Late = opts.absenceWarner("meeting all ranks")
	w.LateToLeave = opts.absenceWarner("leaving, with the store that this rank serves for the others")
	store, member, err := rendezvous.Connect(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("opening symmem: %w", toRankError(err))
	}
	opts.LocalRank = w.LocalRank
	rt, err := newRuntime(opts, &w, store, member).start(ctx)
	if err == nil && !rt.device.Info().Addressable {
		rt.captures.share()
	}
	return rt, err
}

// OpenLocal opens a world of n ranks in this process, for tests and examples. Use each Runtime on a
// separate goroutine, because ranks wait for each other as if they were processes.
func OpenLocal(ctx context.Context, n int, opts Options) ([]*Runtime, error) {
	ctx = orBackground(ctx)
	opts, err := opts.withDefaults()
	if n < 1 {
		err = errors.Join(err, invalid("opening %d local ranks", n))
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := opts.withTimeout(ctx)
	defer cancel()
	store := rendezvous.NewLocal()
	members := &localWorld{store: store}
	members.openCount.Store(int32(n))
	runtimes, errs := make([]*Runtime, n), make([]error, n)
	var opening sync.WaitGroup
	for r := range n {
		opening.Go(func() {
			o := opts
			o.Rank, o.Size, o.LocalRank = r, n, r
			w := rendezvous.World{Source: "one process", Rank: r, Size: n}
			runtimes[r], errs[r] = newRuntime(o, &w, store, members).start(ctx)
		})
	}
	opening.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, rt := range runtimes {
			if rt != nil {
				rt.Close()
			}
		}
		return nil, err
	}
	return runtimes, nil
}

func (rt *Runtime) start(ctx context.Context) (*Runtime, error) {
	if err := rt.open(ctx); err != nil {
		rt.monitor.recordResult(err)
		return nil, errors.Join(fmt.Errorf("opening rank %d of %d: %w", rt.rank, rt.size, err),
			rt.Close())
	}
	return rt, nil
}

func (rt *Runtime) open(ctx context.Context) error {
	b, err := chosenBackend(rt.opts.Backend)
	if err != nil {
		return err
	}
	if err := rt.recording.open(&rt.opts, rt.rank, rt.size); err != nil {
		return err
	}
	rt.live.open(ctx)
	all := make([]int, rt.size)
	for r := range all {
		all[r] = r
	}
	err = rt.monitor.runWithRanks(ctx, "opening symmem", all, func(ctx context.Context) (err error) {
		rt.device, err = b.Open(ctx, driver.Config{
			Rank: rt.rank, Size: rt.size, LocalRank: rt.opts.LocalRank,
			Device: int(rt.opts.Device), Store: rt.rankLists.store, Timeout: rt.opts.Timeout,
			Scatter: rt.opts.Scatter,
			Late:    rt.opts.lateSettings(), Interrupted: wrapInterrupted(rt.opts.Interrupted),
		})
		return err
	})
	if err != nil {
		return err
	}
	rt.level.Store(int32(rt.opts.Check.resolve(rt.device.Info().CheckIsFree)))
	if rt.stream, err = rt.NewStream(); err != nil {
		return err
	}
	world, err := rt.connect(ctx, roster{
		fullID: "world", ranks: all, rank: rt.rank, limit: driver.NewLimit(rt.opts.Timeout),
	})
	if err != nil {
		return err
	}
	rt.registry.world = world
	rt.monitor.observer, _ = world.comm.(driver.EndObserver)
	if rt.local, err = rt.NewPool(PoolOptions{}); err != nil {
		return err
	}
	rt.live.start()
	return nil
}

// Rank returns this rank's number in the world.
func (rt *Runtime) Rank() int { return rt.rank }

// Size returns the number of ranks in the world.
func (rt *Runtime) Size() int { return rt.size }

// Source returns how the ranks were configured, such as "torchrun".
func (rt *Runtime) Source() string { return rt.source }

// World returns the group of all ranks, which is closed with the Runtime.
func (rt *Runtime) World() *Group { return rt.registry.world }

// Device describes the device.
func (rt *Runtime) Device() DeviceInfo {
	info, ordinal := rt.device.Info(), -1
	if numbered, ok := rt.device.(driver.Numbered); ok {
		ordinal = numbered.Ordinal()
	}
	return DeviceInfo{
		Backend: info.Backend, Name: info.Name, Ordinal: ordinal, Granularity: info.Granularity,
		Addressable: info.Addressable, CheckIsFree: info.CheckIsFree,
	}
}

// DeviceInfo describes a device.
type DeviceInfo struct {
	Backend, Name string
	// Ordinal is the number of the device among those that the process sees. It is -1 on the host
	// backend.
	Ordinal int
	// Granularity is the unit of segment sizes in bytes, a power of two.
	Granularity int64
	// Addressable reports whether the CPU can read and write device memory directly.
	Addressable bool
	// CheckIsFree reports whether comparing every collective costs nothing. If so, CheckEvery is
	// the default.
	CheckIsFree bool
}

// Check returns the current check level.
func (rt *Runtime) Check() CheckLevel { return CheckLevel(rt.level.Load()) }

// Formula returns the formula of reductions; see Options.Deterministic.
func (rt *Runtime) Formula() Formula { return rt.opts.Deterministic }

// Close leaves every group and releases all memory without live buffers; for live buffers, see
// Pool.Close. A second Close does nothing.
//
// Close waits for queued work for at most twice Options.Timeout. If the work takes longer, Close
// may wait equally long for each group with collectives queued behind that work, and for each pool
// that is used by a call.
//
// Close waits for other ranks in two cases only. If a group has failed and no call has returned the
// fault yet, the ranks first determine the cause, as in Group.Close. The rank that serves the store
// also waits for the other ranks to leave or end, for at least 1 s. This wait ends when
// Options.Timeout has passed since the beginning of Close, or when the context of Interop.Close
// ends.
func (rt *Runtime) Close() error { return rt.close(context.Background()) }

// close implements Close. When the context ends, it stops waiting for other ranks to leave.
func (rt *Runtime) close(ctx context.Context) error {
	if !rt.creation.close() {
		return nil
	}
	due := time.Now().Add(rt.opts.Timeout)
	rt.creation.await(due)
	groups, pools := rt.registry.allGroups(), rt.registry.allPools()
	errs := rt.streams.close()
	for i, err := range errs {
		errs[i] = asTimeoutError(err, rt.opts.Timeout)
	}
	for _, g := range slices.Backward(groups) {
		errs = append(errs, g.Close())
	}
	for _, p := range pools {
		errs = append(errs, p.closeAfter(func(context.Context) error { return nil }))
	}
	rt.captures.unshare()
	rt.live.close()
	if rt.device != nil {
		errs = append(errs, rt.device.Close())
	}
	errs = append(errs, rt.monitor.leaveWorld(ctx, due))
	deliverAll(rt)
	errs = append(errs, rt.recording.close())
	return joinWithoutDuplicates(errs...)
}

// NewStream creates a stream, which is closed with the Runtime.
func (rt *Runtime) NewStream() (*Stream, error) {
	return rt.addStream(func() (driver.Stream, driver.AdoptedStream, error) {
		queue, err := rt.device.NewStream()
		return queue, nil, err
	})
}

// DefaultStream returns the stream that calls use if their stream is nil.
func (rt *Runtime) DefaultStream() *Stream { return rt.stream }

// NewEvent creates an event. Until a stream records it, Event.Done returns true.
func (rt *Runtime) NewEvent() (*Event, error) {
	if err := rt.creation.closedError(); err != nil {
		return nil, err
	}
	mark, err := rt.device.NewEvent()
	if err != nil {
		return nil, fmt.Errorf("creating an event: %w", err)
	}
	return &Event{rt: rt, mark: mark}, nil
}

func (rt *Runtime) addStream(
	open func() (driver.Stream, driver.AdoptedStream, error),
) (*Stream, error) {
	if err := rt.creation.beginCall(); err != nil {
		return nil, err
	}
	defer rt.creation.endCall()
	queue, adopted, err := open()
	if err != nil {
		return nil, fmt.Errorf("creating a stream: %w", err)
	}
	s := &Stream{rt: rt, queue: queue, adopted: adopted}
	if err := rt.streams.add(s); err != nil {
		if adopted == nil {
			err = errors.Join(err, queue.Close())
		}
		return nil, err
	}
	return s, nil
}

// Interop returns the functions for bindings to other languages and for other libraries.
func (rt *Runtime) Interop() Interop { return Interop{rt: rt} }

// Stats describes the Runtime and its open pools and groups. Pools are in the order of their
// creation; the first is the pool of disabled scopes.
func (rt *Runtime) Stats() Stats {
	s := Stats{
		Rank: rt.rank, Size: rt.size, Backend: rt.device.Info().Backend,
		Check: rt.Check().String(), Formula: rt.Formula().String(),
		Groups: map[string]GroupStats{},
	}
	for _, p := range rt.registry.allPools() {
		s.Pools = append(s.Pools, p.Stats())
	}
	for _, g := range rt.registry.allGroups() {
		s.Groups[g.id] = g.Stats()
	}
	return s
}

// Handler returns an HTTP handler that serves the live view: a page at "/", metrics for Prometheus
// at "/metrics" and JSON at "/debug/symmem". With Options.HTTP it shows all ranks of the machine;
// without it, only this rank, and calls are counted from the first call of Handler. The handler is
// read-only and checks no token, so the program must control who can reach it. It may be used
// concurrently and after Close.
func (rt *Runtime) Handler() http.Handler { return rt.live.handler() }

// SetCheck changes the check level for all groups. It is collective over the world, and every rank
// must pass the same level. In each group, all ranks must make the same collectives before the
// call. Earlier differences remain undetected until the next comparison of histories.
func (rt *Runtime) SetCheck(ctx context.Context, l CheckLevel) error {
	ctx = orBackground(ctx)
	if l <= CheckDefault || l > CheckEvery {
		return invalid("check level %d cannot be set", l)
	}
	g := rt.registry.world
	g.mu.Lock()
	err := g.comparison.agree(ctx, "check level "+l.String())
	g.mu.Unlock()
	if err != nil {
		return fmt.Errorf("setting the check level: %w", err)
	}
	rt.level.Store(int32(l))
	for _, g := range rt.registry.allGroups() {
		g.comm.SetCheck(l == CheckEvery)
		g.comparison.startInBackground()
	}
	return nil
}

// Library returns the name and version of the library that runs the collectives, such as "NCCL
// 2.28.9", or "" if symmem runs them.
func (rt *Runtime) Library() string {
	if l, ok := rt.device.(driver.Versioned); ok {
		return l.Library()
	}
	return ""
}
