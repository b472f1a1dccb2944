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

// fault is something that happens to the victim while the others are in a collective.
type fault struct {
	// late reports whether the others run into the timeout, which is that of the world then. The
	// victim gets SIGCONT once they have given up.
	late bool
	// stops reports whether the victim stops itself. Unless it is late it gets SIGCONT after a while.
	stops bool
	// right reports whether the results must be right, and nobody gets an error.
	right bool
	// level is the one at which the fault is tried on GPUs without -all-cells.
	level string
	// promised reports whether the outcome is promised at a level, on a path; nil means that it is.
	promised func(level string, path symmem.PathChoice) bool
	// happen is what the victim does instead of its call, or before it. It returns whether the
	// victim makes the call then.
	happen func(r *pageRank, c *cell) (call bool, err error)
	// verdict is what is wrong about the error that another rank was given.
	verdict func(p *pageTask, err error) string
}

const (
	// pageLong is the timeout of faults that do not run into it.
	pageLong = time.Minute
	// pageWhile is how late a rank is that comes within that.
	pageWhile = 300 * time.Millisecond
	// pageNamed is how soon a rank whose process has ended is named.
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
			return level == "every" || path == symmem.PathDirect // whose kernels compare by themselves
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
				return "no DeadlockError that says who has left"
			}
			return ""
		},
	},
}

// beStopped stops this process in front of its first cell, until rank 0 has it go on. The signal
// goes to this thread, which does not return from the call before it has stopped.
func beStopped(r *pageRank, c *cell) (bool, error) {
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

// differsVerdict wants both calls. Where they are not compared before they are launched, kernels
// compare them, and a rank whose kernel has not found out does not say what its call was.
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
		return fmt.Sprintf("it names %d of the calls", named)
	}
	return ""
}

// timeout is Options.Timeout.
func (f *fault) timeout(w *pageWorld) time.Duration {
	if f.late {
		return w.soon
	}
	return pageLong
}
