package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"symmem/driver"
)

// testGroup is a group in which world ranks differ from group ranks. This rank is group rank 0.
var testGroup = driver.GroupConfig{ID: " ours", Ranks: []int{7, 5, 3}}

type verdict struct {
	kind  string
	ranks []int
}

func verdictOf(err error) verdict {
	var lost *driver.RankLostError
	var peer *driver.PeerError
	var deadlock *driver.DeadlockError
	var late *driver.TimeoutError
	switch {
	case err == nil:
		return verdict{kind: "none"}
	case errors.As(err, &lost):
		return verdict{"lost", lost.Ranks}
	case errors.As(err, &peer) && peer.Aborted:
		return verdict{"aborted", peer.Ranks}
	case errors.As(err, &peer):
		return verdict{"peer", peer.Ranks}
	case errors.As(err, &deadlock):
		v := verdict{kind: "deadlock"}
		for _, r := range testGroup.Ranks {
			if deadlock.Activity[r] != "" {
				v.ranks = append(v.ranks, r)
			}
		}

		return v
	case errors.As(err, &late):
		return verdict{"late", late.Missing}
	default:
		return verdict{kind: err.Error()}
	}
}

const timeout = time.Minute

// verdictCase describes a wait in collective 3 by default.
type verdictCase struct {
	name      string
	status    WaitStatus
	me, b, c  RankState // group ranks 0, 1 and 2; the zero value means that the rank has arrived
	want      verdict
	elsewhere string // the activity of b that a DeadlockError must contain, if set
}

var none = verdict{kind: "none"}

var (
	atWork   = WaitStatus{Collective: 3, IsWork: true, SincePeerFailure: -1}
	exchange = WaitStatus{IsExchange: true}
)

func with(q WaitStatus, change func(*WaitStatus)) WaitStatus {
	change(&q)
	return q
}

var verdicts = []verdictCase{
	{name: "all ranks have arrived", want: none},
	{name: "a rank has not arrived yet", b: RankState{Missing: true}, want: none},
	{
		name: "a rank is late", status: WaitStatus{Waited: timeout}, b: RankState{Missing: true},
		want: verdict{"late", []int{5}},
	},
	{
		name: "two ranks are late", status: WaitStatus{Waited: timeout},
		b: RankState{Missing: true}, c: RankState{Missing: true},
		want: verdict{"late", []int{5, 3}},
	},
	{
		name: "the caller's deadline", status: WaitStatus{DeadlinePassed: true, Waited: minWait},
		b:    RankState{Missing: true},
		want: verdict{"late", []int{5}},
	},
	{
		name:   "this rank began to wait after the caller's deadline",
		status: WaitStatus{DeadlinePassed: true, Waited: time.Millisecond},
		b:      RankState{Missing: true},
		want:   verdict{"late", nil},
	},
	{
		name: "this rank was stopped long after it began to wait after the caller's deadline",
		status: WaitStatus{
			DeadlinePassed: true, Waited: timeout / 2, Overrun: timeout/2 + time.Millisecond,
		},
		b:    RankState{Missing: true},
		want: verdict{"late", nil},
	},
	{
		name:   "this rank began to wait after the deadline, another waited before",
		status: with(exchange, func(q *WaitStatus) { q.DeadlinePassed = true }),
		b:      RankState{Missing: true}, c: RankState{InExchange: 1, Waited: minWait},
		want: verdict{"late", []int{5}},
	},
	{
		name:   "the timeout has passed, but all have arrived",
		status: WaitStatus{DeadlinePassed: true, Waited: timeout},
		want:   none,
	},
	{
		name:   "messages of other ranks are unread",
		status: WaitStatus{Waited: timeout, Stale: true},
		b:      RankState{Missing: true}, want: none,
	},
	{
		name: "a rank exits without leaving", b: RankState{Missing: true, Lost: true},
		want: verdict{"lost", []int{5}},
	},
	{
		name: "a rank arrives and exits", b: RankState{Lost: true}, c: RankState{Missing: true},
		want: none,
	},
	{
		name: "a rank exits, and another has exited after arriving",
		b:    RankState{Missing: true, Lost: true}, c: RankState{Lost: true},
		want: verdict{"lost", []int{5, 3}},
	},
	{
		name: "a rank leaves without arriving", b: RankState{Missing: true, Left: true},
		want: verdict{"deadlock", []int{5}}, elsewhere: "has left the group",
	},
	{
		name: "a rank leaves without arriving, and its process exits",
		b:    RankState{Missing: true, Left: true, Lost: true},
		want: verdict{"deadlock", []int{5}}, elsewhere: "has left the group",
	},
	{
		name: "a rank leaves without arriving, and another dies",
		b:    RankState{Missing: true, Left: true}, c: RankState{Missing: true, Lost: true},
		want: verdict{"lost", []int{3}},
	},
	{
		name: "a rank arrives and leaves", b: RankState{Left: true, Lost: true},
		c:    RankState{Missing: true},
		want: none,
	},
	{
		name: "a rank is late and another has failed", status: WaitStatus{Waited: timeout},
		b: RankState{Missing: true}, c: RankState{Failed: FailedItself},
		want: verdict{"peer", []int{3}},
	},
	{
		name: "a rank has failed and another exits", b: RankState{Missing: true, Lost: true},
		c: RankState{Failed: FailedItself}, want: verdict{"lost", []int{5}},
	},
	{
		name: "a rank has failed and left",
		b:    RankState{Missing: true, Failed: FailedItself, Left: true},
		want: verdict{"peer", []int{5}},
	},
	{
		name: "a rank has failed after another rank's fault",
		b:    RankState{Missing: true, Failed: FailedAfterPeer},
		c:    RankState{Missing: true, Failed: FailedItself}, want: verdict{"peer", []int{3}},
	},
	{
		name: "the first fault is unknown",
		b:    RankState{Missing: true, Failed: FailedAfterPeer},
		want: verdict{"peer", []int{5}},
	},
	{
		name: "a rank aborted the group", b: RankState{Missing: true, Failed: Aborted},
		want: verdict{"aborted", []int{5}},
	},
	{
		name: "a rank aborts and its process exits",
		b:    RankState{Missing: true, Failed: Aborted, Lost: true},
		want: verdict{"aborted", []int{5}},
	},
	{
		name: "a rank has failed, but all have arrived", b: RankState{Failed: FailedItself}, want: none,
	},
	{
		name: "a rank that has failed had seen this step complete",
		b:    RankState{Failed: FailedItself, Completed: true}, c: RankState{Missing: true},
		want: none,
	},
	{
		name: "this rank has failed", status: WaitStatus{Cause: errors.New("ours")},
		b: RankState{Missing: true, Lost: true}, want: verdict{kind: "ours"},
	},
	{
		name:   "this rank failed in a step that another had seen complete",
		status: WaitStatus{Cause: errors.New("ours")},
		b:      RankState{Failed: FailedItself, Completed: true}, c: RankState{Missing: true},
		want: none,
	},
	{
		name:   "this rank left in a step that another had seen complete",
		status: WaitStatus{Cause: errors.New("ours"), Closed: true},
		b:      RankState{Failed: FailedItself, Completed: true}, c: RankState{Missing: true},
		want: verdict{kind: "ours"},
	},
	{
		name: "this rank is in a collective, another in an exchange", me: RankState{Exchanges: 1},
		b: RankState{Missing: true, InExchange: 2, Submitted: 2}, want: verdict{"deadlock", []int{5}},
		elsewhere: "in an agreement for 0s, after 2 collectives",
	},
	{
		name: "this rank has reached the exchange", me: RankState{Exchanges: 2},
		b: RankState{Missing: true, InExchange: 2, Submitted: 2}, want: none,
	},
	{
		name: "another rank is in an exchange after the collective", me: RankState{Exchanges: 1},
		b: RankState{Missing: true, InExchange: 2, Submitted: 3}, want: none,
	},
	{
		name: "this rank is in an exchange, another in a collective", status: exchange,
		me: RankState{Submitted: 3},
		b: RankState{
			Missing: true, InCollective: 4, Operation: driver.AllGather, Waited: 2 * time.Second,
		},
		want: verdict{"deadlock", []int{5}}, elsewhere: "in AllGather 4 for 2s",
	},
	{
		name: "this rank has launched the collective", status: exchange,
		me: RankState{Submitted: 4}, b: RankState{Missing: true, InCollective: 4}, want: none,
	},
	{
		name:   "a wait that ignores faults continues",
		status: WaitStatus{IgnoreFaults: true, Cause: errors.New("ours")},
		b:      RankState{Missing: true, Failed: FailedItself}, want: none,
	},
	{
		name: "a wait that ignores faults ends if a rank is lost", status: WaitStatus{IgnoreFaults: true},
		b: RankState{Missing: true, Lost: true}, want: verdict{"lost", []int{5}},
	},
	{
		name: "work: all have launched it and a process exits", status: atWork, b: RankState{Lost: true},
		want: verdict{"lost", []int{5}},
	},
	{
		name: "work: a rank has launched it, left and exited", status: atWork,
		b: RankState{Left: true, Lost: true}, want: none,
	},
	{
		name: "work: a rank has left without launching it and exited", status: atWork,
		b: RankState{Missing: true, Left: true, Lost: true}, want: verdict{"deadlock", []int{5}},
	},
	{
		name: "work: a rank has launched it and just failed", status: atWork,
		b: RankState{Failed: FailedItself}, want: none,
	},
	{
		name:   "work: a rank launched it and failed some time ago",
		status: with(atWork, func(q *WaitStatus) { q.SincePeerFailure = Grace }),
		b:      RankState{Failed: FailedItself}, want: verdict{"peer", []int{5}},
	},
	{
		name: "work: a rank has failed without launching it", status: atWork,
		b: RankState{Missing: true, Failed: FailedItself}, want: verdict{"peer", []int{5}},
	},
	{
		name: "work that needs no other rank", status: WaitStatus{IsWork: true, Waited: timeout},
		b: RankState{Missing: true, Lost: true, Failed: FailedItself}, want: none,
	},
	{
		name:   "work that needs no other rank, after a fault of this one",
		status: WaitStatus{IsWork: true, Cause: errors.New("ours")}, want: verdict{kind: "ours"},
	},
}

func TestVerdicts(t *testing.T) {
	for _, c := range verdicts {
		t.Run(c.name, func(t *testing.T) {
			q := c.status
			q.Group, q.Timeout = testGroup, timeout
			q.CallText = func() string { return "the wait" }
			if !q.IsExchange && !q.IsWork {
				q.Collective = 3
			}

			err := Judge(&q, []RankState{c.me, c.b, c.c}).Err
			got := verdictOf(err)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(verdict{})); diff != "" {
				t.Fatalf("%v: %s", err, diff)
			}

			var deadlock *driver.DeadlockError
			if errors.As(err, &deadlock) && c.elsewhere != "" && deadlock.Activity[5] != c.elsewhere {
				t.Errorf("activity of world rank 5 = %q, want %q", deadlock.Activity[5], c.elsewhere)
			}
		})
	}
}

func TestJudgeWarnsOfLateRanks(t *testing.T) {
	enabled := driver.Late{After: 30 * time.Second, Warn: func(driver.LateWarning) {}}
	missing, minute := RankState{Missing: true}, time.Minute
	for _, c := range []struct {
		name               string
		waited, warned     time.Duration
		late               driver.Late
		row                RankState
		ignoreFaults, want bool
	}{
		{"not yet", 29 * time.Second, -1, enabled, missing, false, false},
		{"after half a minute", 30 * time.Second, -1, enabled, missing, false, true},
		{"not again immediately", 31 * time.Second, time.Second, enabled, missing, false, false},
		{"not within a minute", 89 * time.Second, 59 * time.Second, enabled, missing, false, false},
		{"a minute later", 90 * time.Second, minute, enabled, missing, false, true},
		{"an earlier wait caused a warning", 30 * time.Second, minute, enabled, missing, false, true},
		{"not if no rank is missing", minute, -1, enabled, RankState{}, false, false},
		{"not without a callback", minute, -1, driver.Late{After: 1}, missing, false, false},
		{"not if disabled", minute, -1, driver.Late{Warn: enabled.Warn}, missing, false, false},
		{"not if ranks may be absent", minute, -1, enabled, missing, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := WaitStatus{
				Group: testGroup, Collective: 3,
				CallText: func() string { return "AllReduce 3 of group ours" },
				Waited:   c.waited, Timeout: time.Hour, Late: c.late, SinceWarning: c.warned,
				IgnoreFaults: c.ignoreFaults,
			}
			v := Judge(&q, []RankState{{}, c.row, {}})
			if v.Err != nil || (v.Warning != nil) != c.want {
				t.Fatalf("Judge = %+v; want no error, and a warning: %v", v, c.want)
			}

			if !c.want {
				return
			}

			want := &driver.LateWarning{
				Group: "ours", InCall: "AllReduce 3 of group ours", Waited: c.waited,
				Ranks:    []int{5},
				Activity: map[int]string{5: "in no call of this group, after 0 collectives"},
				Members:  testGroup.Ranks,
			}
			if diff := cmp.Diff(want, v.Warning); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTimeUntilNextWarning(t *testing.T) {
	l := driver.Late{After: 30 * time.Second, Warn: func(driver.LateWarning) {}}
	for _, c := range []struct{ waited, since, want time.Duration }{
		{0, -1, 30 * time.Second},
		{31 * time.Second, -1, 0},
		{40 * time.Second, 10 * time.Second, 50 * time.Second},
		{time.Second, 2 * time.Second, 29 * time.Second},
	} {
		if got := l.Next(c.waited, c.since); got != c.want {
			t.Errorf("Next(%v, %v) = %v, want %v", c.waited, c.since, got, c.want)
		}
	}
}

func TestRankStateString(t *testing.T) {
	for want, r := range map[string]RankState{
		"in no call of this group, after 7 collectives": {Submitted: 7},
		"in an agreement for 3s, after 7 collectives": {
			Submitted: 7, InExchange: 4, Waited: 3 * time.Second,
		},
		"in Broadcast 7 for 3s": {
			Submitted: 7, InCollective: 7, Operation: driver.Broadcast, InExchange: 4,
			Waited: 3 * time.Second,
		},
		"has left the group":       {Submitted: 7, InExchange: 4, Left: true},
		"in Operation(?) 9 for 3s": {InCollective: 9, Operation: 200, Waited: 3 * time.Second},
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestInterruptedErrorListsMissingRanks(t *testing.T) {
	q := WaitStatus{
		Group: testGroup, CallText: func() string { return "work" }, Waited: time.Second,
		Timeout: timeout,
	}
	states := []RankState{{}, {Missing: true}, {}}
	err := InterruptedWaitError(&q, states, context.DeadlineExceeded)
	if got := verdictOf(err); got.kind != "late" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline exceeded: got %v, want a TimeoutError that wraps the cause", err)
	}

	const cancelled = "work: waited 1s for world rank 5 (rank 1 of the group); " +
		"world rank 5: in no call of this group, after 0 collectives: context canceled"
	if err := InterruptedWaitError(&q, states, context.Canceled); err.Error() != cancelled ||
		verdictOf(err).kind == "late" {
		t.Errorf("canceled: got %v, want %s, and no TimeoutError", err, cancelled)
	}

	q.Waited = 0
	err = InterruptedWaitError(&q, states, context.Canceled)
	if !strings.Contains(err.Error(), "waited 0s for world rank 5") {
		t.Errorf("canceled at once: got %v, want the missing rank", err)
	}

	err = InterruptedWaitError(&q, make([]RankState, 3), context.Canceled)
	if err.Error() != "work: context canceled" {
		t.Errorf("no rank missing: got %v, want %q", err, "work: context canceled")
	}
}

// TestLateStartBlamesNoRank covers waits that end before another rank can arrive.
func TestLateStartBlamesNoRank(t *testing.T) {
	const want = "work: waited 3ms; world rank 7: began this call when its deadline had passed or " +
		"was near"
	limited := testGroup
	limited.Timeout = driver.NewLimit(timeout)
	q := WaitStatus{
		Group: limited, CallText: func() string { return "work" }, Waited: 3 * time.Millisecond,
		Timeout: timeout, DeadlinePassed: true,
	}
	states := []RankState{{}, {Missing: true}, {}}
	absentErr := AbsentError("work", limited, q.Waited, []int{5}, []int{3}, context.DeadlineExceeded)
	for name, err := range map[string]error{
		"a wait":             Judge(&q, states).Err,
		"an interrupted one": InterruptedWaitError(&q, states, context.DeadlineExceeded),
		"a join":             absentErr,
	} {
		late, ok := errors.AsType[*driver.TimeoutError](err)
		if !ok || late.Error() != want || len(late.Missing) > 0 {
			t.Errorf("%s: got %v, want a TimeoutError without missing ranks: %s", name, err, want)
		}
	}

	limited.Timeout.Set(6 * time.Millisecond)
	if got := verdictOf(Judge(&q, states).Err); got.kind != "late" || len(got.ranks) != 1 {
		t.Errorf("a wait for half of a short timeout: got %v, want the late rank", got)
	}
}

func TestPeerFailure(t *testing.T) {
	for name, c := range map[string]struct {
		row  RankState
		want verdict
	}{
		"dead":              {RankState{Lost: true, Failed: FailedItself}, verdict{"lost", []int{5}}},
		"failed":            {RankState{Failed: FailedItself}, verdict{"peer", []int{5}}},
		"aborted and ended": {RankState{Failed: Aborted, Lost: true}, verdict{"aborted", []int{5}}},
		"left and ended":    {RankState{Left: true, Lost: true}, verdict{"deadlock", []int{5}}},
	} {
		err := PeerFaultError(testGroup, []RankState{{}, c.row, {}}, "launching")
		if diff := cmp.Diff(c.want, verdictOf(err), cmp.AllowUnexported(verdict{})); diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
}

func TestReasonOf(t *testing.T) {
	for want, err := range map[Reason]error{
		NotFailed: nil, FailedItself: errors.New("a GPU"), Aborted: driver.ErrAborted,
		FailedAfterPeer: &driver.PeerError{Aborted: true},
	} {
		if got := ReasonOf(err); got != want {
			t.Errorf("ReasonOf(%v) = %d, want %d", err, got, want)
		}
	}
}
