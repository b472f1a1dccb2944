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

// fault describes what happens to the victim while the others are in a collective, and the expected
// outcome.
type fault struct {
	// late means that the others time out, with the timeout of the world. The victim gets SIGCONT
	// after that.
	late bool
	// stops means that the victim stops itself. Unless it is late, it gets SIGCONT after pageWhile.
	stops bool
	// right means that all results must be right, without an error.
	right bool
	// level is the check level at which the fault is tested on GPUs without -all-cells.
	level string
	// promised reports whether the page promises the outcome at a level on a path; nil means always.
	promised func(level string, path symmem.PathChoice) bool
	// happen is called on the victim before its call. It returns false if the victim must not make
	// the call.
	happen func(r *pageRank, c *cell) (call bool, err error)
	// verdict returns a description of what is wrong with the error of another rank, or "".
	verdict func(p *pageTask, err error) string
}

const (
	// pageLong is the timeout for faults that should not reach it.
	pageLong = time.Minute
	// pageWhile is the delay of a rank that is late but within the timeout.
	pageWhile = 300 * time.Millisecond
	// pageNamed bounds the time until a dead rank is reported.
	pageNamed = 3 * time.Second
)

var pageFaults = map[string]fault{
	"killed": {
		level: "off",
		happen: func(*pageRank, *cell) (bool, error) {
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
		level: "every", right: true,
		happen: func(*pageRank, *cell) (bool, error) {
			<-time.After(pageWhile)
			return true, nil
		},
	},
	"later than the timeout": {
		level: "every", late: true,
		happen: func(r *pageRank, c *cell) (bool, error) {
			if c == r.cells[0] {
				<-r.goOn
			}
			return true, nil
		},
		verdict: lateVerdict,
	},
	"stopped": {
		level: "registration", right: true, stops: true,
		happen: beStopped,
	},
	"stopped for longer than the timeout": {
		level: "off", late: true, stops: true,
		happen:  beStopped,
		verdict: lateVerdict,
	},
	"differs": {
		level: "every",
		promised: func(level string, path symmem.PathChoice) bool {
			return level == "every" || path == symmem.PathDirect // its kernels always compare
		},
		happen: func(_ *pageRank, c *cell) (bool, error) {
			c.count, c.graph = c.count-1, nil
			return true, nil
		},
		verdict: differsVerdict,
	},
	"aborts": {
		level: "registration",
		happen: func(_ *pageRank, c *cell) (bool, error) {
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
		happen: func(_ *pageRank, c *cell) (bool, error) { return false, c.group.Close() },
		verdict: func(_ *pageTask, err error) string {
			var deadlock *driver.DeadlockError
			if !errors.As(err, &deadlock) || !strings.Contains(deadlock.Elsewhere[pageVictim], "left") {
				return "no DeadlockError that names the rank that left"
			}
			return ""
		},
	},
}

// beStopped stops this process before its first cell, until rank 0 continues it. The signal is sent
// to this thread, so the call does not return before the process has stopped.
func beStopped(r *pageRank, c *cell) (bool, error) {
	if c != r.cells[0] {
		return true, nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return true, syscall.Tgkill(os.Getpid(), syscall.Gettid(), syscall.SIGSTOP)
}

// lateVerdict expects a TimeoutError that names the victim.
func lateVerdict(_ *pageTask, err error) string {
	var late *symmem.TimeoutError
	if !errors.As(err, &late) || !slices.Equal(late.Missing, []int{pageVictim}) {
		return "no TimeoutError that names the rank"
	}
	return ""
}

// differsVerdict expects a DivergenceError with both calls. If calls are not compared before the
// launch, kernels compare them, and a rank whose kernel did not detect the difference reports only
// one call.
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
		return fmt.Sprintf("it has %d of the calls", named)
	}
	return ""
}

// timeout returns Options.Timeout.
func (f *fault) timeout(w *pageWorld) time.Duration {
	if f.late {
		return w.soon
	}
	return pageLong
}
