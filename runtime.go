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
	source    string        // how the ranks were configured, see Source
	rank      int           // in the world
	size      int           // of the world
	device    driver.Device // nil until Open has opened it
	level     atomic.Int32  // a CheckLevel
	local     *Pool         // for disabled scopes
	stream    *Stream       // the default stream
	observers observers
	stepGuard bool // Group.Step is enabled
	recording recording
	live      liveView
	sites     callSites
	// adoptedIdle holds the argument of SetIdle.
	adoptedIdle atomic.Bool

	mu        ranked.Mutex[runtimeMu] // also guards fields of the structs below
	adopted   []*AdoptedCommunicator  // replaced rather than modified; guarded by mu
	registry  registry                // groups and pools
	streams   streamList
	captures  captures    // keeps captures and registrations apart
	monitor   rankMonitor // detects ranks that have ended
	rankLists rankLists   // the store, and lists of ranks that were passed to Join
}

// newRuntime returns a Runtime that is not open yet. store and watcher connect it to the ranks of
// the world.
func newRuntime(
	opts Options, w *rendezvous.World, store driver.Store, watcher rankWatcher,
) *Runtime {
	rt := &Runtime{opts: opts, source: string(w.Source), rank: w.Rank, size: w.Size}
	rt.observers.mu = &rt.mu
	rt.registry = newRegistry(&rt.mu)
	rt.streams.mu = &rt.mu
	rt.captures.mu = &rt.mu
	rt.captures.timeout = closeTimeout(opts.Timeout)
	rt.monitor = rankMonitor{watcher: watcher, mu: &rt.mu}
	rt.rankLists = rankLists{store: store, rank: w.Rank, size: w.Size}
	rt.recording.mu = &rt.mu
	rt.recording.onEvent = opts.OnEvent != nil
	rt.live.rt = rt
	rt.sites.names = ledger.NewSites()
	rt.stepGuard = os.Getenv(envStepGuard) != "0"
	return rt
}

// Open finds the other ranks, opens this rank's device and joins the world. It returns once all
// ranks have called it, or an error that names the others. A process may be a rank of several
// independent worlds, each with a separate Runtime and Options.Store.
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
	w.ReportAbsent = opts.absenceWarner("meeting all ranks")
	w.ReportConnected = opts.absenceWarner(
		"leaving, with the store that this rank serves for the others")
	store, member, err := rendezvous.Connect(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("opening symmem: %w", toRankError(err))
	}

	opts.LocalRank = w.LocalRank
	rt, err := newRuntime(opts, &w, store, member).start(ctx)
	if err != nil {
		return nil, err
	}

	isOnGPU := !rt.device.Info().Addressable
	if isOnGPU {
		rt.captures.share() // with the process's other worlds
	}

	return rt, nil
}

// OpenLocal opens a world of n ranks in this process, for tests and examples. Use each Runtime on a
// separate goroutine, because ranks wait for each other.
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
	world := &localWorld{store: store}
	world.openCount.Store(int32(n))
	runtimes, errs := make([]*Runtime, n), make([]error, n) // by rank
	var opening sync.WaitGroup
	for rank := range n {
		opening.Go(func() {
			o := opts
			o.Rank, o.Size, o.LocalRank = rank, n, rank
			w := rendezvous.World{Source: "one process", Rank: rank, Size: n}
			runtimes[rank], errs[rank] = newRuntime(o, &w, store, world).start(ctx)
		})
	}

	opening.Wait()
	if err := errors.Join(errs...); err != nil {
		for _, rt := range runtimes {
			if rt != nil { // this rank has opened
				rt.Close()
			}
		}

		return nil, err
	}

	return runtimes, nil
}

// start opens the Runtime and returns it. If it cannot be opened, start closes it.
func (rt *Runtime) start(ctx context.Context) (*Runtime, error) {
	if err := rt.open(ctx); err != nil {
		rt.monitor.recordResult(err)
		openErr := fmt.Errorf("opening rank %d of %d: %w", rt.rank, rt.size, err)
		closeErr := rt.Close()
		return nil, errors.Join(openErr, closeErr)
	}

	return rt, nil
}

// open opens the device, joins the world, and creates the stream and pool of the Runtime. After an
// error, the caller must call Close.
func (rt *Runtime) open(ctx context.Context) error {
	backend, err := chosenBackend(rt.opts.Backend)
	if err != nil {
		return err
	}

	if err := rt.recording.open(&rt.opts, rt.rank, rt.size); err != nil {
		return err
	}

	rt.live.open(ctx)
	allRanks := make([]int, rt.size)
	for rank := range allRanks {
		allRanks[rank] = rank
	}

	config := driver.Config{
		Rank: rt.rank, Size: rt.size, LocalRank: rt.opts.LocalRank,
		Device: int(rt.opts.Device), Store: rt.rankLists.store, Timeout: rt.opts.Timeout,
		Scatter: rt.opts.Scatter,
		Late:    rt.opts.lateSettings(), Interrupted: wrapInterrupted(rt.opts.Interrupted),
	}
	openDevice := func(ctx context.Context) (err error) {
		rt.device, err = backend.Open(ctx, config)
		return err
	}
	if err := rt.monitor.runWithRanks(ctx, "opening symmem", allRanks, openDevice); err != nil {
		return err
	}

	level := rt.opts.Check.resolve(rt.device.Info().CheckIsFree)
	rt.level.Store(int32(level))
	rt.stream, err = rt.NewStream()
	if err != nil {
		return err
	}

	world, err := rt.connect(ctx, roster{
		fullID: "world", ranks: allRanks, rank: rt.rank, limit: driver.NewLimit(rt.opts.Timeout),
	})
	if err != nil {
		return err
	}

	rt.registry.world = world
	rt.monitor.observer, _ = world.comm.(driver.EndObserver) // may be nil
	rt.local, err = rt.NewPool(PoolOptions{})
	if err != nil {
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
	info := rt.device.Info()
	ordinal := -1
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
	// Ordinal is the number of the device in this process, or -1 on the host backend.
	Ordinal int
	// Granularity is the unit of segment sizes in bytes, a power of two.
	Granularity int64
	// Addressable reports whether the CPU can read and write device memory directly.
	Addressable bool
	// CheckIsFree reports whether CheckEvery costs nothing and is the default.
	CheckIsFree bool
}

// Check returns the current check level.
func (rt *Runtime) Check() CheckLevel { return CheckLevel(rt.level.Load()) }

// Formula returns the formula of reductions; see Options.Deterministic.
func (rt *Runtime) Formula() Formula { return rt.opts.Deterministic }

// Close leaves every group and releases all memory without live buffers; for live buffers, see
// Pool.Close. It waits for queued work for at most twice Options.Timeout, and possibly as long for
// each group and pool in use. On the rank that serves the store, Close waits until the other ranks
// have left or ended, or Options.Timeout, but at least 1 s, has passed.
func (rt *Runtime) Close() error { return rt.close(context.Background()) }

// close implements Close. It stops waiting for other ranks to leave when the context ends.
func (rt *Runtime) close(ctx context.Context) error {
	isFirst := rt.registry.close()
	if !isFirst {
		return nil
	}

	deadline := time.Now().Add(rt.opts.Timeout)
	rt.registry.awaitCreations(deadline)
	groups, pools := rt.registry.allGroups(), rt.registry.allPools()
	errs := rt.streams.close()
	for i, err := range errs {
		errs[i] = toTimeoutError(err, rt.opts.Timeout)
	}

	for _, g := range slices.Backward(groups) { // the world is the first, so it is closed last
		errs = append(errs, g.Close())
	}

	waitForNothing := func(context.Context) error { return nil } // the streams are closed
	for _, p := range pools {
		errs = append(errs, p.closeAfter(waitForNothing))
	}

	rt.captures.unshare()
	rt.live.close()
	if rt.device != nil {
		errs = append(errs, rt.monitor.closeDevice(rt.device, rt.size))
	}

	errs = append(errs, rt.monitor.leaveWorld(ctx, deadline))
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
	if err := rt.registry.closedError(); err != nil {
		return nil, err
	}

	mark, err := rt.device.NewEvent()
	if err != nil {
		return nil, fmt.Errorf("creating an event: %w", err)
	}

	return &Event{rt: rt, mark: mark}, nil
}

// addStream adds a stream that open creates. For another library's stream, open also returns an
// AdoptedStream.
func (rt *Runtime) addStream(
	open func() (driver.Stream, driver.AdoptedStream, error),
) (*Stream, error) {
	if err := rt.registry.beginCreation(); err != nil {
		return nil, err
	}

	defer rt.registry.endCreation()
	queue, adopted, err := open()
	if err != nil {
		return nil, fmt.Errorf("creating a stream: %w", err)
	}

	s := &Stream{rt: rt, queue: queue, adopted: adopted}
	addErr := rt.streams.add(s)
	if addErr == nil {
		return s, nil
	}

	if adopted != nil {
		return nil, addErr // its owner closes the stream
	}

	closeErr := queue.Close()
	return nil, errors.Join(addErr, closeErr)
}

// Interop returns the functions for bindings and other libraries.
func (rt *Runtime) Interop() Interop { return Interop{rt: rt} }

// Stats describes the Runtime and its open pools and groups. The first pool is that of disabled
// scopes.
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

// Handler serves a page at "/", metrics for Prometheus at "/metrics" and JSON at "/debug/symmem":
// about all ranks of the machine with Options.HTTP, and otherwise about this rank. It is read-only
// and checks no token, so the program must control access. It may be used after Close.
func (rt *Runtime) Handler() http.Handler { return rt.live.handler() }

// SetCheck changes the check level for all groups. All ranks of the world must call it with the
// same level, after the same collectives in each group.
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

// Library returns the library that runs the collectives, such as "NCCL 2.28.9", or "" if symmem
// does.
func (rt *Runtime) Library() string {
	if l, ok := rt.device.(driver.Versioned); ok {
		return l.Library()
	}

	return ""
}
