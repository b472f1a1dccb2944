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

// leavingTimeout limits calls that should end much earlier, because a rank has left or timed out.
const leavingTimeout = time.Minute

// TestTimeoutBlamesOnlyAbsentRank opens a world of three ranks, in which rank 2 does nothing after
// it has connected. Rank 0, which serves the store (where the ranks find each other), or rank 1
// times out first. Both must return an error that names only rank 2.
func TestTimeoutBlamesOnlyAbsentRank(t *testing.T) {
	t.Parallel()
	const ranks, absentRank = 3, 2
	requireRanks(t, ranks)
	for _, row := range []struct {
		name  string
		first int // the rank that times out first
	}{
		{"store's rank times out first", 0},
		{"store's rank times out last", 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			store := "unix:@symmem-test-" + rand.Text()
			leave := make(chan struct{}) // closed when rank 1 has returned from Open
			absentRankClosed := startConnectedRank(t, store, absentRank, ranks, leave)
			errs := make([]error, absentRank) // of ranks 0 and 1
			var opening sync.WaitGroup
			begin := time.Now()
			for r := range errs {
				o := symmem.Options{Store: store, Rank: r, Size: ranks, Timeout: leavingTimeout}
				if r == row.first {
					o.Timeout = leavingTimeout / 12 // long enough for the other ranks to connect
				}

				opening.Go(func() {
					rt, err := symmem.Open(t.Context(), withBackend(o))
					errs[r] = err
					if err == nil {
						rt.Close() // the test fails below, because Open has not
					}

					if r == 1 {
						close(leave)
					}
				})
			}

			opening.Wait()
			// The other rank must not wait for its timeout.
			const limit = leavingTimeout / 2
			if took := time.Since(begin); took > limit {
				t.Errorf("Open took %v, want at most %v", took, limit)
			}

			for r, err := range errs {
				var absent *symmem.AbsentError
				isAbsent := errors.As(err, &absent) && slices.Equal(absent.Ranks, []int{absentRank})
				isLost := errors.As(err, new(*symmem.RankLostError))
				if !isAbsent || isLost {
					t.Errorf("rank %d: got %v, want an AbsentError of rank %d", r, err, absentRank)
				}
			}

			if err := <-absentRankClosed; err != nil {
				t.Errorf("rank %d: %v", absentRank, err)
			}
		})
	}
}

// startConnectedRank starts a rank in a goroutine, as runConnectedRank. It sends the rank's error
// to closed.
func startConnectedRank(
	t *testing.T, store string, number, size int, leave <-chan struct{},
) (closed <-chan error) {
	t.Helper()
	result := make(chan error, 1)
	go func() { result <- runConnectedRank(t.Context(), store, number, size, leave) }()
	return result
}

// runConnectedRank connects to the other ranks but makes no call. Once the channel leave is closed
// and rank 0 has ended, it closes the connections.
func runConnectedRank(
	ctx context.Context, store string, number, size int, leave <-chan struct{},
) error {
	noEnv := func(string) (string, bool) { return "", false }
	world, err := rendezvous.Discover(noEnv, rendezvous.Options{
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

// TestClosedRankIsNotReportedDead joins a group with a rank that has closed its Runtime in a live
// process. The error must report only that the rank has closed.
func TestClosedRankIsNotReportedDead(t *testing.T) {
	t.Parallel()
	requireRanks(t, 2)
	store := "unix:@symmem-test-" + rand.Text()
	runtimes, errs := make([]*symmem.Runtime, 2), make([]error, 2)
	var opening sync.WaitGroup
	for r := range runtimes {
		opening.Go(func() {
			o := symmem.Options{Store: store, Rank: r, Size: 2, Timeout: leavingTimeout}
			runtimes[r], errs[r] = symmem.Open(t.Context(), withBackend(o))
		})
	}

	opening.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}

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
