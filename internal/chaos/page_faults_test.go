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

// The tables in docs/reference/failures.md promise which errors the other ranks get if one rank,
// the victim, has a fault. For example, if the victim is killed during a collective, each other
// rank gets a RankLostError that names the victim. A cell of a table is a collective on one path
// (algorithm), called directly or replayed in a graph. The ranks run the collectives of several
// cells, one after another. For each cell, the victim injects the fault, and then calls the
// collective or leaves it out. The other ranks call the collective and check its error.

// fault describes a fault of the victim and its outcome.
type fault struct {
	// isLate is set if the victim is so late that the other ranks must time out. The ranks then have
	// a short timeout.
	isLate bool
	// isStopped is set if the victim stops itself with a signal. Another process resumes it: after
	// the short timeout if isLate is set, or else after pageDelay.
	isStopped bool
	// wantSuccess is set if the collective must succeed on all ranks.
	wantSuccess bool
	// level is the check level at which the fault is tested on GPUs without -all-cells.
	level string
	// isPromised reports whether the tables promise the outcome at a check level and on a path. nil
	// means that they always do.
	isPromised func(level string, path symmem.PathChoice) bool
	// inject performs the fault. The victim then calls the collective if shouldCall is true.
	inject func(r *pageRank, c *cell) (shouldCall bool, err error)
	// checkError returns "" if the error of another rank is the promised one. Otherwise, it describes
	// the difference. It is nil if wantSuccess is set.
	checkError func(p *pageTask, err error) string
}

const (
	// pageTimeout is the timeout of the ranks unless the fault is late.
	pageTimeout = time.Minute
	// pageDelay is the delay of a victim that must not cause a timeout.
	pageDelay = 300 * time.Millisecond
	// pageNamingLimit limits the time until an error names a killed rank. It is shorter than
	// pageTimeout, so a rank that waits for the timeout fails the test.
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
				<-r.resumeSignal // makes the victim late for all cells
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
			isCompared := level == "every"
			isComparedByKernels := path == symmem.PathDirect
			return isCompared || isComparedByKernels
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

// stopSelf stops this process before its first cell, until another process resumes it. The signal
// goes to the calling thread, so that Tgkill does not return before the process has stopped.
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

// checkDivergence requires a DivergenceError that describes the victim's call and the other ranks'.
// At levels below "every", only kernels compare calls. The error of a rank whose kernel has
// detected no difference may then describe only one call.
func checkDivergence(p *pageTask, err error) string {
	var diverged *symmem.DivergenceError
	if !errors.As(err, &diverged) {
		return "no DivergenceError"
	}

	wantCalls := 1
	if p.Level == "every" {
		wantCalls = 2
		sides := len(diverged.Sides)
		if sides != wantCalls {
			return fmt.Sprintf("the DivergenceError has %d sides, want both calls", sides)
		}
	}

	namedCalls := 0
	for _, count := range []int{pageElements, pageElements - 1} {
		call := fmt.Sprintf("of %d float32", count)
		if strings.Contains(err.Error(), call) {
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
