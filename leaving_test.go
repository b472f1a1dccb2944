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

// leavingTimeout is the timeout of ranks that no other rank keeps waiting for as long.
const leavingTimeout = time.Minute

// TestTimeoutBlamesOnlyAbsentRank: rank 2 has greeted and does nothing more, like a
// process that is stopped. One of the others gives up first, and leaves.
func TestTimeoutBlamesOnlyAbsentRank(t *testing.T) {
	t.Parallel()
	needRanks(t, 3)
	for first, name := range []string{"who serves the store is first", "who serves it is last"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := "unix:@symmem-test-" + rand.Text()
			given := make(chan struct{})
			stopped := meetOnly(t, store, 2, 3, given)
			errs := make([]error, 2)
			var opening sync.WaitGroup
			begun := time.Now()
			for r := range errs {
				o := symmem.Options{Store: store, Rank: r, Size: 3, Timeout: leavingTimeout}
				if r == first {
					o.Timeout = time.Second
				}
				opening.Go(func() {
					rt, err := symmem.Open(t.Context(), withBackend(o))
					if errs[r] = err; err == nil {
						rt.Close()
					}
					if r == 1 {
						close(given)
					}
				})
			}
			opening.Wait()
			if took := time.Since(begun); took > leavingTimeout/2 {
				t.Errorf("it took %v", took)
			}
			for r, err := range errs {
				var absent *symmem.AbsentError
				if !errors.As(err, &absent) || !slices.Equal(absent.Ranks, []int{2}) ||
					errors.As(err, new(*symmem.RankLostError)) {
					t.Errorf("rank %d: %v does not name rank 2 as the only rank that did not arrive", r, err)
				}
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// meetOnly is a rank that meets the others, and leaves at last, when rank 0 has left, too.
func meetOnly(
	t *testing.T, store string, number, size int, after <-chan struct{},
) (left <-chan error) {
	t.Helper()
	over := make(chan error, 1)
	go func() {
		over <- func() error {
			none := func(string) (string, bool) { return "", false }
			w, err := rendezvous.Discover(none, rendezvous.Options{
				Rank: number, Size: size, Address: store,
			})
			if err != nil {
				return err
			}
			_, m, err := rendezvous.Connect(t.Context(), w)
			if err != nil {
				return err
			}
			<-after
			ctx, cancel := context.WithTimeout(context.Background(), leavingTimeout)
			defer cancel()
			m.Ended(ctx, []int{0}, func(known []*rendezvous.EndedError) bool { return len(known) > 0 })
			return m.Close()
		}()
	}()
	return over
}

// TestClosedRankIsNotReportedDead: its process lives.
func TestClosedRankIsNotReportedDead(t *testing.T) {
	t.Parallel()
	needRanks(t, 2)
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
		t.Errorf("got %v", err)
	}
	if err := runtimes[0].Close(); err != nil {
		t.Error(err)
	}
}
