package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/handoff"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// Fetch returns an exported file. It returns a driver.RankLostError if the rank's process has
// exited, and a driver.TimeoutError if the rank does not answer before the deadline of ctx. After a
// TimeoutError the caller must make the group fail: until then, the errors of waiting ranks name
// both this rank and the one that does not answer.
func (g *Group) Fetch(
	ctx context.Context, rank int, key handoff.Key, callText string,
) (*os.File, error) {
	p, begin := g.peers[rank], time.Now()
	end := g.NoteFetch(rank)
	f, err := p.Fetch(ctx, key)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && !p.isLost.Load():
		return nil, control.UnansweredError(g.cfg, rank, callText, time.Since(begin))
	case err != nil && p.hasExited():
		err = &driver.RankLostError{Ranks: []int{p.rank}, InCall: callText}
	}
	end()
	return f, err
}

var _ control.FetchNotes = (*Group)(nil)

// NoteFetch implements control.FetchNotes.
func (g *Group) NoteFetch(rank int) (end func()) {
	if g.BeginUse() != nil {
		return func() {}
	}
	defer g.EndUse()
	b, word := &g.ownBlock.status, uint64(rank+1)
	spin.StoreRelease64(&b.fetchSince, sys.Monotonic())
	spin.StoreRelease64(&b.fetch, word)
	return func() {
		if g.BeginUse() == nil {
			atomic.CompareAndSwapUint64(&b.fetch, word, 0)
			g.EndUse()
		}
	}
}

func (s *status) describeFetch(ranks []int) string {
	source := int(spin.LoadAcquire64(&s.fetch)) - 1
	if source < 0 || source >= len(ranks) {
		return ""
	}
	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&s.fetchSince)).
		Round(time.Millisecond)
	return fmt.Sprintf("waits for memory of rank %d of the world for %v", ranks[source], waited)
}
