package binding

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"

	"symmem"
)

// Library implements the functions in symmem.h for one process, which can be a rank of several
// worlds: sets of processes that use symmem together. A method without a handle, such as Describe,
// is for the main world. DescribeWorld, for example, is for any world.
type Library struct {
	session
	openMu sync.Mutex // serializes opening and closing the main world

	// Each of these types implements the methods for one subject.
	groups
	pools
	calls
	windows
	streams
	pads
	worlds
	plugin
}

// New returns a Library without an open world. Warnings are passed to warn.
func New(counters *Counters, warn func(text string)) *Library {
	l := &Library{session: session{
		counters: counters, printWarning: warn, warnings: warnings{counters: counters},
	}}
	s := &l.session
	l.groups.session = s
	l.pools.session = s
	l.calls.session = s
	l.windows.session = s
	l.streams.session = s
	l.pads.session = s
	l.worlds.session = s
	l.plugin.session = s
	l.plugin.openAlone = l.openAlone
	return l
}

// Open opens the main world with the options of symmem_open. All ranks must call it.
func (l *Library) Open(optionsJSON []byte) error {
	var o Options
	if err := decode(optionsJSON, &o); err != nil {
		return fmt.Errorf("opening symmem: %w", err)
	}

	return l.runInterruptible("opening symmem", func(ctx context.Context) error {
		return l.openMain(ctx, &o, mainRank)
	})
}

func (l *Library) openMain(ctx context.Context, o *Options, kind rankKind) error {
	l.openMu.Lock()
	defer l.openMu.Unlock()
	if l.IsOpen() {
		return fmt.Errorf("opening symmem: it is already open; call symmem_close first: %w",
			symmem.ErrInvalid)
	}

	_, err := l.openRank(ctx, o, kind)
	return err
}

// Close closes the main world. Without force, it returns ErrLive if there are live buffers. With
// force, live buffers stay usable, and Close waits at most a second for other ranks.
func (l *Library) Close(force bool) error {
	l.openMu.Lock()
	defer l.openMu.Unlock()
	r := l.ranks.main.Load()
	if r == nil {
		return nil
	}

	return l.closeRank(r, force)
}

// IsOpen reports whether the main world is open.
func (l *Library) IsOpen() bool { return l.ranks.main.Load() != nil }

// IsAnyWorldOpen reports whether any world is open.
func (l *Library) IsAnyWorldOpen() bool { return len(l.ranks.allRanks()) > 0 }

// RecordsCallSites reports whether any open world records call sites.
func (l *Library) RecordsCallSites() bool {
	return slices.ContainsFunc(l.ranks.allRanks(), func(r *rank) bool { return r.hasCallSites })
}

type worldDescription struct {
	Rank        int    `json:"rank"`
	Size        int    `json:"size"`   // number of ranks
	Source      string `json:"source"` // name of the launcher that set Rank and Size, for example
	Backend     string `json:"backend"`
	Device      string `json:"device"`      // the device's name
	Library     string `json:"library"`     // "NCCL 2.28.9", for example; "" for other backends
	Check       string `json:"check"`       // how often ranks compare their calls
	Granularity int64  `json:"granularity"` // of device memory, in bytes
	Machines    int    `json:"machines"`    // number of machines with ranks
	Alone       bool   `json:"alone"`       // opened by PlugAlloc, with only this rank
	PID         int    `json:"pid"`
}

// Describe returns, as JSON, a description of the main world's rank.
func (l *Library) Describe() (string, error) {
	r, err := l.mainWorldRank()
	if err != nil {
		return "", err
	}

	return describe(r)
}

func describe(r *rank) (string, error) {
	device := r.rt.Device()
	tuning := r.rt.World().Stats().Tuning
	return encode(worldDescription{
		Rank: r.rt.Rank(), Size: r.rt.Size(), Source: r.rt.Source(), Backend: device.Backend,
		Device: device.Name, Library: r.rt.Library(), Check: r.rt.Check().String(),
		Granularity: device.Granularity, Alone: r.isAlone,
		Machines: tuning.Machines, PID: os.Getpid(),
	})
}

func encode(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}

// SetCheck sets how often the ranks of the main world compare their calls. All ranks must call it.
func (l *Library) SetCheck(level int) error {
	r, err := l.mainWorldRank()
	if err != nil {
		return err
	}

	return l.setCheck(r, level)
}
