package symmem_test

import (
	"errors"
	"testing"
	"time"

	"symmem"
)

// TestIDOfFailedJoinCannotBeReused repeats a Join on two ranks that have given up waiting for a
// late rank. If the id could be reused, the late rank might join either attempt.
func TestIDOfFailedJoinCannotBeReused(t *testing.T) {
	gaveUp := make(chan struct{}, 2)
	runRanks(t, 3, symmem.Options{Timeout: time.Minute}, func(r *rank) {
		join := func(id string, timeout time.Duration) error {
			g, err := r.JoinWith(r.ctx, id, []int{0, 1, 2}, symmem.GroupOptions{Timeout: timeout})
			if err != nil {
				return err
			}

			r.checkSum(g, r.window(r.pool(), 4096))
			return g.Close()
		}
		if r.Rank() < 2 {
			if err := join("late", 300*time.Millisecond); !errors.As(err, new(*symmem.TimeoutError)) {
				r.failf("Join without rank 2 = %v; want a TimeoutError", err)
			}

			gaveUp <- struct{}{}
		} else {
			<-gaveUp
			<-gaveUp
			if err := join("late", 300*time.Millisecond); err == nil {
				r.failf("Join succeeds after the other ranks have given up")
			}
		}

		begin := time.Now()
		r.wantErr(join("late", time.Minute), symmem.ErrInvalid)
		if waited := time.Since(begin); waited > 10*time.Second {
			r.failf("the repeated Join was refused after %v, want at once", waited)
		}

		r.ok(join("repeated", time.Minute))
	})
}
