package binding

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

	warnings
	interrupts
	streams
	plugs

	opening sync.Mutex // held by Open and Close
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

	mu          sync.RWMutex
	groups      map[uint64]*group                       // guarded by mu
	attachments map[uint64]*attachment                  // by handle; guarded by mu
	pools       [Pools + 1]*pool                        // by number, then the local one; guarded by mu
	streams     map[uintptr]*symmem.Stream              // by the foreign handle; guarded by mu
	events      map[uint64]*symmem.Event                // by handle; guarded by mu
	plugs       map[uintptr]*symmem.AdoptedCommunicator // by communicator; guarded by mu
	names       map[string]int                          // how often a name was opened; guarded by mu
	pinning     atomic.Bool                             // the warning about captures was given
	watchers    sync.WaitGroup
}

// New makes a closed Library over words that callers read. warn gets a line for people when
// something happens that no caller can be told.
func New(words *Words, warn func(text string)) *Library {
	l := &Library{words: words, warn: warn, warnings: warnings{words: words}}
	l.streams.l, l.plugs.l = l, l
	return l
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
		groups: map[uint64]*group{}, attachments: map[uint64]*attachment{},
		streams: map[uintptr]*symmem.Stream{}, plugs: map[uintptr]*symmem.AdoptedCommunicator{},
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
		SegmentFree: func(e symmem.SegmentEvent) {
			w.Windows.Add(1)
			r.library.kept.unmapped(e)
		},
		Register:   func(symmem.WindowEvent) { w.Windows.Add(1) },
		Deregister: func(symmem.WindowEvent) { w.Windows.Add(1) },
	})
}

// Close leaves the job and gives back all memory without live buffers. It refuses while there are
// some, unless forced: they are the callers' still, to use on the host and to free. A forced Close
// waits for other ranks for a second at most.
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
	for _, p := range r.all() {
		errs = append(errs, p.end())
	}
	l.kept.keep(r.rt.Interop())
	l.rank.Store(nil)
	// The communicators of others may have ended before. Their windows end with them.
	r.mu.Lock()
	attachments, plugs := r.attachments, r.plugs
	r.attachments, r.plugs = map[uint64]*attachment{}, map[uintptr]*symmem.AdoptedCommunicator{}
	r.mu.Unlock()
	for _, a := range attachments {
		a.adopted.Forget()
	}
	for _, g := range plugs {
		g.Forget()
	}
	err := l.apart("closing symmem", func(ctx context.Context) error {
		// An interrupted call does not wait for the work of other ranks.
		defer context.AfterFunc(ctx, r.abort)()
		leaving, cancel := context.WithCancel(ctx)
		defer cancel()
		if force {
			cancel()
		}
		err := r.rt.Interop().Close(leaving)
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

// stream returns the Stream of a foreign handle, and adopts it at its first use.
func (r *rank) stream(handle uintptr) (*symmem.Stream, error) {
	r.mu.RLock()
	s := r.streams[handle]
	r.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.streams[handle]; s != nil {
		return s, nil
	}
	s, err := r.rt.Interop().AdoptStream(handle)
	if err != nil {
		return nil, err
	}
	r.streams[handle] = s
	return s, nil
}

// SetCheck changes how much ranks compare: collective over the world.
func (l *Library) SetCheck(level int) error {
	r, err := l.current()
	if err != nil {
		return err
	}
	to, err := term("check level", levels, level)
	if err != nil {
		return err
	}
	return l.apart("setting the check level", func(ctx context.Context) error {
		return r.rt.SetCheck(ctx, to)
	})
}

// poolStats describe one pool.
type poolStats struct {
	Pool   int    `json:"pool"`
	Domain string `json:"domain"`
	symmem.PoolStats
	Mapped int64 `json:"mapped"`
	Live   int   `json:"live"`
}

// groupStats describe one group.
type groupStats struct {
	Handle uint64 `json:"handle"`
	Name   string `json:"name"`
	symmem.GroupStats
	Attachments []attachmentStats `json:"attachments"`
}

type attachmentStats struct {
	Handle  uint64 `json:"handle"`
	Name    string `json:"name"`
	Windows int    `json:"windows"`
}

// stats is what Stats returns.
type stats struct {
	Open bool `json:"open"`
	symmem.Stats
	// Pools and Groups take the place of those of symmem.
	Pools   []poolStats           `json:"pools"`
	Groups  map[string]groupStats `json:"groups"`
	Streams int                   `json:"streams"`
	Refused int64                 `json:"refused"`
}

// Stats returns everything that is counted, as JSON.
func (l *Library) Stats() (string, error) {
	r, err := l.current()
	if err != nil {
		return "", err
	}
	s := stats{
		Open: true, Stats: r.rt.Stats(), Groups: map[string]groupStats{},
		Refused: l.words.Refused.Load(),
	}
	for _, p := range r.all() {
		if p.Domain() != nil {
			s.Pools = append(s.Pools, r.poolStats(p))
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	s.Streams = len(r.streams)
	for handle, g := range r.groups {
		of := groupStats{
			Handle: handle, Name: g.name, GroupStats: g.Stats(), Attachments: []attachmentStats{},
		}
		for _, a := range g.attachments {
			of.Attachments = append(of.Attachments,
				attachmentStats{a.handle, a.adopted.Name(), a.adopted.Windows()})
		}
		s.Groups[g.ID()] = of
	}
	return encode(s)
}

func (r *rank) poolStats(p *pool) poolStats {
	s := poolStats{Pool: r.number(p), PoolStats: p.Stats(), Domain: p.Domain().ID()}
	for segment := range p.Segments() {
		s.Mapped += segment.Bytes
	}
	s.Live, _ = p.live()
	return s
}
