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

// Library implements the functions in symmem.h for one process. Methods that do not take a world or
// a group, such as Describe, are for the main world.
type Library struct {
	session
	openMu sync.Mutex // serializes opening and closing the main world

	groups
	pools
	calls
	valueCalls
	windows
	streams
	pads
	worlds
	plugin
}

// New returns a Library without an open world. It passes warnings to warn.
func New(counters *Counters, warn func(text string)) *Library {
	l := &Library{session: session{
		counters: counters, printWarning: warn, warnings: warnings{counters: counters},
	}}
	s := &l.session
	l.groups.session = s
	l.pools.session = s
	l.calls.session = s
	l.valueCalls.session = s
	l.windows.session = s
	l.streams.session = s
	l.pads.session = s
	l.worlds.session = s
	l.plugin.session = s
	return l
}

// Open opens the main world with the options of symmem_open. All ranks must call it.
func (l *Library) Open(optionsJSON []byte) error {
	var o Options
	if err := decode(optionsJSON, &o); err != nil {
		return fmt.Errorf("opening symmem: %w", err)
	}

	return l.runInterruptible("opening symmem", func(ctx context.Context) error {
		return l.openMain(ctx, &o, mainWorld)
	})
}

func (l *Library) openMain(ctx context.Context, o *Options, kind worldKind) error {
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

type rankDescription struct {
	Rank        int    `json:"rank"`
	Size        int    `json:"size"`   // number of ranks
	Source      string `json:"source"` // how Rank and Size were set, such as by "torchrun"
	Backend     string `json:"backend"`
	Device      string `json:"device"`      // the device's name
	CommLibrary string `json:"library"`     // such as "NCCL 2.28.9"; "" for other backends
	Check       string `json:"check"`       // a symmem.CheckLevel
	Granularity int64  `json:"granularity"` // unit of segment sizes, in bytes
	Machines    int    `json:"machines"`    // number of machines with ranks
	Alone       bool   `json:"alone"`       // PlugAlloc opened the world with only this rank
	PID         int    `json:"pid"`
}

// Describe describes, as JSON, this process's rank.
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
	return encode(rankDescription{
		Rank: r.rt.Rank(), Size: r.rt.Size(), Source: r.rt.Source(), Backend: device.Backend,
		Device: device.Name, CommLibrary: r.rt.Library(), Check: r.rt.Check().String(),
		Granularity: device.Granularity, Alone: r.isAlone,
		Machines: tuning.Machines, PID: os.Getpid(),
	})
}

// SetCheck sets how much the ranks compare: SYMMEM_CHECK_OFF, for example. All ranks must call it.
func (l *Library) SetCheck(level int) error {
	r, err := l.mainWorldRank()
	if err != nil {
		return err
	}

	return r.setCheck(level)
}

// worldStats extends symmem.Stats. In the JSON, Pools and Groups replace those of symmem.Stats.
type worldStats struct {
	Open bool `json:"open"`
	symmem.Stats
	Pools   []poolStats           `json:"pools"`   // without pools of local memory
	Groups  map[string]groupStats `json:"groups"`  // by group id
	Streams int                   `json:"streams"` // number of streams in use
	Refused int64                 `json:"refused"` // failed frees in all worlds
}

type poolStats struct {
	Pool   int    `json:"pool"`   // the pool's number
	Domain string `json:"domain"` // id of the group whose ranks share the pool
	symmem.PoolStats
	Mapped int64 `json:"mapped"` // in bytes
	Live   int   `json:"live"`   // number of allocated buffers
}

type groupStats struct {
	Handle uint64 `json:"handle"`
	Name   string `json:"name"`
	symmem.GroupStats
	Attachments []attachmentStats `json:"attachments"`
}

// attachmentStats describes a communicator of another library.
type attachmentStats struct {
	Handle  uint64 `json:"handle"`
	Name    string `json:"name"`
	Windows int    `json:"windows"` // number of segments that are registered with it
}

// Stats returns the counters of the main world as JSON.
func (l *Library) Stats() (string, error) {
	r, err := l.mainWorldRank()
	if err != nil {
		return "", err
	}

	return statsOf(r)
}

func statsOf(r *rank) (string, error) {
	s := worldStats{
		Open: true, Stats: r.rt.Stats(), Pools: []poolStats{}, Groups: map[string]groupStats{},
		Refused: r.session.counters.Refused.Load(), Streams: r.streams.size(),
	}
	for _, p := range r.session.poolTable.ownedBy(r) {
		isShared := p.Domain() != nil
		if isShared {
			s.Pools = append(s.Pools, r.session.poolTable.stats(p))
		}
	}

	for _, g := range r.groupTable.allGroups() {
		s.Groups[g.ID()] = r.groupTable.stats(g)
	}

	return encode(s)
}

func (t *groupTable) stats(g *group) groupStats {
	s := groupStats{
		Handle: g.handle, Name: g.name, GroupStats: g.Stats(), Attachments: []attachmentStats{},
	}
	for _, a := range t.attachmentsOf(g) {
		s.Attachments = append(s.Attachments, attachmentStats{
			Handle: a.handle, Name: a.communicator.Name(), Windows: a.communicator.Windows(),
		})
	}

	return s
}

// stats returns the counters of a shared pool.
func (t *poolTable) stats(p *pool) poolStats {
	s := poolStats{Pool: t.numberOf(p), PoolStats: p.Stats(), Domain: p.Domain().ID()}
	for segment := range p.Segments() {
		s.Mapped += segment.Bytes
	}

	s.Live, _ = p.countLive()
	return s
}

func encode(value any) (string, error) {
	text, err := json.Marshal(value)
	return string(text), err
}
