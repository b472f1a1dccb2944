package chaos

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"symmem"
	"symmem/driver"
)

// docs/reference/failures.md, the page, promises which errors the other ranks get if one rank, the
// victim, has a fault. A cell of its tables is a collective on one path (algorithm), called
// directly or replayed in a graph. A rank runs the collectives of several cells, one after another.

// fault describes what the victim does before it calls a collective in which the other ranks wait.
type fault struct {
	// isLate is set if the victim is so late that the other ranks must time out. The world then has
	// a short timeout, after which a stopped victim is resumed.
	isLate bool
	// isStopped is set if the victim stops itself with a signal. Unless isLate is set, it is
	// resumed after pageDelay.
	isStopped bool
	// wantSuccess is set if the collective must succeed on all ranks.
	wantSuccess bool
	// level is the check level of the test on GPUs without -all-cells.
	level string
	// isPromised reports whether the documentation promises the outcome at a check level and on a
	// path. nil means that it always does.
	isPromised func(level string, path symmem.PathChoice) bool
	// inject performs the fault. The victim then calls the collective if shouldCall is true.
	inject func(r *pageRank, c *cell) (shouldCall bool, err error)
	// checkError describes how an error of another rank differs from the promised one. It returns ""
	// if the error is right. It is nil if wantSuccess is set.
	checkError func(p *pageTask, err error) string
}

const (
	// pageTimeout is the timeout of worlds in which no rank must time out.
	pageTimeout = time.Minute
	// pageDelay is how late a victim is that must not cause a timeout.
	pageDelay = 300 * time.Millisecond
	// pageNamingLimit bounds the time until an error names a killed rank. It is shorter than
	// pageTimeout, to detect waits that do not notice that the rank is dead.
	pageNamingLimit = pageTimeout / 2
)

// pageFaults holds the faults by name.
var pageFaults = map[string]fault{
	"killed": {
		level: "off",
		inject: func(*pageRank, *cell) (bool, error) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // cannot fail
			select {}                                      // until the signal arrives
		},
		checkError: func(_ *pageTask, err error) string {
			var lost *symmem.RankLostError
			if !errors.As(err, &lost) || !slices.Equal(lost.Ranks, []int{pageVictim}) {
				return "no RankLostError that names the rank"
			}

			return ""
		},
	},
	"late": {
		level: "every", wantSuccess: true,
		inject: func(*pageRank, *cell) (bool, error) {
			<-time.After(pageDelay)
			return true, nil
		},
	},
	"later than the timeout": {
		level: "every", isLate: true,
		inject: func(r *pageRank, c *cell) (bool, error) {
			if c == r.cells[0] {
				<-r.resumeSignal // all later cells are then late, too
			}

			return true, nil
		},
		checkError: checkLateError,
	},
	"stopped": {
		level: "registration", wantSuccess: true, isStopped: true,
		inject: stopSelf,
	},
	"stopped for longer than the timeout": {
		level: "off", isLate: true, isStopped: true,
		inject:     stopSelf,
		checkError: checkLateError,
	},
	"differs": {
		level: "every",
		isPromised: func(level string, path symmem.PathChoice) bool {
			// Kernels of the direct path compare calls at every level.
			return level == "every" || path == symmem.PathDirect
		},
		inject: func(_ *pageRank, c *cell) (bool, error) {
			c.count--     // the other ranks pass pageElements
			c.graph = nil // call the collective, because the graph has the right count
			return true, nil
		},
		checkError: checkDivergence,
	},
	"aborts": {
		level: "registration",
		inject: func(_ *pageRank, c *cell) (bool, error) {
			c.group.Abort()
			return true, nil
		},
		checkError: func(_ *pageTask, err error) string {
			if !errors.Is(err, symmem.ErrAborted) {
				return "not ErrAborted"
			}

			return ""
		},
	},
	"leaves": {
		level:  "off",
		inject: func(_ *pageRank, c *cell) (bool, error) { return false, c.group.Close() },
		checkError: func(_ *pageTask, err error) string {
			var deadlock *driver.DeadlockError
			if !errors.As(err, &deadlock) || !strings.Contains(deadlock.Activity[pageVictim], "left") {
				return "no DeadlockError that names the rank that left"
			}

			return ""
		},
	},
}

// stopSelf stops this process before its first cell, until another process resumes it. It signals
// the calling thread, so that Tgkill does not return before the process has stopped.
func stopSelf(r *pageRank, c *cell) (bool, error) {
	if c != r.cells[0] {
		return true, nil
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return true, syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}

// checkLateError requires a TimeoutError that names the victim.
func checkLateError(_ *pageTask, err error) string {
	var late *symmem.TimeoutError
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{pageVictim}) {
		return "no TimeoutError that names the rank"
	}

	return ""
}

// checkDivergence requires a DivergenceError that describes both calls. At levels below "every",
// only kernels compare calls, and the error of a rank whose kernel detected no difference may
// describe only one call.
func checkDivergence(p *pageTask, err error) string {
	var diverged *symmem.DivergenceError
	wantCalls := 1
	if p.Level == "every" {
		wantCalls = 2
	}

	if !errors.As(err, &diverged) {
		return "no DivergenceError"
	}

	if sides := len(diverged.Sides); wantCalls == 2 && sides != 2 {
		return fmt.Sprintf("the DivergenceError has %d sides, want both calls", sides)
	}

	namedCalls := 0
	for _, count := range []int{pageElements, pageElements - 1} {
		if strings.Contains(err.Error(), fmt.Sprintf("of %d float32", count)) {
			namedCalls++
		}
	}

	if namedCalls < wantCalls {
		return fmt.Sprintf("the error names %d of the 2 calls, want at least %d", namedCalls, wantCalls)
	}

	return ""
}

// timeout returns the timeout of ranks in a world with this fault.
func (f *fault) timeout(w *pageWorld) time.Duration {
	if f.isLate {
		return w.shortTimeout
	}

	return pageTimeout
}
