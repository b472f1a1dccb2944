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

// rankPair holds two ranks that share memory in this process.
type rankPair struct {
	t        *testing.T
	ctx      context.Context // ends after hangTimeout
	store    *rendezvous.Client
	machines [2]*Machine // by rank; fetch files from other ranks
	planes   [2]*plane   // by rank; exchange data in a group; nil before join
}

func newRankPair(t *testing.T) *rankPair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	d := &rankPair{t: t, ctx: ctx, store: rendezvous.NewLocal()}
	for rank := range d.machines {
		cfg := driver.Config{
			Rank: rank, Size: len(d.machines), Store: d.store, Timeout: hangTimeout,
		}
		m, err := Open(ctx, cfg)
		check(t, err)
		d.machines[rank] = m
	}

	t.Cleanup(func() {
		defer cancel() // last
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

func (d *rankPair) runOnBoth(f func(rank int) error) [2]error {
	result1 := make(chan error)
	go func() { result1 <- f(1) }()
	err0 := f(0)
	err1 := <-result1
	return [2]error{err0, err1}
}

// join joins both ranks to a group and sets planes.
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

// A rank 0 of another version may create shared memory of another size.
func TestJoinFailsIfControlRegionHasWrongSize(t *testing.T) {
	d := newRankPair(t)
	small, err := sys.Memfd("small", 4096)
	check(t, err)
	defer small.Close()
	key := handoff.Key{Namespace: handoff.NamespaceOf("group/pair")}
	d.machines[0].Export(key, small)
	defer d.machines[0].Withdraw(key)
	const readyKey = "shm/group/pair"
	err = d.store.Set(d.ctx, readyKey, nil)
	check(t, err)
	_, err = d.machines[1].Join(d.ctx, pairGroup(1))
	if err == nil || !strings.Contains(err.Error(), "4096 bytes") {
		t.Errorf("Join = %v, want an error about 4096 bytes", err)
	}
}

func TestJoinFailsAcrossMachines(t *testing.T) {
	d := newRankPair(t)
	value, err := d.store.Get(d.ctx, rankKey(1))
	check(t, err)
	address, _, _ := strings.Cut(string(value), " ")
	const otherMachineID = "elsewhere net:[1] pid:[1]"
	err = d.store.Set(d.ctx, rankKey(1), []byte(address+" "+otherMachineID))
	check(t, err)
	_, err = d.machines[0].Join(d.ctx, pairGroup(0))
	if err == nil || !strings.Contains(err.Error(), "another machine") {
		t.Errorf("Join = %v, want an error about another machine", err)
	}
}

func TestOpenRefusesTokenOfWrongSize(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	err := store.Set(t.Context(), "shm/token", []byte("short"))
	check(t, err)
	_, err = Open(t.Context(), driver.Config{Rank: 1, Size: 2, Store: store, Timeout: time.Second})
	if err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("Open = %v, want an error about a token of 5 bytes", err)
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

func TestReasonsWhyMemoryIsNotShared(t *testing.T) {
	const own = "boot net:[1] pid:[1]"
	for name, c := range map[string]struct {
		peer string // machine ID of another rank
		want string // part of the error
	}{
		"another boot ID": {
			peer: "other net:[1] pid:[1]", want: "another machine",
		},
		"another network namespace": {
			peer: "boot net:[2] pid:[1]", want: "hostNetwork: true",
		},
		"another PID namespace": {
			peer: "boot net:[1] pid:[2]", want: "shareProcessNamespace: true",
		},
		"an incomplete machine ID": {
			peer: "boot net:[1]", want: "another machine",
		},
	} {
		if got := differentIDError(own, c.peer); !strings.Contains(got.Error(), c.want) {
			t.Errorf("%s: differentIDError(%q, %q) = %v, want an error with %q", name, own, c.peer, got,
				c.want)
		}
	}
}

// A panic in Config.Interrupted becomes an error with the stack.
func TestPanicInInterruptedIsReported(t *testing.T) {
	m := &Machine{cfg: driver.Config{Interrupted: panicInCallback}}
	err := m.checkInterrupt()
	if !errors.Is(err, driver.ErrInterrupted) {
		t.Fatalf("checkInterrupt() = %v, want ErrInterrupted", err)
	}

	if want := "shm.panicInCallback("; !strings.Contains(err.Error(), want) {
		t.Errorf("checkInterrupt() = %v, want an error with the stack of the panic (%s)", err, want)
	}
}

func panicInCallback() error { panic("panic for the test") }
