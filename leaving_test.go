package symmem_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
	"symmem/internal/rendezvous"
)

// Ranks 0, 1 and 2 open a world. They find each other through a store, which rank 0 serves. These
// tests show which ranks an error names if a rank makes no call or has closed its Runtime. The
// ranks run in this process, so none of them dies.

// leavingTimeout limits calls that should end much earlier.
const leavingTimeout = time.Minute

// newStoreAddress returns an address for a store that no other test uses.
func newStoreAddress() string { return "unix:@symmem-test-" + rand.Text() }

// TestTimeoutBlamesOnlyAbsentRank opens a world in which rank 2 connects to the other ranks but
// makes no call. Rank 0 or rank 1 times out first. Both must return an error that names only rank
// 2.
func TestTimeoutBlamesOnlyAbsentRank(t *testing.T) {
	t.Parallel()
	requireRanks(t, absentWorld)
	for _, row := range []struct {
		name      string
		firstRank int // the rank that times out first
	}{
		{name: "store's rank times out first", firstRank: 0},
		{name: "store's rank times out last", firstRank: 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			checkAbsentRank(t, row.firstRank)
		})
	}
}

const (
	absentWorld = 3 // number of ranks
	absentRank  = 2 // the last rank, which makes no call
)

// checkAbsentRank opens the world on ranks 0 and 1, of which firstRank has a much shorter timeout,
// and checks their errors.
func checkAbsentRank(t *testing.T, firstRank int) {
	t.Helper()
	store := newStoreAddress()
	leave := make(chan struct{}) // closed when rank 1 has returned from Open
	absentRankClosed := startConnectedRank(t, store, absentRank, absentWorld, leave)
	errs := make([]error, absentRank) // of ranks 0 and 1
	var opening sync.WaitGroup
	begin := time.Now()
	for r := range errs {
		o := symmem.Options{Store: store, Rank: r, Size: absentWorld, Timeout: leavingTimeout}
		if r == firstRank {
			o.Timeout = leavingTimeout / 12 // long enough for the other ranks to connect
		}

		opening.Go(func() {
			rt, err := symmem.Open(t.Context(), withBackend(o))
			errs[r] = err
			if err == nil {
				rt.Close() // requireAbsentError fails the test, because there is no error
			}

			if r == 1 {
				close(leave)
			}
		})
	}

	opening.Wait()
	// The rank with the long timeout must not wait for it.
	const limit = leavingTimeout / 2
	if took := time.Since(begin); took > limit {
		t.Errorf("Open took %v, want at most %v", took, limit)
	}

	for r, err := range errs {
		requireAbsentError(t, r, err)
	}

	if err := <-absentRankClosed; err != nil {
		t.Errorf("rank %d: %v", absentRank, err)
	}
}

// requireAbsentError reports an error unless err, the result of rank r, names only absentRank and
// does not say that a rank is lost.
func requireAbsentError(t *testing.T, r int, err error) {
	t.Helper()
	var absent *symmem.AbsentError
	namesAbsentRank := errors.As(err, &absent) && slices.Equal(absent.Ranks, []int{absentRank})
	saysLost := errors.As(err, new(*symmem.RankLostError))
	if !namesAbsentRank || saysLost {
		t.Errorf("rank %d: got %v, want an AbsentError of rank %d", r, err, absentRank)
	}
}

// startConnectedRank calls runConnectedRank in a goroutine, and sends its error to closed.
func startConnectedRank(
	t *testing.T, store string, number, size int, leave <-chan struct{},
) (closed <-chan error) {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- runConnectedRank(t.Context(), store, number, size, leave) }()
	return result
}

// runConnectedRank connects to the other ranks but makes no call. It closes the connections when
// the channel leave is closed and rank 0 has ended.
func runConnectedRank(
	ctx context.Context, store string, number, size int, leave <-chan struct{},
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

	<-leave
	waitCtx, cancel := context.WithTimeout(context.Background(), leavingTimeout)
	defer cancel()
	hasEnded := func(ended []*rendezvous.EndedError) bool { return len(ended) > 0 }
	monitor.AwaitEnded(waitCtx, []int{0}, hasEnded)
	return monitor.Close()
}

// TestClosedRankIsNotReportedDead joins a group on rank 0 after rank 1 has closed its Runtime. The
// error must say that rank 1 has closed, and not that it has died.
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
		t.Errorf("got %v, want a RankLostError that says that rank 1 has closed", err)
	} else {
		for _, wrong := range []string{"has ended", "lost"} { // as if the process had died
			if strings.Contains(err.Error(), wrong) {
				t.Errorf("got error %q, want one without %q", err, wrong)
			}
		}
	}

	if err := runtimes[0].Close(); err != nil {
		t.Error(err)
	}
}

// openStoreRanks opens a world whose ranks find each other through a store. The caller must close
// the Runtimes.
func openStoreRanks(t *testing.T, ranks int) []*symmem.Runtime {
	t.Helper()
	store := newStoreAddress()
	runtimes := make([]*symmem.Runtime, ranks)
	errs := make([]error, ranks)
	var opening sync.WaitGroup
	for r := range runtimes {
		opening.Go(func() {
			o := symmem.Options{Store: store, Rank: r, Size: ranks, Timeout: leavingTimeout}
			runtimes[r], errs[r] = symmem.Open(t.Context(), withBackend(o))
		})
	}

	opening.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}

	return runtimes
}
