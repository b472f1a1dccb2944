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

// leavingTimeout is much longer than the calls should take.
const leavingTimeout = time.Minute

// TestTimeoutBlamesOnlyAbsentRank opens a world of three ranks, in which rank 2 does nothing after
// it has connected. Rank 0, which serves the store, or rank 1 times out first. Both must return an
// error that names only rank 2.
func TestTimeoutBlamesOnlyAbsentRank(t *testing.T) {
	t.Parallel()
	const ranks, absentRank = 3, 2
	requireRanks(t, ranks)
	for first, name := range []string{"store's rank times out first", "store's rank times out last"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := "unix:@symmem-test-" + rand.Text()
			leave := make(chan struct{})
			absentRankClosed := startConnectedRank(t, store, absentRank, ranks, leave)
			errs := make([]error, absentRank) // of ranks 0 and 1
			var opening sync.WaitGroup
			begin := time.Now()
			for r := range errs {
				o := symmem.Options{Store: store, Rank: r, Size: ranks, Timeout: leavingTimeout}
				if r == first {
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
			if took := time.Since(begin); took > leavingTimeout/2 {
				t.Errorf("Open took %v, want at most %v", took, leavingTimeout/2)
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

// startConnectedRank starts a rank that connects to the others but makes no call. Once the channel
// leave is closed and rank 0 has ended, the rank closes and sends the error to closed.
func startConnectedRank(
	t *testing.T, store string, number, size int, leave <-chan struct{},
) (closed <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			noEnv := func(string) (string, bool) { return "", false }
			w, err := rendezvous.Discover(noEnv, rendezvous.Options{
				Rank: number, Size: size, Address: store,
			})
			if err != nil {
				return err
			}
			_, monitor, err := rendezvous.Connect(t.Context(), w)
			if err != nil {
				return err
			}
			<-leave
			ctx, cancel := context.WithTimeout(context.Background(), leavingTimeout)
			defer cancel()
			hasEnded := func(ended []*rendezvous.EndedError) bool { return len(ended) > 0 }
			monitor.AwaitEnded(ctx, []int{0}, hasEnded)
			return monitor.Close()
		}()
	}()
	return done
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
	} else if text := err.Error(); strings.Contains(text, "has ended") ||
		strings.Contains(text, "lost") {
		t.Errorf("got error %q, want one that does not say that the rank has ended or is lost", text)
	}
	if err := runtimes[0].Close(); err != nil {
		t.Error(err)
	}
}
