package symmem_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
	"symmem/internal/rendezvous"
)

const generousTimeout = time.Minute

// newStoreAddress returns a unique address where ranks find each other.
func newStoreAddress() string { return "unix:@symmem-test-" + rand.Text() }

const (
	absentWorldSize = 3
	absentRank      = 2 // connects to the store but does not call Open
)

// Ranks 0 and 1 open a world that needs absentRank. Both errors name only absentRank, whichever
// rank times out first.
func TestTimeoutBlamesOnlyAbsentRank(t *testing.T) {
	t.Parallel()
	requireRanks(t, absentWorldSize)
	for _, row := range []struct {
		name      string
		firstRank int // the rank that times out first
	}{
		{name: "store's rank times out first", firstRank: 0}, // rank 0 serves the store
		{name: "store's rank times out last", firstRank: 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			checkAbsentRank(t, row.firstRank)
		})
	}
}

// checkAbsentRank opens a world on ranks 0 and 1, with a much shorter timeout on firstRank.
func checkAbsentRank(t *testing.T, firstRank int) {
	t.Helper()
	store := newStoreAddress()
	rank1Ended := make(chan struct{})
	absentRankResult := startAbsentRank(t, store, absentRank, absentWorldSize, rank1Ended)
	const firstTimeout = 5 * time.Second // long enough for the ranks to connect
	const openingRanks = 2               // ranks 0 and 1
	errs := make([]error, openingRanks)
	var opening sync.WaitGroup
	begin := time.Now()
	for number := range errs {
		o := symmem.Options{
			Store: store, Rank: number, Size: absentWorldSize, Timeout: generousTimeout,
		}
		if number == firstRank {
			o.Timeout = firstTimeout
		}

		opening.Go(func() {
			rt, err := symmem.Open(t.Context(), withBackend(o))
			errs[number] = err
			if err == nil {
				rt.Close() // requireAbsentError reports the missing error
			}

			if number == 1 {
				close(rank1Ended)
			}
		})
	}

	opening.Wait()
	const limit = generousTimeout / 2 // the first timeout ends both calls of Open
	if took := time.Since(begin); took > limit {
		t.Errorf("Open took %v, want at most %v", took, limit)
	}

	for number, err := range errs {
		requireAbsentError(t, number, err)
	}

	if err := <-absentRankResult; err != nil {
		t.Errorf("rank %d: %v", absentRank, err)
	}
}

func requireAbsentError(t *testing.T, number int, err error) {
	t.Helper()
	var absent *symmem.AbsentError
	namesAbsentRank := errors.As(err, &absent) && slices.Equal(absent.Ranks, []int{absentRank})
	saysLost := errors.As(err, new(*symmem.RankLostError))
	if !namesAbsentRank || saysLost {
		t.Errorf("rank %d: got %v, want an AbsentError of rank %d", number, err, absentRank)
	}
}

func startAbsentRank(
	t *testing.T, store string, number, size int, rank1Ended <-chan struct{},
) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- runAbsentRank(t.Context(), store, number, size, rank1Ended) }()
	return result
}

// runAbsentRank stays connected to the store until ranks 1 and 0 have ended.
func runAbsentRank(
	ctx context.Context, store string, number, size int, rank1Ended <-chan struct{},
) error {
	noEnvironment := func(string) (string, bool) { return "", false }
	world, err := rendezvous.Discover(noEnvironment, rendezvous.Options{
		Rank: number, Size: size, Address: store,
	})
	if err != nil {
		return err
	}

	_, monitor, err := rendezvous.Connect(ctx, world)
	if err != nil {
		return err
	}

	<-rank1Ended
	waitCtx, cancel := context.WithTimeout(context.Background(), generousTimeout)
	defer cancel()
	anyEnded := func(ended []*rendezvous.EndedError) bool { return len(ended) > 0 }
	monitor.AwaitEnded(waitCtx, []int{0}, anyEnded)
	return monitor.Close()
}

func TestClosedRankIsNotReportedDead(t *testing.T) {
	t.Parallel()
	requireRanks(t, 2)
	runtimes := openStoreRanks(t, 2)
	if err := runtimes[1].Close(); err != nil {
		t.Error(err)
	}

	_, err := runtimes[0].Join(t.Context(), "g", []int{0, 1})
	var lost *symmem.RankLostError
	if !errors.As(err, &lost) || !lost.Left || !slices.Equal(lost.Ranks, []int{1}) {
		t.Errorf("got %v, want a RankLostError with Left and rank 1", err)
	}

	text := fmt.Sprint(err)
	for _, phrase := range []string{"has ended", "lost"} {
		if strings.Contains(text, phrase) {
			t.Errorf("got error %q with %q, want one that does not say that rank 1 died", text, phrase)
		}
	}

	if err := runtimes[0].Close(); err != nil {
		t.Error(err)
	}
}

// openStoreRanks opens a world whose Runtimes the caller must close.
func openStoreRanks(t *testing.T, ranks int) []*symmem.Runtime {
	t.Helper()
	store := newStoreAddress()
	runtimes := make([]*symmem.Runtime, ranks)
	errs := make([]error, ranks)
	var opening sync.WaitGroup
	for r := range runtimes {
		opening.Go(func() {
			o := symmem.Options{Store: store, Rank: r, Size: ranks, Timeout: generousTimeout}
			runtimes[r], errs[r] = symmem.Open(t.Context(), withBackend(o))
		})
	}

	opening.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}

	return runtimes
}
