package tcp

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"symmem/driver"
)

func TestHeadersThatLieAreErrors(t *testing.T) {
	good := func() []byte {
		m := message{kind: kindPost, track: trackControl, step: 3, payload: []byte("here")}
		return m.encode()
	}
	for row, spoil := range map[string]func(b []byte){
		"no kind":                       func(b []byte) { b[0] = 0 },
		"a kind of another version":     func(b []byte) { b[0] = byte(kindComplete) + 1 },
		"no track":                      func(b []byte) { b[1] = byte(tracks) },
		"something in the first gap":    func(b []byte) { b[2] = 1 },
		"something in the second gap":   func(b []byte) { b[3] = 1 },
		"a payload that is too large":   func(b []byte) { copy(b[4:], []byte{1, 0, 0x10, 0}) },
		"four gigabytes":                func(b []byte) { copy(b[4:], []byte{255, 255, 255, 255}) },
		"a digest of four bytes":        func(b []byte) { b[1] = byte(trackCompare) },
		"a status of four bytes":        func(b []byte) { b[0] = byte(kindStatus) },
		"a goodbye of four bytes":       func(b []byte) { b[0] = byte(kindLeave) },
		"a fault of four bytes":         func(b []byte) { b[0] = byte(kindFail) },
		"words of four bytes":           func(b []byte) { b[0] = byte(kindValue) },
		"an answer that says something": func(b []byte) { b[0] = byte(kindFailAck) },
		"a report that is too large": func(b []byte) {
			b[0] = byte(kindReport)
			copy(b[4:], []byte{1, 0, 0x10, 0})
		},
	} {
		t.Run(row, func(t *testing.T) {
			b := good()
			if _, err := receive(bytes.NewReader(b)); err != nil {
				t.Fatalf("before it was spoilt: %v", err)
			}
			spoil(b)
			if _, err := receive(bytes.NewReader(b)); !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v, want ErrProtocol", err)
			}
		})
	}
}

func TestFramesThatEndEarlyAreErrors(t *testing.T) {
	m := message{kind: kindPost, payload: []byte("here")}
	frame := m.encode()
	for n := range frame {
		_, err := receive(bytes.NewReader(frame[:n]))
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("after %d bytes: got %v, want the end", n, err)
		}
	}
}

// FuzzReceive reads frames out of anything: what is taken is what would have been sent.
func FuzzReceive(f *testing.F) {
	for _, m := range []message{
		{kind: kindPost, track: trackBackground, step: 1 << 40, payload: []byte("here")},
		{kind: kindPost, track: trackCompare, step: 1, payload: make([]byte, digestBytes)},
		{kind: kindReport},
		{kind: kindStatus, payload: make([]byte, statusBytes)},
		{kind: kindFail, payload: make([]byte, failBytes)},
		{kind: kindFailAck},
		{kind: kindValue, step: 1, payload: make([]byte, wordBytes+1)},
		{kind: kindComplete, step: 1, payload: make([]byte, 1)},
		{kind: kindLeave, payload: bytes.Repeat([]byte{255}, statusBytes)},
	} {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, rows := bytes.NewReader(data), rankRecord{}
		for {
			before := r.Len()
			m, err := receive(r)
			if err != nil {
				return
			}
			if !bytes.Equal(m.encode(), data[len(data)-before:len(data)-r.Len()]) {
				t.Fatalf("%+v is not what was sent", m)
			}
			if rows.apply(m, time.Now()) != nil {
				return
			}
			known := rows.state(&waiting{}, time.Now())
			_ = known.String()
		}
	})
}

func TestBoardsComeAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0)
		want := status{
			submitted:    rapid.Uint64().Draw(t, "submitted"),
			inCollective: rapid.Uint64().Draw(t, "inCollective"),
			operation:    driver.Operation(rapid.Byte().Draw(t, "operation")),
			inExchange:   rapid.Uint64().Draw(t, "inExchange"),
			since:        now,
		}
		if want.inCollective != 0 || want.inExchange != 0 {
			want.since = now.Add(-time.Duration(rapid.Int64Range(0, 1<<60).Draw(t, "age")))
		}
		got := decodeStatus(want.encode(now), now)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(status{})); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestAgesThatLieHarmNothing(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	b := decodeStatus(bytes.Repeat([]byte{255}, statusBytes), now)
	if b.since.After(now) {
		t.Errorf("a wait begins at %v, after %v", b.since, now)
	}
}
