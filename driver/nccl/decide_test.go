package nccl

import (
	"fmt"
	"strings"
	"testing"
)

// factsOf returns facts in which the fields named in words are set, and also the fields that
// these imply.
func factsOf(words string) (f facts) {
	for word := range strings.FieldsSeq(words) {
		for _, n := range f.fields() {
			if n.name == word {
				*n.fact = true
			}
		}
	}

	f.hasForeignGraphs = f.hasForeignGraphs || f.hasForeignPlainKernels || f.hasForeignWindowKernels
	f.closedStreamsMayRun = f.closedStreamsMayRun || f.hasStuckKernel
	f.canAbortQuickly = !f.closedStreamsMayRun && !strings.Contains(words, "slow-abort")
	return f
}

type namedFact struct {
	name string
	fact *bool
}

// fields returns pointers to the fields of f, except those that record progress.
func (f *facts) fields() []namedFact {
	return []namedFact{
		{"stuck", &f.hasStuckKernel},
		{"blocked-call", &f.hasBlockedCall},
		{"idle", &f.isIdle},
		{"windows", &f.hasWindowKernels},
		{"plain", &f.hasPlainKernels},
		{"closed-streams-busy", &f.closedStreamsMayRun},
		{"captured", &f.hasForeignGraphs},
		{"captured-plain", &f.hasForeignPlainKernels},
		{"captured-windows", &f.hasForeignWindowKernels},
		{"quick-abort", &f.canAbortQuickly},
	}
}

func (f *facts) String() string { return fmt.Sprintf("%+v", *f) }

// isPossible reports whether this combination of facts can occur.
func (f *facts) isPossible() bool {
	switch {
	case f.isIdle && f.hasWindowKernels,
		(f.hasForeignPlainKernels || f.hasForeignWindowKernels) &&
			(!f.hasForeignGraphs || f.hasBlockedCall),
		f.hasStuckKernel && !f.closedStreamsMayRun, f.closedStreamsMayRun && f.canAbortQuickly:
		return false
	}

	return true
}

// successors returns every state in which the communicator may be after step s. Work may complete
// during any step.
func (f *facts) successors(s step) []facts {
	next := *f
	idle := *f
	idle.isIdle, idle.hasWindowKernels, idle.hasBlockedCall = true, false, false
	switch s {
	case stepDrain:
		timedOut := *f
		timedOut.hasDrainTimedOut, timedOut.closedStreamsMayRun = true, true
		timedOut.canAbortQuickly = false
		return []facts{timedOut, idle}
	case stepAbort:
		next.hasAborted, idle.hasAborted = true, true
		if !f.haveKernelsEnded {
			next.hasDrainTimedOut, idle.hasDrainTimedOut = false, false
		}

		returned := next
		returned.hasBlockedCall = false
		return []facts{next, returned, idle}
	case stepDeregister:
		next.hasDeregistered = true
	case stepAwaitOwnGraphs:
		next.haveKernelsEnded, idle.haveKernelsEnded = true, true
		return []facts{next, idle}
	case stepAwaitForeignGraphs:
		next.hasForeignGraphs = false
		next.hasForeignPlainKernels, next.hasForeignWindowKernels = false, false
	case stepAwaitDevice:
		stuck := *f
		stuck.hasStuckKernel = true
		next.closedStreamsMayRun, next.canAbortQuickly = f.hasStuckKernel, !f.hasStuckKernel
		return []facts{next, stuck}
	case stepFinish, stepAbandonStreams, stepKeepCommunicator:
	}

	return []facts{next}
}

// teardownCase describes a teardown. timeouts contains "before" if drains time out before the
// abort, and "after" if they time out after it. want lists the expected steps.
type teardownCase struct{ name, facts, timeouts, want string }

// outcome returns the state after a step. Work completes only during an abort, or during a drain
// that succeeds.
func (c *teardownCase) outcome(f *facts, s step) facts {
	states, phase := f.successors(s), "before"
	if f.hasAborted {
		phase = "after"
	}

	if s == stepAbort || s == stepDrain && !strings.Contains(c.timeouts, phase) {
		return states[1]
	}

	return states[0]
}

const usualSteps = "deregister, await own graphs, abort, finish"

// teardowns lists typical teardowns.
var teardowns = []teardownCase{
	{"no work", "idle", "", usualSteps},
	{
		"the device has other work", "idle slow-abort", "",
		"deregister, await own graphs, await device, abort, finish",
	},
	{
		"a closed stream has a kernel that the abort stops", "idle plain closed-streams-busy", "",
		"abort, await own graphs, finish",
	},
	{
		"a closed stream had a kernel that has exited", "idle plain", "", usualSteps,
	},
	{"direct kernels run", "", "", "drain, " + usualSteps},
	{
		"direct kernels are blocked", "", "before",
		"drain, await own graphs, await device, abort, finish",
	},
	{"a plain kernel runs", "plain", "", "abort, drain, await own graphs, finish"},
	{"a plain kernel does not exit", "plain", "after", "abort, drain, await own graphs, finish"},
	{"a call waits for a rank", "blocked-call", "", "abort, drain, await own graphs, finish"},
	{"a registration waits for a rank", "idle blocked-call", "", "abort, await own graphs, finish"},
	{"a window kernel exits", "windows", "", "drain, " + usualSteps},
	{"a window kernel does not exit", "windows", "before", "drain, abandon"},
	{
		"a call waits after window kernels", "blocked-call windows", "",
		"abort, drain, await own graphs, finish",
	},
	{
		"a call waits after a window kernel that does not exit", "blocked-call windows", "after",
		"abort, drain, abandon",
	},
	{
		"graphs of other libraries have direct kernels", "idle captured", "",
		"deregister, await own graphs, await foreign graphs, abort, finish",
	},
	{
		"graphs of other libraries have window kernels", "idle captured-windows captured-plain", "",
		"deregister, await own graphs, await foreign graphs, abort, finish",
	},
	{
		"graphs of other libraries have plain kernels", "idle captured-plain", "",
		"deregister, await own graphs, abort, await foreign graphs, finish",
	},
	{
		"graphs of other libraries have plain kernels, and work runs", "captured-plain", "",
		"abort, drain, await own graphs, await foreign graphs, finish",
	},
	{
		"graphs of other libraries have window kernels, and work completes", "captured-windows", "",
		"drain, deregister, await own graphs, await foreign graphs, abort, finish",
	},
	{
		"graphs of other libraries have window kernels, and work is blocked", "captured-windows",
		"before",
		"drain, abort, drain, await own graphs, await foreign graphs, finish",
	},
	{"a kernel is stuck", "stuck idle", "", "keep"},
	{"a kernel is stuck, a registration waits", "stuck idle blocked-call", "", "abort, keep"},
	{"a kernel is stuck, work completes", "stuck", "", "drain, keep"},
	{"a kernel is stuck, work does not complete", "stuck", "before", "drain, abandon"},
	{"a kernel is stuck, a call returns", "stuck blocked-call", "before", "drain, abort, drain, keep"},
	{
		"a kernel is stuck, a call does not return", "stuck blocked-call", "before after",
		"drain, abort, drain, abandon",
	},
}

func TestTeardownSteps(t *testing.T) {
	for _, c := range teardowns {
		t.Run(c.name, func(t *testing.T) {
			f := factsOf(c.facts)
			if !f.isPossible() {
				t.Fatalf("the facts %q cannot occur together", c.facts)
			}

			var steps []string
			for next := decideStep(&f); ; next = decideStep(&f) {
				steps = append(steps, string(next))
				if next.isLast() || len(steps) > maxSteps {
					break
				}

				f = c.outcome(&f, next)
			}

			if got := strings.Join(steps, ", "); got != c.want {
				t.Errorf("the teardown took the steps\n%s, want\n%s", got, c.want)
			}
		})
	}
}

const maxSteps = 12

// TestEveryTeardownIsSafe starts from each possible combination of facts, and explores all
// outcomes of all steps.
func TestEveryTeardownIsSafe(t *testing.T) {
	explored := 0
	var f facts
	for bits := range 1 << len(f.fields()) {
		f = facts{}
		for i, n := range f.fields() {
			*n.fact = bits>>i&1 == 1
		}

		if f.isPossible() {
			explored++
			explore(t, f, nil)
		}
	}

	if explored < 100 {
		t.Errorf("explored %d combinations of facts, want at least 100", explored)
	}
}

// explore explores every way in which a teardown in state f can continue, and checks that each step
// is safe. steps lists the steps so far.
func explore(t *testing.T, f facts, steps []step) {
	t.Helper()
	next := decideStep(&f)
	steps = append(steps[:len(steps):len(steps)], next)
	if reason := unsafeReason(&f, next); reason != "" {
		t.Fatalf("%s: steps %v, facts %v", reason, steps, &f)
	}

	if next.isLast() {
		return
	}

	if len(steps) == maxSteps {
		t.Fatalf("the teardown is not done after the steps %v", steps)
	}

	for _, state := range f.successors(next) {
		explore(t, state, steps)
		if !state.hasStuckKernel { // a kernel of another group gets stuck
			state.hasStuckKernel, state.closedStreamsMayRun, state.canAbortQuickly = true, true, false
			explore(t, state, steps)
		}
	}
}

// unsafeReason returns the reason why step s is unsafe in state f, or "".
func unsafeReason(f *facts, s step) string {
	for reason, unsafe := range map[string]bool{
		"aborts twice":                     s == stepAbort && f.hasAborted,
		"closes stages.kernelsEnded twice": s == stepAwaitOwnGraphs && f.haveKernelsEnded,
		"abandons work that might complete": s == stepAbandonStreams &&
			(f.isIdle || !f.hasDrainTimedOut || f.hasBlockedCall && !f.hasAborted),
		"abandons work after kernels ended": s == stepAbandonStreams && f.haveKernelsEnded,
		"deregisters while kernels may run": s == stepDeregister && !f.isIdle,
		"deregisters twice, or after the abort": s == stepDeregister &&
			(f.hasDeregistered || f.hasAborted),
		"the abort waits for a window kernel": s == stepAbort &&
			f.hasWindowKernels && !f.hasBlockedCall,
		"the abort waits for a graph's window kernel, although no work needs the abort": s == stepAbort &&
			f.hasForeignWindowKernels && f.isIdle && !(f.hasPlainKernels && f.closedStreamsMayRun),
		"the abort waits for another group's kernel": s == stepAbort && f.hasStuckKernel &&
			!f.hasBlockedCall,
		"waits for an abort that was not started": s == stepFinish && !f.hasAborted,
		"frees memory that graphs use":            s == stepFinish && f.hasForeignGraphs,
		"frees memory that kernels may use": s == stepFinish &&
			!f.haveKernelsEnded,
		"keeps the communicator although the abort would return": s == stepKeepCommunicator &&
			!f.hasStuckKernel,
	} {
		if unsafe {
			return reason
		}
	}

	return ""
}
