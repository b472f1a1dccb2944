package trace_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"symmem/event"
	"symmem/trace"
)

// TestRedact redacts a trace with call sites and with texts that contain paths and a stack.
func TestRedact(t *testing.T) {
	folder := t.TempDir()
	s := create(t, folder, trace.Options{Size: 1})
	events := []event.Event{
		{Kind: event.KindAlloc, Group: "world/0", Pool: 3, Site: "/home/secret/a.go:1", Size: 512},
		{Kind: event.KindRegister, Group: "world/0", Name: "tp/1", Segment: 1, Site: "/secret/b.go:2"},
		{
			Kind: event.KindText, Group: "tp/1", Operation: "Agree", Name: "config", Segment: -1,
			Text: `"/srv/secret/model.bin of 3/4"`, Site: "secret.py:4",
		},
		{
			Kind: event.KindFault, Group: "tp/1", Segment: -1,
			Text: "panic at ~/secret/x in secret.py:12: lost rank 1\ngoroutine 5\n\tsecret()",
		},
	}
	for i := range events {
		s.Record(&events[i])
	}

	s.Record(&event.Event{
		Kind: event.KindCollective, Group: "tp/1", Site: "/secret/c.go:3",
		Call: &event.Call{
			Operation: "Barrier", Path: "plain", Root: -1, SendSegment: -1, RecvSegment: -1,
		},
	})
	b, err := os.ReadFile(filepath.Join(folder, trace.FileName(0)))
	if err != nil {
		t.Fatal(err)
	}

	if err := trace.Redact(b); err != nil {
		t.Fatal(err)
	}

	if bytes.Contains(b, []byte("secret")) || bytes.Contains(b, []byte(".go")) {
		t.Error("the redacted trace contains paths or stacks")
	}

	l, err := trace.Parse(b)
	if err != nil || len(l.Records) != 5 || l.Host != "" {
		t.Fatalf("Parse of the redacted trace = %+v, %v; want 5 events and no host", l, err)
	}

	events[2].Text, events[3].Text = `"?"`, "panic at ?: lost rank 1"
	for i, want := range events {
		want.Site = ""
		if got := l.Records[i].Event; got != want {
			t.Errorf("event %d = %+v; want %+v", i, got, want)
		}
	}

	if got := l.Records[4]; got.Call != "Barrier, path plain" || got.Site != "" {
		t.Errorf("call = %q at %q; want Barrier without a site", got.Call, got.Site)
	}
}
