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
	machines [2]*Machine // by rank
	planes   [2]*plane   // by rank; set by join
}

func newRankPair(t *testing.T) *rankPair {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	pair := &rankPair{t: t, ctx: ctx, store: rendezvous.NewLocal()}
	for rank := range pair.machines {
		cfg := driver.Config{
			Rank: rank, Size: len(pair.machines), Store: pair.store, Timeout: hangTimeout,
		}
		m, err := Open(ctx, cfg)
		check(t, err)
		pair.machines[rank] = m
	}

	t.Cleanup(func() {
		defer cancel()
		for rank, m := range pair.machines {
			if pair.planes[rank] != nil {
				check(t, pair.planes[rank].Close())
			}

			check(t, m.Close())
		}

		check(t, pair.store.Close())
	})
	return pair
}

func (pair *rankPair) runOnBoth(f func(rank int) error) [2]error {
	result1 := make(chan error)
	go func() { result1 <- f(1) }()
	err0 := f(0)
	err1 := <-result1
	return [2]error{err0, err1}
}

// join joins both ranks to a group and sets planes.
func (pair *rankPair) join() {
	pair.t.Helper()
	errs := pair.runOnBoth(func(rank int) error {
		p, err := pair.machines[rank].Join(pair.ctx, pairGroup(rank))
		if err == nil {
			pair.planes[rank] = p.(*plane)
		}

		return err
	})
	check(pair.t, errs[0])
	check(pair.t, errs[1])
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

// Rank 0 may run another version, whose shared memory has another size.
func TestJoinFailsIfControlRegionHasWrongSize(t *testing.T) {
	pair := newRankPair(t)
	const wrongSize, wantText = 4096, "4096 bytes"
	small, err := sys.Memfd("small", wrongSize)
	check(t, err)
	defer small.Close()
	key := handoff.Key{Namespace: handoff.NamespaceOf("group/pair")}
	pair.machines[0].Export(key, small)
	defer pair.machines[0].Withdraw(key)
	const readyKey = "shm/group/pair" // set by rank 0 when it has exported the memory
	err = pair.store.Set(pair.ctx, readyKey, nil)
	check(t, err)
	_, err = pair.machines[1].Join(pair.ctx, pairGroup(1))
	if err == nil || !strings.Contains(err.Error(), wantText) {
		t.Errorf("Join = %v, want an error about %s", err, wantText)
	}
}

func TestJoinFailsAcrossMachines(t *testing.T) {
	pair := newRankPair(t)
	value, err := pair.store.Get(pair.ctx, rankKey(1))
	check(t, err)
	address, _, _ := strings.Cut(string(value), " ")
	const otherMachineID = "elsewhere net:[1] pid:[1]"
	err = pair.store.Set(pair.ctx, rankKey(1), []byte(address+" "+otherMachineID))
	check(t, err)
	_, err = pair.machines[0].Join(pair.ctx, pairGroup(0))
	if err == nil || !strings.Contains(err.Error(), "another machine") {
		t.Errorf("Join = %v, want an error about another machine", err)
	}
}

func TestOpenRefusesTokenOfWrongSize(t *testing.T) {
	store := rendezvous.NewLocal()
	defer func() { check(t, store.Close()) }()
	err := store.Set(t.Context(), "shm/token", []byte("short"))
	check(t, err)
	cfg := driver.Config{Rank: 1, Size: 2, Store: store, Timeout: time.Second}
	_, err = Open(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "5 bytes") {
		t.Errorf("Open = %v, want an error about a token of 5 bytes", err)
	}
}

func TestInvalidGroupSizesAreRefused(t *testing.T) {
	pair := newRankPair(t)
	for name, group := range map[string]driver.GroupConfig{
		"no ranks":         {},
		"a negative rank":  {Ranks: []int{0, 1}, Rank: -1},
		"too large a rank": {Ranks: []int{0, 1}, Rank: 2},
		"too many ranks":   {Ranks: make([]int, MaxRanks+1)},
	} {
		if _, err := pair.machines[0].Join(pair.ctx, group); err == nil {
			t.Errorf("Join of a group with %s succeeded, want an error", name)
		}
	}
}

func TestReasonsWhyMemoryIsNotShared(t *testing.T) {
	const ownID = "boot net:[1] pid:[1]"
	for name, c := range map[string]struct {
		peerID string
		want   string // part of the error
	}{
		"another boot ID": {
			peerID: "other net:[1] pid:[1]", want: "another machine",
		},
		"another network namespace": {
			peerID: "boot net:[2] pid:[1]", want: "hostNetwork: true",
		},
		"another PID namespace": {
			peerID: "boot net:[1] pid:[2]", want: "shareProcessNamespace: true",
		},
		"an incomplete machine ID": {
			peerID: "boot net:[1]", want: "another machine",
		},
	} {
		if got := differentIDError(ownID, c.peerID); !strings.Contains(got.Error(), c.want) {
			t.Errorf("%s: differentIDError(%q, %q) = %v, want an error with %q",
				name, ownID, c.peerID, got, c.want)
		}
	}
}

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
