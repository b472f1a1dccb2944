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

// Ranks send each other messages over TCP connections. For example, each rank sends this message to
// all other ranks in the group's second exchange on driver.LaneControl:
//
//	message{kind: kindPost, track: "control", step: 2, payload: []byte("abc")}
//
// A track is a sequence of steps that all ranks perform, here the exchanges on that lane. In each
// step, every rank sends a payload to every other rank. A message with such a payload is a post.
// Other kinds of messages announce, for example, that a rank has failed.
//
// A connection carries a message as a frame. The frame of the message above is:
//
//	01                        kindPost
//	07                        length of the track's name
//	00 00                     always zero
//	03 00 00 00               size of the payload
//	02 00 00 00 00 00 00 00   step
//	"control"                 name of the track
//	"abc"                     payload
//
// Integers are little-endian. The first 16 bytes are the header.

// message is a message from one rank to another.
type message struct {
	kind    kind
	track   track  // for kindPost and kindComplete; otherwise ""
	step    uint64 // step of the track, from 1; for other kinds of messages, see kind
	payload []byte // its size depends on the kind and the track
}

// kind is the kind of a message.
type kind uint8

const (
	kindPost kind = iota + 1 // a payload for one step of a track
	// kindComplete is sent before kindFail, once for each track. Its step is the last step of the
	// track for which the sender has received the posts of all ranks.
	kindComplete
	kindReport // contains a report about the failure of the group
	// kindStatus contains the sender's status. If it answers a kindAskStatus, it has the same step.
	// Otherwise, its step is 0.
	kindStatus
	kindAskStatus // asks for a kindStatus; its step numbers the sender's requests from 1
	// kindFail announces that the sender has failed. Its step is the reason, a control.Reason. Its
	// payload is the sender's status.
	kindFail
	kindFailAck // acknowledges kindFail
	kindLeave   // last message of a rank that leaves the group; contains the sender's last status
)

// track is the name of a track.
type track string

// All ranks exchange payloads on the first three tracks, compare their calls on the fourth, and
// have one more track for each named value (see driver.Values).
const (
	trackControl    track = "control"
	trackBackground track = "background"
	trackCalls      track = "calls"
	trackCompare    track = "compare"
	valuePrefix           = "value " // the value "x" has the track "value x"
)

// laneTracks holds the tracks of exchanges, by driver.Lane. The last lane, driver.LaneFault, has no
// track: its exchanges use kindReport.
var laneTracks = [driver.LaneFault]track{
	driver.LaneControl:    trackControl,
	driver.LaneBackground: trackBackground,
	driver.LaneCalls:      trackCalls,
}

const (
	headerBytes = 16 // size of a frame's header
	wordBytes   = 8  // size of a number in a payload
	statusBytes = 5 * wordBytes
)

// payloadSizes returns the minimum and maximum size, in bytes, of a post on the track. isKnown is
// false if there is no such track.
func (t track) payloadSizes() (minSize, maxSize int, isKnown bool) {
	const valueBytes = len(driver.Words{}) * wordBytes
	switch {
	case t == trackCompare:
		return wordBytes, wordBytes, true // a digest (hash) of a call
	case strings.HasPrefix(string(t), valuePrefix):
		return valueBytes, valueBytes, true
	default:
		isKnown = slices.Contains(laneTracks[:], t)
		return 0, driver.MaxPayload, isKnown
	}
}

// payloadSizes returns the minimum and maximum size of the message's payload in bytes. isValid is
// false if the kind is unknown, or if the track is not one for this kind.
func (m *message) payloadSizes() (minSize, maxSize int, isValid bool) {
	hasNoTrack := m.track == ""
	switch m.kind {
	case kindPost:
		return m.track.payloadSizes()
	case kindComplete:
		_, _, isKnown := m.track.payloadSizes()
		return 0, 0, isKnown
	case kindReport:
		return 0, driver.MaxPayload, hasNoTrack
	case kindStatus, kindFail, kindLeave:
		return statusBytes, statusBytes, hasNoTrack
	case kindAskStatus, kindFailAck:
		return 0, 0, hasNoTrack
	}

	return 0, 0, false
}

// encode returns the message as a frame. The name of the track must have less than 256 bytes.
func (m *message) encode() []byte {
	b := make([]byte, 0, headerBytes+len(m.track)+len(m.payload))
	b = append(b, byte(m.kind), byte(len(m.track)), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.payload)))
	b = binary.LittleEndian.AppendUint64(b, m.step)
	b = append(b, m.track...)
	return append(b, m.payload...)
}

// ErrProtocol means that another rank violates this version of the protocol.
var ErrProtocol = errors.New("the rank does not use this version of symmem's control protocol")

// readFrame reads a frame and returns its message. It allocates memory for the payload only if the
// payload has a valid size, so that a faulty sender cannot make it allocate too much.
func readFrame(r io.Reader) (message, error) {
	var b [headerBytes + math.MaxUint8]byte // for the header and the name of the track
	if _, err := io.ReadFull(r, b[:headerBytes]); err != nil {
		return message{}, err
	}

	m := message{kind: kind(b[0]), step: binary.LittleEndian.Uint64(b[8:])}
	nameBytes := b[1]
	hasZeroBytes := b[2] == 0 && b[3] == 0
	size := binary.LittleEndian.Uint32(b[4:])
	if !hasZeroBytes || size > driver.MaxPayload {
		return message{}, fmt.Errorf("invalid frame of kind %d with %d bytes: %w",
			m.kind, size, ErrProtocol)
	}

	name := b[headerBytes:][:nameBytes]
	if _, err := io.ReadFull(r, name); err != nil {
		return message{}, err
	}

	m.track = track(name)
	minSize, maxSize, isValid := m.payloadSizes()
	isSizeValid := minSize <= int(size) && int(size) <= maxSize
	if !isValid || !isSizeValid {
		return message{}, fmt.Errorf("invalid frame of kind %d on track %q with %d bytes: %w",
			m.kind, m.track, size, ErrProtocol)
	}

	m.payload = make([]byte, size)
	if _, err := io.ReadFull(r, m.payload); err != nil {
		return message{}, err
	}

	return m, nil
}

// encodeWords encodes numbers, in wordBytes each.
func encodeWords(words ...uint64) []byte {
	b, _ := binary.Append(nil, binary.LittleEndian, words) // cannot fail
	return b
}

// decodeWords decodes numbers that encodeWords has encoded. b must have wordBytes for each of them.
func decodeWords(b []byte, words []uint64) {
	_, _ = binary.Decode(b, binary.LittleEndian, words) // cannot fail, because b is long enough
}

// status shows the other ranks which collectives a rank has announced, and where it waits. A ticket
// is the number of a collective in the group, from 1.
type status struct {
	submitted uint64 // last ticket that the rank has submitted, that is, announced
	// inCollective is the ticket of the collective in which the rank waits, or 0.
	inCollective uint64
	operation    driver.Operation // of this collective
	// inExchange is the step of trackControl in which the rank waits, or 0.
	inExchange uint64
	since      time.Time // when the wait began, on the clock of this machine
}

// encode encodes the status. Clocks of machines differ, so it encodes how long the wait has lasted
// until now, instead of since.
func (s *status) encode(now time.Time) []byte {
	waited := uint64(0)
	isWaiting := s.inCollective != 0 || s.inExchange != 0
	if isWaiting {
		waited = uint64(max(0, now.Sub(s.since)))
	}

	return encodeWords(s.submitted, s.inCollective, uint64(s.operation), s.inExchange, waited)
}

// decodeStatus decodes a status that has arrived now. payload must have statusBytes.
func decodeStatus(payload []byte, now time.Time) status {
	var words [statusBytes / wordBytes]uint64
	decodeWords(payload, words[:])
	// The mask limits the wait of a faulty sender to 146 years, so that it cannot be negative.
	const maxWaited = 1<<62 - 1
	waited := time.Duration(words[4] & maxWaited)
	return status{
		submitted:    words[0],
		inCollective: words[1],
		operation:    driver.Operation(words[2]),
		inExchange:   words[3],
		since:        now.Add(-waited),
	}
}
