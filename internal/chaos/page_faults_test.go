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

// fault describes what one rank, the victim, does while the other ranks are in a collective, and
// the expected outcome.
type fault struct {
	// late is set if the other ranks must time out. The world then has a short timeout, and a
	// victim that stops itself is resumed only after the timeout.
	late bool
	// stops is set if the victim stops itself with a signal. Unless late is also set, it is resumed
	// after pageDelay.
	stops       bool
	wantSuccess bool
	// level is the check level at which the fault is tested on GPUs. With -all-cells, it is tested
	// at all levels.
	level string
	// promised reports whether the documentation promises the outcome for a check level and path.
	// If promised is nil, the outcome is promised for every level and path.
	promised func(level string, path symmem.PathChoice) bool
	// inject causes the fault. The victim calls inject before the collective, and skips the
	// collective if call is false.
	inject func(r *pageRank, c *cell) (call bool, err error)
	// verdict checks an error that another rank returned. It describes what is wrong with the
	// error, or returns "" if nothing is.
	verdict func(p *pageTask, err error) string
}

const (
	// pageTimeout is the world's timeout for faults during which no rank must time out.
	pageTimeout = time.Minute
	// pageDelay is the delay of a late rank that stays within the timeout.
	pageDelay = 300 * time.Millisecond
	// pageNamingLimit bounds the time until an error names a dead rank.
	pageNamingLimit = 3 * time.Second
)

var pageFaults = map[string]fault{
	"killed": {
		level: "off",
		inject: func(*pageRank, *cell) (bool, error) {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		},
		verdict: func(_ *pageTask, err error) string {
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
		level: "every", late: true,
		inject: func(r *pageRank, c *cell) (bool, error) {
			if c == r.cells[0] {
				<-r.resumeSignal
			}
			return true, nil
		},
		verdict: lateVerdict,
	},
	"stopped": {
		level: "registration", wantSuccess: true, stops: true,
		inject: stopSelf,
	},
	"stopped for longer than the timeout": {
		level: "off", late: true, stops: true,
		inject:  stopSelf,
		verdict: lateVerdict,
	},
	"differs": {
		level: "every",
		promised: func(level string, path symmem.PathChoice) bool {
			return level == "every" || path == symmem.PathDirect // direct kernels always compare
		},
		inject: func(_ *pageRank, c *cell) (bool, error) {
			c.count, c.graph = c.count-1, nil
			return true, nil
		},
		verdict: differsVerdict,
	},
	"aborts": {
		level: "registration",
		inject: func(_ *pageRank, c *cell) (bool, error) {
			c.group.Abort()
			return true, nil
		},
		verdict: func(_ *pageTask, err error) string {
			if !errors.Is(err, symmem.ErrAborted) {
				return "not ErrAborted"
			}
			return ""
		},
	},
	"leaves": {
		level:  "off",
		inject: func(_ *pageRank, c *cell) (bool, error) { return false, c.group.Close() },
		verdict: func(_ *pageTask, err error) string {
			var deadlock *driver.DeadlockError
			if !errors.As(err, &deadlock) || !strings.Contains(deadlock.Activity[pageVictim], "left") {
				return "no DeadlockError that names the rank that left"
			}
			return ""
		},
	},
}

// stopSelf stops this process before its first cell, until rank 0 resumes it. It sends the signal
// to the calling thread, so that Tgkill does not return before the process has stopped.
func stopSelf(r *pageRank, c *cell) (bool, error) {
	if c != r.cells[0] {
		return true, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return true, syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}

func lateVerdict(_ *pageTask, err error) string {
	var late *symmem.TimeoutError
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{pageVictim}) {
		return "no TimeoutError that names the rank"
	}
	return ""
}

// differsVerdict checks that err is a DivergenceError that shows both calls. At levels below
// "every", only kernels compare the calls. A rank whose kernel did not detect the difference may
// then show just one call.
func differsVerdict(p *pageTask, err error) string {
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
	if f.late {
		return w.shortTimeout
	}
	return pageTimeout
}
