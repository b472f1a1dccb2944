package symmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"symmem/driver"
	"symmem/internal/agreement"
)

// fault is how a group ends: the first fault of any of its ranks, as all ranks know it.
type fault struct {
	ended chan struct{} // closed when err is known

	mu   sync.Mutex
	err  error    // guarded by mu; never changes once set
	then []func() // called at the end; guarded by mu
}

func newFault() *fault { return &fault{ended: make(chan struct{})} }

// end sets the error, if there is none yet.
func (f *fault) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return
	}
	f.err = err
	close(f.ended)
	for _, call := range f.then {
		call()
	}
}

func (f *fault) known() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

func (f *fault) onEnd(call func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		call()
		return
	}
	f.then = append(f.then, call)
}

// Err returns the fault that ended the group, or nil while it is open.
func (g *Group) Err() error {
	select {
	case <-g.fault.ended:
		return g.fault.known()
	default:
		return nil
	}
}

// watch finds out with the other ranks what went wrong, as soon as this rank's communicator
// fails, whether or not the program is inside a call.
func (g *Group) watch() {
	select {
	case <-g.comm.Failed():
		if g.fault.known() == nil {
			g.fault.end(g.findOut())
		}
	case <-g.fault.ended:
	}
}

// settle waits for what the ranks find out about a fault that a call of the backend has returned.
// An error that is no fault of the group is returned as it is.
func (g *Group) settle(err error) error {
	if err == nil || !g.raised(err) {
		return err
	}
	<-g.fault.ended
	return g.fault.known()
}

// raised tells whether an error is the communicator's fault.
func (g *Group) raised(err error) bool {
	cause := g.comm.Cause()
	return cause != nil && (errors.Is(err, cause) || errors.Is(err, driver.ErrFault))
}

// report is what a rank tells the others about its fault.
type report struct {
	Kind     string         `json:"kind"`
	Doing    string         `json:"doing"`
	Waited   time.Duration  `json:"waited"`
	Ranks    []int          `json:"ranks"`
	Activity map[int]string `json:"activity"`
	Text     string         `json:"text"`
	rank     int            // whose report it is
}

// The kinds of a report, in the order in which one explains the others: a rank that is lost makes
// others late, and a divergence makes them wait in different places.
const (
	kindLost     = "lost"
	kindDiverged = "diverged"
	kindLate     = "late"
	kindAborted  = "aborted"
	kindPeer     = "peer"
	kindOther    = "other"
)

func reportOf(cause error) report {
	var lost *driver.RankLostError
	var late *driver.TimeoutError
	var mismatch *driver.MismatchError
	var stray *driver.StrayError
	var diverged *DivergenceError
	switch {
	case errors.As(cause, &lost):
		return report{Kind: kindLost, Doing: lost.Doing, Ranks: lost.Ranks}
	case errors.As(cause, &diverged):
		return report{Kind: kindDiverged, Doing: "agreement"}
	case errors.As(cause, &mismatch):
		return report{Kind: kindDiverged, Doing: mismatch.Error()}
	case errors.As(cause, &stray):
		return report{Kind: kindDiverged, Doing: stray.Doing, Activity: stray.Elsewhere}
	case errors.As(cause, &late):
		return report{
			Kind: kindLate, Doing: late.Doing, Waited: late.Waited, Ranks: late.Missing,
			Activity: late.Activity,
		}
	case errors.Is(cause, driver.ErrAborted):
		return report{Kind: kindAborted}
	case errors.Is(cause, driver.ErrFault):
		doing := strings.TrimSuffix(cause.Error(), ": "+driver.ErrFault.Error())
		return report{Kind: kindPeer, Doing: doing}
	default:
		return report{Kind: kindOther, Text: cause.Error()}
	}
}

// grace bounds one meeting on the fault lane. Ranks that wait in a call come at once; one that
// does not come in time is reported without its help.
const grace = 2 * time.Second

// findOut meets the other ranks on the fault lane and works out the one error for all of them.
func (g *Group) findOut() error {
	cause := g.comm.Cause()
	if errors.Is(cause, ErrClosed) {
		return cause
	}
	message, err := json.Marshal(reportOf(cause))
	if err != nil {
		return errors.Join(cause, err)
	}
	got, err := g.meet(context.Background(), message)
	if err != nil {
		return errors.Join(cause, err)
	}
	reports := map[string][]report{}
	for from, m := range got {
		r := report{rank: g.ranks[from]}
		if json.Unmarshal(m, &r) == nil {
			reports[r.Kind] = append(reports[r.Kind], r)
		}
	}
	return g.conclude(cause, reports)
}

// meet is one exchange on the fault lane.
func (g *Group) meet(ctx context.Context, payload []byte) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, min(grace, g.rt.opts.Timeout))
	defer cancel()
	return g.comm.Exchange(ctx, driver.LaneFault, payload)
}

func (g *Group) conclude(cause error, reports map[string][]report) error {
	switch {
	case len(reports[kindLost]) > 0:
		first, ranks, _ := merge(reports[kindLost])
		return &RankLostError{Ranks: ranks, Doing: first.Doing}
	case len(reports[kindDiverged]) > 0:
		if err := g.explainDivergence(cause); !errors.Is(err, cause) {
			return err
		}
		// The histories are equal, as when a rank has left the group: then where each rank is.
		if first, _, activity := merge(reports[kindDiverged]); len(activity) > 0 {
			return &driver.StrayError{Doing: first.Doing, Elsewhere: activity}
		}
	case len(reports[kindLate]) > 0:
		first, ranks, activity := merge(reports[kindLate])
		return &TimeoutError{
			Doing: first.Doing, Waited: first.Waited, Missing: ranks, Activity: activity,
		}
	case len(reports[kindAborted]) > 0:
		return fmt.Errorf("group %s: %w", g.id, ErrAborted)
	case len(reports[kindOther]) > 0:
		first := reports[kindOther][0]
		return fmt.Errorf("group %s failed on rank %d: %s", g.id, first.rank, first.Text)
	}
	return cause
}

// merge joins the ranks that reports name. The first report, by rank, words the error, so that it
// reads alike everywhere.
func merge(reports []report) (first report, ranks []int, activity map[int]string) {
	activity = map[int]string{}
	for _, r := range reports {
		ranks = append(ranks, r.Ranks...)
		for rank, doing := range r.Activity {
			activity[rank] = doing
		}
	}
	slices.Sort(ranks)
	return reports[0], slices.Compact(ranks), activity
}

// comparable are the histories that ranks compare after a fault. Those that are still on their way
// may have made different pools.
func (g *Group) comparable(mode agreement.Mode) ([]agreement.Ledger, error) {
	if mode == agreement.Prefix {
		return g.shared(context.Background(), g.meet)
	}
	return g.histories(), nil
}

// explainDivergence finds the first differing event of the pools' histories, or, where these are
// equal, the collective in which the ranks differ, or at least where each of them is.
func (g *Group) explainDivergence(cause error) error {
	here := reportOf(cause).Doing
	here = here[:min(len(here), agreement.MaxTag)]
	var err error
	for _, c := range []agreement.Config{
		{Mode: agreement.Prefix, Call: g.callOf(cause), Site: g.latestSite()},
		// Ranks that wait for each other in different places have stopped, so what one of them
		// has done beyond the others counts, too.
		{Mode: agreement.Exact},
		{Mode: agreement.Exact, Tag: here},
	} {
		if c.Ledgers, err = g.comparable(c.Mode); err != nil {
			return errors.Join(cause, err)
		}
		verdict, err := g.compareOn(context.Background(), g.meet, c)
		if err != nil {
			return errors.Join(cause, err)
		}
		if err := verdict.Err(); err != nil {
			return err
		}
	}
	return cause
}
