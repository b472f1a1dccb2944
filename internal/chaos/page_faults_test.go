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

// fault describes what one rank, the victim, does while the other ranks are in a collective.
type fault struct {
	// isLate is set if the other ranks must time out. The world then has a short timeout, and a
	// stopped victim is resumed only after it.
	isLate bool
	// isStopped is set if the victim stops itself with a signal. Unless isLate is set, it is
	// resumed after pageDelay.
	isStopped   bool
	wantSuccess bool
	// level is the check level of the test on GPUs. With -all-cells, all levels are tested.
	level string
	// isPromised reports whether the documentation promises the outcome. nil means that it always
	// does.
	isPromised func(level string, path symmem.PathChoice) bool
	// inject causes the fault before the collective, which the victim skips if shouldCall is false.
	inject func(r *pageRank, c *cell) (shouldCall bool, err error)
	// checkError returns what is wrong with another rank's error, or "".
	checkError func(p *pageTask, err error) string
}

const (
	// pageTimeout is for faults in which no rank must time out.
	pageTimeout = time.Minute
	// pageDelay is a delay within the timeout.
	pageDelay = 300 * time.Millisecond
	// pageNamingLimit bounds the time until an error names a dead rank. A wait that does not notice
	// the death lasts until pageTimeout.
	pageNamingLimit = pageTimeout / 2
)

var pageFaults = map[string]fault{
	"killed": {
		level: "off",
		inject: func(*pageRank, *cell) (bool, error) {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
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
			return level == "every" || path == symmem.PathDirect // kernels of this path always compare
		},
		inject: func(_ *pageRank, c *cell) (bool, error) {
			c.count, c.graph = c.count-1, nil
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

// stopSelf stops this process before its first cell. It signals the calling thread, so that Tgkill
// does not return before the process has stopped.
func stopSelf(r *pageRank, c *cell) (bool, error) {
	if c != r.cells[0] {
		return true, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return true, syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}

func checkLateError(_ *pageTask, err error) string {
	var late *symmem.TimeoutError
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{pageVictim}) {
		return "no TimeoutError that names the rank"
	}
	return ""
}

// checkDivergence requires a DivergenceError with both calls. Below the level "every", only kernels
// compare calls, and a rank whose kernel detected no difference may show just one.
func checkDivergence(p *pageTask, err error) string {
	var diverged *symmem.DivergenceError
	if !errors.As(err, &diverged) || p.Level == "every" && len(diverged.Sides) != 2 {
		return "no DivergenceError that names both calls"
	}
	named := 0
	for _, count := range []int{pageElements, pageElements - 1} {
		if strings.Contains(err.Error(), fmt.Sprintf("of %d float32", count)) {
			named++
		}
	}
	if named == 0 || p.Level == "every" && named == 1 {
		return fmt.Sprintf("the error names %d of the 2 calls", named)
	}
	return ""
}

func (f *fault) timeout(w *pageWorld) time.Duration {
	if f.isLate {
		return w.shortTimeout
	}
	return pageTimeout
}
