package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"symmem/driver"
)

// ErrProtocol means that a peer violates the protocol.
var ErrProtocol = errors.New("the rank does not use this version of symmem's control protocol")

type kind uint8

const (
	kindPost kind = iota + 1 // payload for one step of a track
	// kindComplete precedes kindFail. Its step is the last step of the track for which the sender
	// has received all posts.
	kindComplete
	kindReport // fault report
	// kindStatus contains the sender's status. Its step is that of the kindAskStatus that it
	// answers, or 0.
	kindStatus
	kindAskStatus // asks for a kindStatus; its step numbers the sender's requests from 1
	// kindFail announces a failure. Its step is a control.Reason, and its payload the sender's
	// status.
	kindFail
	kindFailAck // acknowledges kindFail
	kindLeave   // last message of a rank that leaves; its payload is the sender's last status
)

// track identifies a sequence of steps that all ranks perform: exchanges on one driver.Lane,
// comparisons of calls, or gathers of one named value.
type track string

const (
	trackControl    track = "control"
	trackBackground track = "background"
	trackCalls      track = "calls"
	trackCompare    track = "compare"
	valuePrefix           = "value " // begins the tracks of named values
)

var laneTracks = [driver.LaneFault]track{
	driver.LaneControl: trackControl, driver.LaneBackground: trackBackground,
	driver.LaneCalls: trackCalls,
}

// payloadSizes returns the minimum and maximum size, in bytes, of a payload on the track. ok is
// false if the track is unknown.
func (t track) payloadSizes() (minSize, maxSize int, ok bool) {
	switch {
	case t == trackCompare:
		return wordBytes, wordBytes, true
	case strings.HasPrefix(string(t), valuePrefix):
		return len(driver.Words{}) * wordBytes, len(driver.Words{}) * wordBytes, true
	default:
		return 0, driver.MaxPayload, slices.Contains(laneTracks[:], t)
	}
}

const (
	// A frame's header consists of the kind (one byte), the length of the track's name (one byte),
	// two zero bytes, the payload's size (four bytes), and the step (eight bytes). The name and the
	// payload follow. Integers are little-endian.
	headerBytes = 16
	wordBytes   = 8
	statusBytes = 5 * wordBytes
)

// message is a message from one rank to another. encode converts it to a frame.
type message struct {
	kind    kind
	track   track  // for kindPost and kindComplete; otherwise ""
	step    uint64 // step of the track, from 1, or another number (see kind)
	payload []byte
}

// isValidSize reports whether a message can have a payload of this size.
func (m *message) isValidSize(size int) bool {
	minSize, maxSize := 0, 0
	ok := m.track == ""
	switch m.kind {
	case kindPost:
		minSize, maxSize, ok = m.track.payloadSizes()
	case kindComplete:
		_, _, ok = m.track.payloadSizes()
	case kindReport:
		maxSize = driver.MaxPayload
	case kindStatus, kindFail, kindLeave:
		minSize, maxSize = statusBytes, statusBytes
	case kindFailAck, kindAskStatus:
	default:
		return false
	}
	return ok && minSize <= size && size <= maxSize
}

func (m *message) encode() []byte {
	b := make([]byte, 0, headerBytes+len(m.track)+len(m.payload))
	b = append(b, byte(m.kind), byte(len(m.track)), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.payload)))
	b = binary.LittleEndian.AppendUint64(b, m.step)
	b = append(b, m.track...)
	return append(b, m.payload...)
}

// readFrame reads a message. It validates each size before it reads the part of the frame with
// this size, so that a peer cannot make it allocate much memory.
func readFrame(r io.Reader) (message, error) {
	var b [headerBytes + math.MaxUint8]byte // the header and the name of the track
	if _, err := io.ReadFull(r, b[:headerBytes]); err != nil {
		return message{}, err
	}
	m := message{kind: kind(b[0]), step: binary.LittleEndian.Uint64(b[8:])}
	size := binary.LittleEndian.Uint32(b[4:])
	if b[2] != 0 || b[3] != 0 || size > driver.MaxPayload {
		return message{}, fmt.Errorf("invalid frame of kind %d with %d bytes: %w",
			m.kind, size, ErrProtocol)
	}
	name := b[headerBytes:][:b[1]]
	if _, err := io.ReadFull(r, name); err != nil {
		return message{}, err
	}
	m.track = track(name)
	if !m.isValidSize(int(size)) {
		return message{}, fmt.Errorf("invalid frame of kind %d on track %q with %d bytes: %w",
			m.kind, m.track, size, ErrProtocol)
	}
	m.payload = make([]byte, size)
	if _, err := io.ReadFull(r, m.payload); err != nil {
		return message{}, err
	}
	return m, nil
}

func encodeWords(words ...uint64) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, words) // cannot fail
	return b
}

func decodeWords(b []byte, words []uint64) {
	_, _ = binary.Decode(b, binary.LittleEndian, words) // cannot fail: the size was checked
}

// status describes the progress of a rank for the other ranks.
type status struct {
	submitted uint64 // last ticket that the rank has submitted
	// inCollective is the ticket of the collective in which the rank waits, or 0.
	inCollective uint64
	operation    driver.Operation // of the collective
	// inExchange is the step of driver.LaneControl in which the rank waits, or 0.
	inExchange uint64
	since      time.Time // begin of the wait, on the clock of this machine
}

// encode encodes the status at the time now. It converts since to a duration, because the clocks
// of machines differ.
func (s *status) encode(now time.Time) []byte {
	waited := uint64(0)
	if s.inCollective != 0 || s.inExchange != 0 {
		waited = uint64(max(0, now.Sub(s.since)))
	}
	return encodeWords(s.submitted, s.inCollective, uint64(s.operation), s.inExchange, waited)
}

func decodeStatus(p []byte, now time.Time) status {
	var w [statusBytes / wordBytes]uint64
	decodeWords(p, w[:])
	return status{
		submitted: w[0], inCollective: w[1], operation: driver.Operation(w[2]), inExchange: w[3],
		since: now.Add(-time.Duration(w[4] & (1<<62 - 1))), // the mask prevents negative durations
	}
}
