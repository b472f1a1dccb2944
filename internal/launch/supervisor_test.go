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

// TestSupervisor passes events to a supervisor: "e2=1" means that rank 2 exits with code 1, "x"
// means that a wait expires, "i" and "t" stand for an external SIGINT and SIGTERM, and "c"
// means that the context is canceled.
func TestSupervisor(t *testing.T) {
	rows := []struct {
		name, events string
		want         []string
		code         int
	}{
		{"no rank fails", "e0=0 e1=0 e2=0", []string{"", "", ""}, 0},
		{"a failure starts the grace period", "e1=7 e0=0 e2=0", []string{"wait 1s", "", ""}, 7},
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

// TestExternalSIGTERMIsFollowedBySIGKILL checks that SIGKILL follows after KillDelay, even if a
// rank fails in the meantime.
func TestExternalSIGTERMIsFollowedBySIGKILL(t *testing.T) {
	for events, want := range map[string][]string{
		"t e1=143 x e0=137": {"terminated, wait 3s", "", "killed", ""},
		"e1=7 t t x e0=137": {"wait 1s", "terminated, wait 3s", "terminated", "killed", ""},
		"t e0=0 e1=0":       {"terminated, wait 3s", "", ""},
	} {
		t.Run(events, func(t *testing.T) {
			v := newSupervisor(&Spec{
				Ranks: 2, Grace: time.Second, TermWait: time.Second, KillDelay: 3 * time.Second,
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

func TestRunningRanksAreAnnounced(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 3, Grace: 10 * time.Second, TermWait: 5 * time.Second})
	for i, want := range []order{
		{wait: announceDelay},
		{},
		{
			wait: 8 * time.Second,
			message: "rank 1 (process 0) failed with code 7; other ranks are still running: they get " +
				"SIGTERM in 8s and SIGKILL 5s later",
		},
		{
			signal: syscall.SIGTERM, wait: 5 * time.Second,
			message: "sending SIGTERM to the remaining ranks",
		},
		{signal: syscall.SIGKILL, message: "sending SIGKILL to the remaining ranks"},
	} {
		event := strings.Fields("e1=7 e0=2 x x x")[i]
		if got := handleEvent(t, v, event, i); got != want {
			t.Fatalf("event %d, %s: got %+v, want %+v", i, event, got, want)
		}
	}
}

// TestFirstExternalSignalIsRecorded checks that the result contains the first signal that the
// launcher received, and not a signal that it only sent.
func TestFirstExternalSignalIsRecorded(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 2, Grace: time.Second, TermWait: time.Second})
	for i, event := range strings.Fields("e1=7 x") {
		handleEvent(t, v, event, i)
	}
	if got := v.result().Signal; got != 0 {
		t.Errorf("Signal = %v without an external signal, want 0", got)
	}
	handleEvent(t, v, "i", 2)
	handleEvent(t, v, "t", 3)
	if got := v.result().Signal; got != syscall.SIGINT {
		t.Errorf("Signal = %v, want SIGINT", got)
	}
}

// TestFirstFailureDeterminesResult reports rank 0 first, although it failed after rank 1, as if
// its output had been drained sooner.
func TestFirstFailureDeterminesResult(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 3})
	v.handleExit(Exit{Rank: 0, Code: 1, exitIndex: 2})
	v.handleExit(Exit{Rank: 1, Code: 7, exitIndex: 1})
	v.handleExit(Exit{Rank: 2, Code: 0, exitIndex: 0})
	if r := v.result(); r.FirstFailed != 1 || r.Code != 7 {
		t.Fatalf("result = %+v, want FirstFailed 1 and Code 7", r)
	}
}

// TestLinesKeepAllOutput writes parts of random length, some of which end exactly at maxPending.
// The output must contain the same lines, with the prefix.
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
			t.Fatalf("got %d bytes, want %d", out.Len(), len(want))
		}
	})
}

func wholeLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("> " + strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String()
}
