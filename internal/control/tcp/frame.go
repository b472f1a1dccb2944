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

// kind is the kind of a message. The field message.step has another meaning for some kinds.
type kind uint8

const (
	kindPost kind = iota + 1 // payload for one step of a track
	// kindComplete is sent before kindFail, once for each track. Its step is the last step of the
	// track for which the sender has received all posts.
	kindComplete
	kindReport // fault report
	// kindStatus contains the sender's status. If it answers a kindAskStatus, it has the same step.
	// Otherwise, its step is 0.
	kindStatus
	kindAskStatus // asks for a kindStatus; its step numbers the sender's requests from 1
	// kindFail announces that the sender has failed. Its step is a control.Reason, and its payload
	// the sender's status.
	kindFail
	kindFailAck // acknowledges kindFail
	kindLeave   // last message of a rank that leaves; its payload is the sender's last status
)

// track identifies a sequence of steps that all ranks perform. In each step, every rank sends one
// payload to all others. The steps are exchanges on one driver.Lane, comparisons of calls, or
// gathers of one named value.
type track string

const (
	trackControl    track = "control"
	trackBackground track = "background"
	trackCalls      track = "calls"
	trackCompare    track = "compare"
	valuePrefix           = "value " // a named value has the track valuePrefix + name
)

// laneTracks holds the tracks of all lanes below driver.LaneFault, which has kindReport instead.
var laneTracks = [driver.LaneFault]track{
	driver.LaneControl:    trackControl,
	driver.LaneBackground: trackBackground,
	driver.LaneCalls:      trackCalls,
}

// payloadSizes returns the minimum and maximum size, in bytes, of a payload on the track. isKnown
// is false if there is no such track.
func (t track) payloadSizes() (minSize, maxSize int, isKnown bool) {
	const valueSize = len(driver.Words{}) * wordBytes
	switch {
	case t == trackCompare:
		return wordBytes, wordBytes, true // a digest
	case strings.HasPrefix(string(t), valuePrefix):
		return valueSize, valueSize, true
	default:
		isKnown = slices.Contains(laneTracks[:], t)
		return 0, driver.MaxPayload, isKnown
	}
}

const (
	// A frame's header consists of the kind (one byte), the length of the track's name (one byte),
	// two zero bytes, the payload's size (four bytes), and the step (eight bytes). The name and the
	// payload follow. Integers are little-endian.
	headerBytes = 16
	wordBytes   = 8
	statusBytes = 5 * wordBytes // size of an encoded status
)

// message is a message from one rank to another. encode converts it to a frame.
type message struct {
	kind    kind
	track   track  // for kindPost and kindComplete; otherwise ""
	step    uint64 // step of the track, from 1, or another number (see kind)
	payload []byte // its size depends on kind and track; see isValid
}

// isValid reports whether a message can have its kind and track and a payload of this size.
func (m *message) isValid(size int) bool {
	minSize, maxSize := 0, 0
	isTrackValid := m.track == ""
	switch m.kind {
	case kindPost:
		minSize, maxSize, isTrackValid = m.track.payloadSizes()
	case kindComplete:
		_, _, isTrackValid = m.track.payloadSizes() // the message itself has no payload
	case kindReport:
		maxSize = driver.MaxPayload
	case kindStatus, kindFail, kindLeave:
		minSize, maxSize = statusBytes, statusBytes
	case kindFailAck, kindAskStatus: // no payload
	default:
		return false
	}

	return isTrackValid && minSize <= size && size <= maxSize
}

// encode returns the message as a frame; see headerBytes. The name of the track must have less than
// 256 bytes.
func (m *message) encode() []byte {
	b := make([]byte, 0, headerBytes+len(m.track)+len(m.payload))
	b = append(b, byte(m.kind), byte(len(m.track)), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.payload)))
	b = binary.LittleEndian.AppendUint64(b, m.step)
	b = append(b, m.track...)
	return append(b, m.payload...)
}

// readFrame reads a message; see headerBytes for the layout. It validates sizes before it allocates
// memory for the payload, so that a peer cannot make it allocate too much.
func readFrame(r io.Reader) (message, error) {
	var b [headerBytes + math.MaxUint8]byte // the header and the name of the track
	if _, err := io.ReadFull(r, b[:headerBytes]); err != nil {
		return message{}, err
	}

	m := message{kind: kind(b[0]), step: binary.LittleEndian.Uint64(b[8:])}
	size := binary.LittleEndian.Uint32(b[4:])
	hasZeroBytes := b[2] == 0 && b[3] == 0
	if !hasZeroBytes || size > driver.MaxPayload {
		return message{}, fmt.Errorf("invalid frame of kind %d with %d bytes: %w",
			m.kind, size, ErrProtocol)
	}

	name := b[headerBytes:][:b[1]] // b[1] is its length, which is below 256
	if _, err := io.ReadFull(r, name); err != nil {
		return message{}, err
	}

	m.track = track(name)
	if !m.isValid(int(size)) {
		return message{}, fmt.Errorf("invalid frame of kind %d on track %q with %d bytes: %w",
			m.kind, m.track, size, ErrProtocol)
	}

	m.payload = make([]byte, size)
	if _, err := io.ReadFull(r, m.payload); err != nil {
		return message{}, err
	}

	return m, nil
}

// encodeWords encodes numbers in 8 bytes each.
func encodeWords(words ...uint64) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, words) // cannot fail
	return b
}

// decodeWords sets words to the numbers that encodeWords has encoded as b. b must have wordBytes
// for each of words.
func decodeWords(b []byte, words []uint64) {
	_, _ = binary.Decode(b, binary.LittleEndian, words) // cannot fail: the size was checked
}

// status describes the progress of a rank for the other ranks.
type status struct {
	submitted uint64 // last ticket (number of a collective) that the rank has submitted
	// inCollective is the ticket of the collective in which the rank waits, or 0.
	inCollective uint64
	operation    driver.Operation // of the collective
	// inExchange is the step of driver.LaneControl in which the rank waits, or 0.
	inExchange uint64
	since      time.Time // begin of the wait, on the clock of this machine
}

// encode encodes the status at the time now. It replaces the time since by a duration, because the
// clocks of machines differ.
func (s *status) encode(now time.Time) []byte {
	waited := uint64(0)
	if s.inCollective != 0 || s.inExchange != 0 {
		waited = uint64(max(0, now.Sub(s.since)))
	}

	return encodeWords(s.submitted, s.inCollective, uint64(s.operation), s.inExchange, waited)
}

// decodeStatus decodes a status of statusBytes that has arrived at the time now.
func decodeStatus(payload []byte, now time.Time) status {
	var words [statusBytes / wordBytes]uint64 // in the order of encode
	decodeWords(payload, words[:])
	waited := time.Duration(words[4] & (1<<62 - 1)) // the mask prevents negative durations
	return status{
		submitted:    words[0],
		inCollective: words[1],
		operation:    driver.Operation(words[2]),
		inExchange:   words[3],
		since:        now.Add(-waited),
	}
}
