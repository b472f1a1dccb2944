package torch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
)

// Library is symmem as one process sees it through C: closed, or open as one rank.
type Library struct {
	words *Words
	// warn is told, once each, what no caller can be told.
	warn func(text string)

	warnings warnings

	opening sync.Mutex // held by Open and Close
	poll    atomic.Pointer[poll]
	rank    atomic.Pointer[rank]
	kept    keeping
	// handles are numbered through, so that one of an earlier rank is never taken for another.
	handles atomic.Uint64
}

// rank is what a Library has while it is open.
type rank struct {
	library *Library
	rt      *symmem.Runtime
	alone   bool
	sites   bool

	mu       sync.RWMutex
	groups   map[uint64]*group          // guarded by mu
	guests   map[uint64]*attachment     // by handle; guarded by mu
	pools    [Pools]*pool               // guarded by mu
	streams  map[uintptr]*symmem.Stream // by the foreign handle; guarded by mu
	events   map[uint64]*symmem.Event   // by handle; guarded by mu
	plugs    map[uintptr]*symmem.Guest  // by communicator; guarded by mu
	names    map[string]int             // how often groups of a name were opened; guarded by mu
	pinning  atomic.Bool                // the warning about registration in captures was given
	local    *pool                      // of this rank's own, made when needed; guarded by mu
	watchers sync.WaitGroup
}

// New makes a closed Library over words that callers read. warn gets a line for people when
// something happens that no caller can be told.
func New(words *Words, warn func(text string)) *Library {
	return &Library{words: words, warn: warn}
}

// Open opens this rank with the options of symmem.h. Collective over all ranks of the job.
func (l *Library) Open(text []byte) error {
	var o Options
	if err := decode(text, &o); err != nil {
		return fmt.Errorf("opening symmem: %w", err)
	}
	return l.apart("opening symmem", func(ctx context.Context) error {
		return l.open(ctx, &o, false)
	})
}

func (l *Library) open(ctx context.Context, o *Options, alone bool) error {
	l.opening.Lock()
	defer l.opening.Unlock()
	if l.rank.Load() != nil {
		return fmt.Errorf("opening symmem: it is open already; symmem_close comes first: %w",
			symmem.ErrInvalid)
	}
	if err := o.setEnvironment(); err != nil {
		return err
	}
	o.limit()
	options, err := o.runtime()
	if err != nil {
		return fmt.Errorf("opening symmem: %w", err)
	}
	options.OnLate, options.Interrupted = l.late, l.midCollective
	rt, err := symmem.Open(ctx, options)
	if err != nil {
		return err
	}
	r := &rank{
		library: l, rt: rt, alone: alone, sites: o.callSites(),
		groups: map[uint64]*group{}, guests: map[uint64]*attachment{},
		streams: map[uintptr]*symmem.Stream{}, plugs: map[uintptr]*symmem.Guest{},
		names: map[string]int{}, events: map[uint64]*symmem.Event{},
	}
	r.observe()
	if err := r.start(o.Pool); err != nil {
		return errors.Join(fmt.Errorf("opening symmem: %w", err), rt.Close())
	}
	l.rank.Store(r)
	l.words.Pending.Add(1)
	if err := context.Cause(ctx); err != nil { // its caller has been told that it is not open
		l.rank.Store(nil)
		return errors.Join(err, rt.Close())
	}
	return nil
}

// start makes the handle of the world and pool 0.
func (r *rank) start(o PoolOptions) error {
	options, err := o.pool(r.rt.World())
	if err != nil {
		return err
	}
	p, err := r.newPool(options)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.pools[0] = p
	r.mu.Unlock()
	r.addGroup(r.rt.World(), "world")
	return nil
}

// observe keeps the words true.
func (r *rank) observe() {
	w := r.library.words
	r.rt.Interop().Observe(symmem.Observer{
		SegmentAlloc: func(symmem.SegmentEvent) { w.Pending.Add(1) },
		SegmentFree:  func(symmem.SegmentEvent) { w.Windows.Add(1) },
		Register:     func(symmem.WindowEvent) { w.Windows.Add(1) },
		Deregister:   func(symmem.WindowEvent) { w.Windows.Add(1) },
	})
}

// Close leaves the job and gives back all memory without live buffers. It refuses while there are
// some, unless forced: they are the callers' still, to use on the host and to free.
func (l *Library) Close(force bool) error {
	l.opening.Lock()
	defer l.opening.Unlock()
	r := l.rank.Load()
	if r == nil {
		return nil
	}
	if count, bytes := r.live(); count > 0 && !force {
		return fmt.Errorf("closing symmem: %d buffers of %d bytes: %w", count, bytes, ErrLive)
	}
	var errs []error
	pools := r.everyPool()
	for _, p := range pools {
		errs = append(errs, p.settled())
	}
	l.kept.keep(pools...)
	l.rank.Store(nil)
	// The communicators of others may have ended before. Their windows end with them.
	r.mu.Lock()
	guests, plugs := r.guests, r.plugs
	r.guests, r.plugs = map[uint64]*attachment{}, map[uintptr]*symmem.Guest{}
	r.mu.Unlock()
	for _, a := range guests {
		a.guest.Forget()
	}
	for _, g := range plugs {
		g.Forget()
	}
	err := l.apart("closing symmem", func(ctx context.Context) error {
		// Who is interrupted does not wait for the work of others.
		defer context.AfterFunc(ctx, r.abort)()
		err := r.rt.Close()
		r.watchers.Wait()
		return err
	})
	errs = append(errs, err)
	l.words.Pending.Add(1)
	l.words.Windows.Add(1)
	return errors.Join(errs...)
}

// abort fails all groups.
func (r *rank) abort() {
	r.mu.RLock()
	groups := slices.Collect(maps.Values(r.groups))
	r.mu.RUnlock()
	for _, g := range groups {
		g.Abort()
	}
}

// IsOpen reports whether the library is open.
func (l *Library) IsOpen() bool { return l.rank.Load() != nil }

// CallSites reports whether it is open with call sites on.
func (l *Library) CallSites() bool {
	r := l.rank.Load()
	return r != nil && r.sites
}

// current returns the open rank.
func (l *Library) current() (*rank, error) {
	if r := l.rank.Load(); r != nil {
		return r, nil
	}
	return nil, ErrNotOpen
}

// description is what Describe returns.
type description struct {
	Rank        int    `json:"rank"`
	Size        int    `json:"size"`
	Source      string `json:"source"`
	Backend     string `json:"backend"`
	Device      string `json:"device"`
	Library     string `json:"library"`
	Check       string `json:"check"`
	Granularity int64  `json:"granularity"`
	Machines    int    `json:"machines"`
	Alone       bool   `json:"alone"`
	PID         int    `json:"pid"`
}

// Describe returns the open rank as JSON.
func (l *Library) Describe() (string, error) {
	r, err := l.current()
	if err != nil {
		return "", err
	}
	device := r.rt.Device()
	return encode(description{
		Rank: r.rt.Rank(), Size: r.rt.Size(), Source: r.rt.Source(), Backend: device.Backend,
		Device: device.Name, Library: r.rt.Library(), Check: r.rt.Check().String(),
		Granularity: device.Granularity, Alone: r.alone,
		Machines: r.rt.World().Stats().Tuning.Machines, PID: os.Getpid(),
	})
}

func encode(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}
