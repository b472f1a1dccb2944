package shm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/rendezvous"
	"symmem/internal/sys"
)

// hangTimeout expires only if a test hangs.
const hangTimeout = 60 * time.Second

// rankPair holds two ranks in this process. planes is set by join.
type rankPair struct {
	t        *testing.T
	ctx      context.Context
	store    *rendezvous.Client
	machines [2]*Machine
	planes   [2]*plane
}

func newRankPair(t *testing.T) *rankPair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	d := &rankPair{t: t, ctx: ctx, store: rendezvous.NewLocal()}
	for rank := range d.machines {
		cfg := driver.Config{Rank: rank, Size: 2, Store: d.store, Timeout: hangTimeout}
		m, err := Open(ctx, cfg)
		check(t, err)
		d.machines[rank] = m
	}
	t.Cleanup(func() {
		defer cancel()
		for rank, m := range d.machines {
			if d.planes[rank] != nil {
				check(t, d.planes[rank].Close())
			}
			check(t, m.Close())
		}
		check(t, d.store.Close())
	})
	return d
}

// runOnBoth calls f for both ranks at the same time and returns the results by rank.
func (d *rankPair) runOnBoth(f func(rank int) error) [2]error {
	other := make(chan error)
	go func() { other <- f(1) }()
	first := f(0)
	return [2]error{first, <-other}
}

func (d *rankPair) join() {
	d.t.Helper()
	errs := d.runOnBoth(func(rank int) error {
		p, err := d.machines[rank].Join(d.ctx, pairGroup(rank))
		if err == nil {
			d.planes[rank] = p.(*plane)
		}
		return err
	})
	check(d.t, errs[0])
	check(d.t, errs[1])
}

func pairGroup(rank int) driver.GroupConfig {
	return driver.GroupConfig{ID: "pair", Ranks: []int{0, 1}, Rank: rank}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestJoinFailsIfControlRegionHasWrongSize exports a region as rank 0 of another version would,
// and lets rank 1 join.
func TestJoinFailsIfControlRegionHasWrongSize(t *testing.T) {
	d := newRankPair(t)
	small, err := sys.Memfd("small", 4096)
	check(t, err)
	defer small.Close()
	key := handoff.Key{Namespace: handoff.NamespaceOf("group/pair")}
	d.machines[0].Export(key, small)
	defer d.machines[0].Withdraw(key)
	check(t, d.store.Set(d.ctx, "shm/group/pair", nil))
	_, err = d.machines[1].Join(d.ctx, pairGroup(1))
	if err == nil || !strings.Contains(err.Error(), "4096 bytes") {
		t.Errorf("got %v, want an error about 4096 bytes", err)
	}
}

func TestJoinFailsAcrossMachines(t *testing.T) {
	d := newRankPair(t)
	// Replace the description of rank 1's machine, which follows its address.
	value, err := d.store.Get(d.ctx, rankKey(1))
	check(t, err)
	address, _, _ := strings.Cut(string(value), " ")
	check(t, d.store.Set(d.ctx, rankKey(1), []byte(address+" elsewhere net:[1] pid:[1]")))
	_, err = d.machines[0].Join(d.ctx, pairGroup(0))
	if err == nil || !strings.Contains(err.Error(), "another machine") {
		t.Errorf("got %v, want an error about another machine", err)
	}
}

func TestOpenRefusesTokenOfWrongSize(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	check(t, store.Set(t.Context(), "shm/token", []byte("short")))
	_, err := Open(t.Context(), driver.Config{Rank: 1, Size: 2, Store: store, Timeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("got %v, want an error about a token of 5 bytes", err)
	}
}

func TestInvalidGroupSizesAreRefused(t *testing.T) {
	d := newRankPair(t)
	for name, group := range map[string]driver.GroupConfig{
		"no ranks":         {},
		"a negative rank":  {Ranks: []int{0, 1}, Rank: -1},
		"too large a rank": {Ranks: []int{0, 1}, Rank: 2},
		"too many ranks":   {Ranks: make([]int, MaxRanks+1)},
	} {
		if _, err := d.machines[0].Join(d.ctx, group); err == nil {
			t.Errorf("Join of a group with %s succeeded, want an error", name)
		}
	}
}

// TestReasonsWhyMemoryIsNotShared compares descriptions of machines. Each consists of the boot ID
// and the namespaces of the network and of processes.
func TestReasonsWhyMemoryIsNotShared(t *testing.T) {
	const ours = "boot net:[1] pid:[1]"
	for theirs, want := range map[string]string{
		"other net:[1] pid:[1]": "another machine",
		"boot net:[2] pid:[1]":  "hostNetwork: true",
		"boot net:[1] pid:[2]":  "shareProcessNamespace: true",
		"boot net:[1]":          "another machine",
	} {
		if got := explainNotShared(ours, theirs); !strings.Contains(got.Error(), want) {
			t.Errorf("explainNotShared(%q, %q) = %v, want an error with %q", ours, theirs, got, want)
		}
	}
}

func TestPanicInInterruptedIsReported(t *testing.T) {
	m := &Machine{cfg: driver.Config{Interrupted: panicInCallback}}
	if err := m.checkInterrupt(); !errors.Is(err, driver.ErrInterrupted) ||
		!strings.Contains(err.Error(), "shm.panicInCallback(") {
		t.Errorf("checkInterrupt() = %v, want ErrInterrupted with the stack of the panic", err)
	}
}

func panicInCallback() error { panic("panic for the test") }
