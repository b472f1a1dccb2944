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

// TestTimeoutBlamesOnlyAbsentRank opens a world in which rank 2 does nothing after it has
// connected. One of the other ranks times out first and closes.
func TestTimeoutBlamesOnlyAbsentRank(t *testing.T) {
	t.Parallel()
	requireRanks(t, 3)
	for first, name := range []string{"store's rank times out first", "store's rank times out last"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := "unix:@symmem-test-" + rand.Text()
			opened := make(chan struct{})
			stopped := startConnectedRank(t, store, 2, 3, opened)
			errs := make([]error, 2)
			var opening sync.WaitGroup
			begin := time.Now()
			for r := range errs {
				o := symmem.Options{Store: store, Rank: r, Size: 3, Timeout: leavingTimeout}
				if r == first {
					o.Timeout = leavingTimeout / 12 // for the other ranks to arrive
				}
				opening.Go(func() {
					rt, err := symmem.Open(t.Context(), withBackend(o))
					if errs[r] = err; err == nil {
						rt.Close()
					}
					if r == 1 {
						close(opened)
					}
				})
			}
			opening.Wait()
			if took := time.Since(begin); took > leavingTimeout/2 {
				t.Errorf("Open took %v, want at most %v", took, leavingTimeout/2)
			}
			for r, err := range errs {
				var absent *symmem.AbsentError
				if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{2}) ||
					errors.As(err, new(*symmem.RankLostError)) {
					t.Errorf("rank %d: got %v, want an AbsentError of rank 2", r, err)
				}
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// startConnectedRank starts a rank that connects to the others but makes no call. It closes once
// the channel leave is closed and rank 0 has left.
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
			_, m, err := rendezvous.Connect(t.Context(), w)
			if err != nil {
				return err
			}
			<-leave
			ctx, cancel := context.WithTimeout(context.Background(), leavingTimeout)
			defer cancel()
			m.AwaitEnded(ctx, []int{0}, func(known []*rendezvous.EndedError) bool { return len(known) > 0 })
			return m.Close()
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
	if !errors.As(err, &lost) || !lost.Left || !slices.Equal(lost.Ranks, []int{1}) ||
		strings.Contains(err.Error(), "has ended") || strings.Contains(err.Error(), "lost") {
		t.Errorf("got %v, want a RankLostError that says that rank 1 has closed", err)
	}
	if err := runtimes[0].Close(); err != nil {
		t.Error(err)
	}
}
