package launch

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// String returns the signal and the wait of an order, or "" if the supervisor only continues.
func (o order) String() string {
	var words []string
	if o.signal != 0 {
		words = append(words, o.signal.String())
	}

	if o.wait != 0 {
		words = append(words, "wait "+o.wait.String())
	}

	return strings.Join(words, ", ")
}

// TestSupervisor passes events to the supervisor of a job with three ranks, and checks the orders
// that it returns. handleEvent describes the events. The grace period after the first failure is
// 1 s, and SIGKILL follows SIGTERM after 2 s.
func TestSupervisor(t *testing.T) {
	rows := []struct {
		name, events string
		want         []string // one order for each event, as text
		code         int      // exit code of the job
	}{
		{
			"no rank fails", "e0=0 e1=0 e2=0",
			[]string{"", "", ""},
			0,
		},
		{
			"a failure starts the grace period", "e1=7 e0=0 e2=0",
			[]string{"wait 1s", "", ""},
			7,
		},
		{
			"SIGTERM and SIGKILL follow the grace period", "e1=7 x x e0=143 e2=137",
			[]string{"wait 1s", "terminated, wait 2s", "killed", "", ""},
			7,
		},
		{
			"a second failure does not restart the grace period", "e1=7 e0=8 x e2=0",
			[]string{"wait 1s", "", "terminated, wait 2s", ""},
			7,
		},
		{
			"signals are forwarded", "t i e0=0 e1=0 e2=0",
			[]string{"terminated", "interrupt", "", "", ""},
			0,
		},
		{
			"a second interrupt kills", "i i e0=137 e1=137 e2=137",
			[]string{"interrupt", "killed", "", "", ""},
			137,
		},
		{
			"canceling the context kills", "c e0=137 e1=137 e2=137",
			[]string{"killed", "", "", ""},
			137,
		},
		{
			"a wait that expires after the job does nothing", "e0=0 e1=0 e2=0 x c",
			[]string{"", "", "", "", ""},
			0,
		},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			v := newSupervisor(&Spec{Ranks: 3, Grace: time.Second, TermWait: 2 * time.Second})
			for i, event := range strings.Fields(r.events) {
				if got := handleEvent(t, v, event, i).String(); got != r.want[i] {
					t.Fatalf("event %d, %s: got order %q, want %q", i, event, got, r.want[i])
				}
			}

			if v.phase != phaseDone || v.result().Code != r.code {
				t.Fatalf("got phase %d, result %+v; want done, code %d", v.phase, v.result(), r.code)
			}
		})
	}
}

// TestExternalSIGTERMIsFollowedBySIGKILL sends SIGTERM to the launcher of two ranks, before or
// after a rank fails. SIGKILL must follow after KillDelay, which is 3 s.
func TestExternalSIGTERMIsFollowedBySIGKILL(t *testing.T) {
	// The keys are events, which handleEvent describes. The values have an order for each event.
	for events, want := range map[string][]string{
		"t e1=143 x e0=137": {"terminated, wait 3s", "", "killed", ""},
		"e1=7 t t x e0=137": {"wait 1s", "terminated, wait 3s", "terminated", "killed", ""},
		"t e0=0 e1=0":       {"terminated, wait 3s", "", ""},
	} {
		t.Run(events, func(t *testing.T) {
			v := newSupervisor(&Spec{
				Ranks: 2,
				Grace: time.Second, TermWait: time.Second, KillDelay: 3 * time.Second,
			})
			for i, event := range strings.Fields(events) {
				if got := handleEvent(t, v, event, i).String(); got != want[i] {
					t.Fatalf("event %d, %s: got order %q, want %q", i, event, got, want[i])
				}
			}

			if v.phase != phaseDone {
				t.Errorf("got phase %d, want done", v.phase)
			}
		})
	}
}

// handleEvent passes an event to a supervisor and returns its order. The events are:
//
//	e2=1  rank 2 exits with code 1; exitIndex is its position among the exits of ranks
//	x     the last wait expires
//	i     the launcher receives SIGINT
//	t     the launcher receives SIGTERM
//	c     the context is canceled
func handleEvent(t *testing.T, v *supervisor, event string, exitIndex int) order {
	t.Helper()
	switch event {
	case "x":
		return v.handleTimeout()
	case "c":
		return v.kill()
	case "i":
		return v.handleSignal(syscall.SIGINT)
	case "t":
		return v.handleSignal(syscall.SIGTERM)
	}

	e := Exit{exitIndex: exitIndex}
	if _, err := fmt.Sscanf(event, "e%d=%d", &e.Rank, &e.Code); err != nil {
		t.Fatal(err)
	}

	return v.handleExit(e)
}

// TestRunningRanksAreAnnounced makes two of three ranks fail. The supervisor must announce the
// signals that the last rank will get, and then each signal.
func TestRunningRanksAreAnnounced(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 3, Grace: 10 * time.Second, TermWait: 5 * time.Second})
	for i, step := range []struct {
		event string
		want  order
	}{
		{"e1=7", order{wait: announceDelay}},
		{"e0=2", order{}},
		{"x", order{
			wait: 8 * time.Second, // Grace without announceDelay
			message: "rank 1 (process 0) failed with code 7; other ranks are still running: they get " +
				"SIGTERM in 8s and SIGKILL 5s later",
		}},
		{"x", order{
			signal: syscall.SIGTERM, wait: 5 * time.Second,
			message: "sending SIGTERM to the remaining ranks",
		}},
		{"x", order{signal: syscall.SIGKILL, message: "sending SIGKILL to the remaining ranks"}},
	} {
		if got := handleEvent(t, v, step.event, i); got != step.want {
			t.Fatalf("event %d, %s: got %+v, want %+v", i, step.event, got, step.want)
		}
	}
}

// TestFirstExternalSignalIsRecorded checks that the result contains the first signal that the
// launcher received. A signal that it only sent to ranks does not count.
func TestFirstExternalSignalIsRecorded(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 2, Grace: time.Second, TermWait: time.Second})
	handleEvent(t, v, "e1=7", 0)
	handleEvent(t, v, "x", 1) // sends SIGTERM to rank 0
	if got := v.result().Signal; got != 0 {
		t.Errorf("Signal = %v without an external signal, want 0", got)
	}

	handleEvent(t, v, "i", 2)
	handleEvent(t, v, "t", 3)
	if got := v.result().Signal; got != syscall.SIGINT {
		t.Errorf("Signal = %v, want SIGINT", got)
	}
}

// TestFirstFailureDeterminesResult makes rank 1 fail before rank 0, as their exitIndex says. The
// supervisor learns about rank 0 first, as if the launcher had read all its output sooner. The
// result must have the code of rank 1.
func TestFirstFailureDeterminesResult(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 3})
	v.handleExit(Exit{Rank: 0, Code: 1, exitIndex: 2})
	v.handleExit(Exit{Rank: 1, Code: 7, exitIndex: 1})
	v.handleExit(Exit{Rank: 2, Code: 0, exitIndex: 0})
	if r := v.result(); r.FirstFailed != 1 || r.Code != 7 {
		t.Fatalf("result = %+v, want FirstFailed 1 and Code 7", r)
	}
}

// TestLinesKeepAllOutput writes parts of random length to a lineWriter. It keeps up to maxPending
// bytes of an unfinished line, so lengths near that limit are special. The output must contain the
// same lines, with the prefix.
func TestLinesKeepAllOutput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.SampledFrom([]int{
			0, 1, 2, maxPending / 2, maxPending - 1, maxPending, maxPending + 1, 2*maxPending + 1,
		})
		var out strings.Builder
		text := ""
		l := &lineWriter{sink: &sink{mu: &sync.Mutex{}, delay: testTimeout, w: &out}, prefix: "> "}
		for range rapid.IntRange(0, 4).Draw(t, "parts") {
			part := strings.Repeat("y", length.Draw(t, "length")) +
				rapid.SampledFrom([]string{"", "\n", "\n\n", "\r\nx"}).Draw(t, "end")
			text += part
			if got, err := l.Write([]byte(part)); got != len(part) || err != nil {
				t.Fatalf("Write = %d, %v; want %d bytes and no error", got, err, len(part))
			}
		}

		l.flush()
		if want := wholeLines(text); out.String() != want {
			t.Fatalf("got %d bytes %.100q, want %d bytes %.100q",
				out.Len(), out.String(), len(want), want)
		}
	})
}

// wholeLines returns the lines of text with the prefix "> ". Each ends with a line feed.
func wholeLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("> " + strings.TrimSuffix(line, "\n") + "\n")
	}

	return b.String()
}
