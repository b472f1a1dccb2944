package binding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"symmem"
)

// Library implements the functions of symmem.h for one process. It is either closed or open. While
// it is open, it is one rank of a job.
type Library struct {
	session
	opening sync.Mutex // serializes Open and Close

	groups
	pools
	calls
	windows
	streams
	plugin
}

// New returns a closed Library, which will update words. warn prints warnings that no call can
// return.
func New(words *Words, warn func(text string)) *Library {
	l := &Library{session: session{words: words, warn: warn, warnings: warnings{words: words}}}
	s := &l.session
	l.groups.s, l.pools.s, l.calls.s = s, s, s
	l.windows.s, l.streams.s, l.plugin.s, l.plugin.open = s, s, s, l.openAlone
	return l
}

// Open opens this rank with the options of symmem.h. It is collective over all ranks of the job.
func (l *Library) Open(text []byte) error {
	var o Options
	if err := decode(text, &o); err != nil {
		return fmt.Errorf("opening symmem: %w", err)
	}
	return l.runInterruptible("opening symmem", func(ctx context.Context) error {
		return l.open(ctx, &o, false)
	})
}

// open opens the rank. alone is set if PlugAlloc opens the rank as a job of one rank.
func (l *Library) open(ctx context.Context, o *Options, alone bool) error {
	l.opening.Lock()
	defer l.opening.Unlock()
	if l.IsOpen() {
		return fmt.Errorf("opening symmem: it is already open; call symmem_close first: %w",
			symmem.ErrInvalid)
	}
	if err := o.setEnvironment(); err != nil {
		return err
	}
	o.setMaxProcs()
	options, err := o.runtime()
	if err != nil {
		return fmt.Errorf("opening symmem: %w", err)
	}
	options.OnLate, options.Interrupted = l.addLate, l.pollInCollective
	rt, err := symmem.Open(ctx, options)
	if err != nil {
		return err
	}
	r, err := newRank(&l.session, rt, o, alone)
	if err != nil {
		return errors.Join(fmt.Errorf("opening symmem: %w", err), rt.Close())
	}
	l.rank.Store(r)
	l.words.Pending.Add(1)
	if err := context.Cause(ctx); err != nil { // runInterruptible has already returned this error
		l.rank.Store(nil)
		return errors.Join(err, rt.Close())
	}
	return nil
}

// Close leaves the job and frees all memory without live buffers. Unless force is set, it fails if
// buffers are live. A forced Close waits for other ranks for at most a second. Callers may still
// use and free live buffers after it.
func (l *Library) Close(force bool) error {
	l.opening.Lock()
	defer l.opening.Unlock()
	r := l.rank.Load()
	if r == nil {
		return nil
	}
	if count, bytes := r.pools.live(); count > 0 && !force {
		return fmt.Errorf("closing symmem: %d buffers of %d bytes: %w", count, bytes, ErrLive)
	}
	var errs []error
	for _, p := range r.pools.all() {
		errs = append(errs, p.beginClose())
	}
	l.kept.keep(r.rt.Interop())
	l.rank.Store(nil)
	err := r.close(errors.Join(errs...), force)
	l.words.Pending.Add(1)
	l.words.Windows.Add(1)
	return err
}

// IsOpen reports whether the library is open.
func (l *Library) IsOpen() bool { return l.rank.Load() != nil }

// CallSites reports whether the library is open and records call sites.
func (l *Library) CallSites() bool {
	r := l.rank.Load()
	return r != nil && r.callSites
}

// description holds the JSON that Describe returns.
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

// Describe returns a description of the open rank as JSON.
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

// encode returns the JSON encoding of a value.
func encode(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

// SetCheck sets the check level, which selects what ranks compare. It is collective over the world.
func (l *Library) SetCheck(level int) error {
	r, err := l.current()
	if err != nil {
		return err
	}
	checkLevel, err := term("check level", levels, level)
	if err != nil {
		return err
	}
	return l.runInterruptible("setting the check level", func(ctx context.Context) error {
		return r.rt.SetCheck(ctx, checkLevel)
	})
}
