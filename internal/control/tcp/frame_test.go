package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"symmem/driver"
)

// encodeFrame returns a frame with a payload of four bytes.
func encodeFrame(k kind, t track) []byte {
	const anyStep = 3
	m := message{kind: k, track: t, step: anyStep, payload: []byte("here")}
	return m.encode()
}

// corruptFrame returns a valid frame with some bytes replaced.
func corruptFrame(offset int, replacement ...byte) []byte {
	frame := encodeFrame(kindPost, trackControl)
	copy(frame[offset:], replacement)
	return frame
}

func TestReadFrameRejectsInvalidHeaders(t *testing.T) {
	validFrame := encodeFrame(kindPost, trackControl)
	if _, err := readFrame(bytes.NewReader(validFrame)); err != nil {
		t.Fatalf("readFrame of a valid frame: got %v, want no error", err)
	}

	const reservedOffset, payloadSizeOffset = 2, 4
	const maxPayload = 1 << 20
	oversize := binary.LittleEndian.AppendUint32(nil, maxPayload+1)
	for name, frame := range map[string][]byte{
		"no kind":                        encodeFrame(0, trackControl),
		"an unknown kind":                encodeFrame(kindLeave+1, trackControl),
		"no track":                       encodeFrame(kindPost, ""),
		"an unknown track":               encodeFrame(kindPost, "other"),
		"a nonzero first reserved byte":  corruptFrame(reservedOffset, 1),
		"a nonzero second reserved byte": corruptFrame(reservedOffset+1, 1),
		"a payload of 1 MiB and a byte":  corruptFrame(payloadSizeOffset, oversize...),
		"a payload of 4 GiB":             corruptFrame(payloadSizeOffset, 255, 255, 255, 255),

		"a hash of four bytes":            encodeFrame(kindPost, trackCompare),
		"values of four bytes":            encodeFrame(kindPost, valueTrack("a")),
		"a status of four bytes":          encodeFrame(kindStatus, ""),
		"a leave of four bytes":           encodeFrame(kindLeave, ""),
		"a failure of four bytes":         encodeFrame(kindFail, ""),
		"an acknowledgement with payload": encodeFrame(kindFailAck, ""),
		"a completion with payload":       encodeFrame(kindComplete, trackControl),
		"a report on a track":             encodeFrame(kindReport, trackControl),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readFrame(bytes.NewReader(frame)); !errors.Is(err, ErrProtocol) {
				t.Errorf("readFrame returned error %v, want ErrProtocol", err)
			}
		})
	}
}

func TestReadFrameRejectsTruncatedFrames(t *testing.T) {
	validFrame := encodeFrame(kindPost, trackControl)
	for n := range validFrame {
		_, err := readFrame(bytes.NewReader(validFrame[:n]))
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("frame truncated to %d bytes: got %v, want io.EOF or io.ErrUnexpectedEOF",
				n, err)
		}
	}
}

// Every frame that readFrame accepts is the encoding of the message that it returns. No sequence of
// messages makes a rankRecord panic.
func FuzzReadFrame(f *testing.F) {
	const valueBytes = len(driver.Words{}) * wordBytes
	for _, m := range []message{
		{kind: kindPost, track: trackBackground, step: 1 << 40, payload: []byte("here")},
		{kind: kindPost, track: trackCompare, step: 1, payload: make([]byte, wordBytes)},
		{kind: kindReport},
		{kind: kindStatus, payload: make([]byte, statusBytes)},
		{kind: kindFail, payload: make([]byte, statusBytes)},
		{kind: kindFailAck},
		{kind: kindPost, track: valuePrefix + "a", step: 1, payload: make([]byte, valueBytes)},
		{kind: kindComplete, track: valuePrefix + "a", step: 1},
		{kind: kindLeave, payload: bytes.Repeat([]byte{255}, statusBytes)},
	} {
		f.Add(m.encode())
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		var record rankRecord
		for {
			begin := len(data) - r.Len()
			m, err := readFrame(r)
			if err != nil {
				return
			}

			end := len(data) - r.Len()
			frame := data[begin:end]
			if got := m.encode(); !bytes.Equal(got, frame) {
				t.Fatalf("%+v is encoded as %x, want the bytes that were read, %x", m, got, frame)
			}

			if record.applyMessage(m, time.Now()) != nil {
				return
			}

			state := record.state(&waitState{}, time.Now())
			_ = state.String() // must not panic
		}
	})
}

func TestStatusRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_000_000, 0) // any time
		want := status{
			submitted:     rapid.Uint64().Draw(t, "submitted"),
			awaitedTicket: rapid.Uint64().Draw(t, "inCollective"),
			operation:     driver.Operation(rapid.Byte().Draw(t, "operation")),
			awaitedStep:   rapid.Uint64().Draw(t, "inExchange"),
			since:         now,
		}
		isWaiting := want.awaitedTicket != 0 || want.awaitedStep != 0
		if isWaiting {
			age := rapid.Int64Range(0, 1<<60).Draw(t, "age") // in nanoseconds, up to 36 years
			want.since = now.Add(-time.Duration(age))
		}

		got := decodeStatus(want.encode(now), now)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(status{})); diff != "" {
			t.Fatalf("the decoded status differs (-want +got):\n%s", diff)
		}
	})
}

func TestInvalidAgeIsNotInFuture(t *testing.T) {
	now := time.Unix(1_000_000, 0)                    // any time
	allOnes := bytes.Repeat([]byte{255}, statusBytes) // with a negative age
	s := decodeStatus(allOnes, now)
	if s.since.After(now) {
		t.Errorf("since = %v, want a time no later than %v", s.since, now)
	}
}
