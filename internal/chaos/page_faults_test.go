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

// fault describes how one rank, the victim, disturbs a collective, and what
// docs/reference/failures.md promises to the other ranks. For example, if the victim is killed, the
// others get a RankLostError that names the victim. A cell is the test of one collective.
type fault struct {
	isLate      bool   // the other ranks time out
	isStopped   bool   // the victim sends itself SIGSTOP, and another process resumes it
	wantSuccess bool   // the collective succeeds on all ranks
	level       string // check level of tests on GPUs without -all-cells
	// isPromised reports whether the page promises the outcome. Nil means always.
	isPromised func(level string, path symmem.PathChoice) bool
	// inject performs the fault on the victim. The victim then calls the collective if shouldCall is
	// set.
	inject func(r *pageRank, c *cell) (shouldCall bool, err error)
	// checkError describes how another rank's error differs from the promised one, or returns "". It
	// is nil if wantSuccess is set.
	checkError func(p *pageTask, err error) string
}

const (
	pageTimeout = time.Minute            // timeout of symmem, unless the victim is late
	pageDelay   = 300 * time.Millisecond // delay that causes no timeout
	// pageNamingLimit limits the time until an error names a killed rank. A rank that notices the
	// fault only by a timeout exceeds it.
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
			isFirst := c == r.cells[0]
			if isFirst { // the delay makes this rank late in later cells, too
				<-r.resumeSignal
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
			areCallsCompared := level == "every"
			doKernelsCompare := path == symmem.PathDirect
			return areCallsCompared || doKernelsCompare
		},
		inject: func(_ *pageRank, c *cell) (bool, error) {
			c.count = pageDifferentElements
			c.graph = nil // was captured with the count of the other ranks
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

// pageDifferentElements is the victim's count in the fault "differs".
const pageDifferentElements = pageElements - 1

// stopSelf stops this process before the first cell, until another process resumes it.
func stopSelf(r *pageRank, c *cell) (shouldCall bool, err error) {
	isFirst := c == r.cells[0]
	if !isFirst {
		return true, nil
	}

	// Signal this thread. Kill could return before the process has stopped.
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

// checkDivergence requires a DivergenceError about two different calls. At levels below "every",
// only kernels compare calls, and the error need not describe both.
func checkDivergence(p *pageTask, err error) string {
	var diverged *symmem.DivergenceError
	if !errors.As(err, &diverged) {
		return "no DivergenceError"
	}

	describedCalls := 0
	for _, count := range []int{pageElements, pageDifferentElements} {
		call := fmt.Sprintf("of %d float32", count)
		if strings.Contains(err.Error(), call) {
			describedCalls++
		}
	}

	wantCalls := 1
	if p.Level == "every" {
		wantCalls = 2
		if sides := len(diverged.Sides); sides != wantCalls {
			return fmt.Sprintf("the DivergenceError has %d sides, want %d", sides, wantCalls)
		}
	}

	if describedCalls < wantCalls {
		return fmt.Sprintf("the error describes %d calls, want %d", describedCalls, wantCalls)
	}

	return ""
}

// timeout returns the timeout of symmem in a test of the fault.
func (f *fault) timeout(w *pageWorld) time.Duration {
	if f.isLate {
		return w.shortTimeout
	}

	return pageTimeout
}
