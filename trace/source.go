package trace

import (
	"strconv"
	"sync/atomic"
	"unsafe"

	"symmem/event"
	"symmem/internal/spin"
)

// Source writes the events of one pool or group to a trace. It is not safe for concurrent use.
//
// The trace is a ring of records. An event takes one record, or two if its values need more bits.
// Sources write concurrently, so each first claims records. A Source claims a batch of records at
// once, because an atomic operation per event would be slow. Strings are stored once: records
// contain their numbers. layout.go describes the format.
type Source struct {
	writer       *Writer
	claimedCount *atomic.Uint64 // same as in writer: records claimed by all sources
	indexMask    uint64         // capacity minus 1: index&indexMask is a place in the ring
	firstRecord  unsafe.Pointer
	clock        clock
	// The records nextIndex to batchEnd-1 are claimed, but not yet used.
	nextIndex, batchEnd uint64

	// The fields up to siteBits describe the source and call site of the latest event. The source
	// is a group (isGroup), or a pool of the domain with the id in group.
	hasSource  bool
	group      string
	pool       uint64
	isGroup    bool
	sourceBits uint64 // see Writer.sourceBits
	site       string
	siteBits   uint64 // the site's text number in the upper half

	latestCall       *event.Call
	latestCallNumber uint32                 // number of the text of latestCall
	callNumbers      map[*event.Call]uint32 // numbers of the texts of earlier calls
}

// NewSource returns a Source, which must not be used after the Writer's Close.
func (w *Writer) NewSource() *Source {
	return &Source{
		writer: w, claimedCount: w.claimedCount, indexMask: w.capacity - 1,
		firstRecord: unsafe.Pointer(&w.bytes[headerBytes]),
		clock:       clock{start: w.start}, callNumbers: map[*event.Call]uint32{},
	}
}

// Record adds an event to the trace. It does not keep e.
func (s *Source) Record(e *event.Event) {
	if e.Kind.IsGroupEvent() {
		s.recordGroupEvent(e)
		return
	}

	s.Describe(e)
	if e.Name != "" {
		s.recordPoolEventInTwo(e)
		return
	}

	const noSite = 0 // Describe has set the call site
	p := event.PackPlacement(e, noSite)
	s.RecordPlacement(e.Number, &p)
}

// Describe sets the pool and the call site for later calls of RecordPlacement.
func (s *Source) Describe(e *event.Event) {
	isPool := s.hasSource && !s.isGroup
	isSamePool := isPool && e.Pool == s.pool && shareMemory(e.Group, s.group)
	if !isSamePool {
		s.hasSource, s.isGroup = true, false
		s.pool, s.group = e.Pool, e.Group
		text := strconv.FormatUint(e.Pool, 10) + "\x00" + e.Group
		s.sourceBits = s.writer.sourceBits(text)
	}

	s.describeSite(e.Site)
}

// describeSite sets the call site of the next event.
func (s *Source) describeSite(site string) {
	if !shareMemory(site, s.site) {
		s.site = site
		s.siteBits = uint64(s.writer.textNumber(site)) << 32
	}
}

// shareMemory reports whether two strings are the same memory. That is faster than a comparison of
// the strings. It may return false for equal strings, whose number is then looked up again.
func shareMemory(a, b string) bool {
	return len(a) == len(b) && unsafe.StringData(a) == unsafe.StringData(b)
}

// RecordPlacement is faster than Record. The event has the pool and the call site that Describe has
// set, and no name. number is the event's Number.
func (s *Source) RecordPlacement(number uint64, p *event.Placement) {
	// Load the fields of p after claimBatch, so that they stay in registers.
	index := s.nextIndex
	age := s.claimedCount.Load() - index - 1 // records claimed after this one
	if age > maxAge || index == s.batchEnd {
		index = s.claimBatch()
		age = batchRecords - 1 // the rest of the new batch
	}

	stream, segment := p.StreamSegment>>32, uint64(uint32(p.StreamSegment)+1)
	offset, size, unrequested := uint64(p.Offset), uint64(p.Size), uint64(p.Size-p.Requested)
	// A first record has 32 bits for number and unrequested, 16 for stream and segment, and bits 8
	// to 39 of offset and size. This is one expression, because one branch is faster than six.
	otherBits := (number|unrequested)>>32 | (stream|segment)>>16 |
		(offset|size)>>40 | (offset|size)&0xff
	if otherBits != 0 {
		s.recordPlacementInTwo(number, p)
		return
	}

	s.nextIndex = index + 1
	r := (*record)(unsafe.Add(s.firstRecord, index&s.indexMask*recordBytes))
	r.a = number | stream<<32 | segment<<48
	r.b = offset>>8 | size>>8<<32
	r.c = unrequested | s.siteBits
	// The head is written last, because it shows readers that the record is complete.
	r.head = s.sourceBits | uint64(p.Kind())<<kindShift | age<<ageShift | (index+1)&mask32
}

// recordPlacementInTwo is RecordPlacement for values that do not fit into one record.
func (s *Source) recordPlacementInTwo(number uint64, p *event.Placement) {
	e := event.Event{Number: number}
	p.Load(&e)
	s.recordPoolEventInTwo(&e)
}

// claimBatch returns the index of the first record of a new batch. Readers skip unused records of
// the previous batch, because their heads contain no kind.
func (s *Source) claimBatch() uint64 {
	s.batchEnd = s.claimedCount.Add(batchRecords)
	first := s.batchEnd - batchRecords
	s.nextIndex = first
	for n := first + 1; n <= s.batchEnd; n++ {
		s.recordAt(n).head = n & mask32
	}

	// Prefetch the next batch, which this source will probably claim.
	for n := s.batchEnd + 1; n <= s.batchEnd+batchRecords; n += recordsPerCacheLine {
		spin.PrefetchWrite(unsafe.Pointer(s.recordAt(n)))
	}

	beginsChunk := s.batchEnd&(chunkRecords-1) < batchRecords
	if beginsChunk {
		s.writer.requestPopulation()
	}

	return first
}

// recordAt returns record n, counted from 1.
func (s *Source) recordAt(n uint64) *record {
	return (*record)(unsafe.Add(s.firstRecord, (n-1)&s.indexMask*recordBytes))
}

// recordPoolEventInTwo writes an event with the pool and call site of Describe in two records.
func (s *Source) recordPoolEventInTwo(e *event.Event) {
	p := placementFields{
		number: e.Number, stream: uint64(e.Stream), segment: uint64(uint32(e.Segment + 1)),
		offset: uint64(e.Offset), size: uint64(e.Size), unrequested: uint64(e.Size - e.Requested),
	}
	head := s.sourceBits | uint64(e.Kind)<<kindShift
	name := s.writer.textNumber(e.Name)
	s.writeTwoRecords(head, p.pack(s.siteBits), p.packSecond(name))
}

// writeTwoRecords claims two adjacent records and writes them. head lacks the flags and the number.
func (s *Source) writeTwoRecords(head uint64, first, second payload) {
	n := s.writer.claimedCount.Add(2)
	beginsChunk := n&(chunkRecords-1) < 2
	if beginsChunk {
		s.writer.requestPopulation()
	}

	s.writeRecord(n-1, head|hasSecondFlag, first)
	s.writeRecord(n, head|isSecondFlag, second)
}

// writeRecord writes record n, counted from 1.
func (s *Source) writeRecord(n, head uint64, p payload) {
	r := s.recordAt(n)
	r.head = 0 // make readers skip the record until it is complete
	r.payload = p
	r.head = head | n&mask32
}

// recordGroupEvent is Record for events of a group.
func (s *Source) recordGroupEvent(e *event.Event) {
	if e.Kind == event.KindCollective {
		if e.Call != nil {
			s.RecordCollective(e.Group, e.Number, e.Call, e.Stream, e.Site)
		}

		return
	}

	text := s.writer.textNumber(e.Operation + "\x00" + e.Text)
	name := s.writer.textNumber(e.Name)
	s.describeGroup(e.Group, e.Site)
	s.writeGroupEvent(e.Kind, e.Number, e.Stream, text, name, uint64(e.Value), e.Collectives)
}

// RecordCollective records that a group submits call c on a stream. number is the event's Number.
func (s *Source) RecordCollective(
	group string, number uint64, c *event.Call, stream uint32, site string,
) {
	const noName = 0
	s.describeGroup(group, site)
	text := s.callTextNumber(c)
	s.writeGroupEvent(
		event.KindCollective, number, stream, text, noName, c.Digest, uint64(c.Bytes))
}

// describeGroup sets the group and the call site of the next event.
func (s *Source) describeGroup(group, site string) {
	isSameGroup := s.hasSource && s.isGroup && shareMemory(group, s.group)
	if !isSameGroup {
		s.hasSource, s.isGroup = true, true
		s.group = group
		s.sourceBits = s.writer.sourceBits(group)
	}

	s.describeSite(site)
}

// writeGroupEvent writes an event with the group and call site of describeGroup and the current
// time. text and name are numbers of texts. value is the digest of a collective or the value of
// another event. count is the bytes of a collective or the number of collectives before a step.
func (s *Source) writeGroupEvent(
	kind event.Kind, number uint64, stream, text, name uint32, value, count uint64,
) {
	head := s.sourceBits | uint64(kind)<<kindShift
	first := payload{
		a: number&mask32 | uint64(stream)<<32,
		b: s.clock.now(),
		c: uint64(text) | s.siteBits,
	}
	second := payload{
		a: number>>32 | uint64(name)<<32,
		b: value,
		c: count,
	}
	s.writeTwoRecords(head, first, second)
}

// maxCalls limits the calls whose texts a Source remembers.
const maxCalls = 4096

// callTextNumber returns the number of the text of a call. The text lacks the ticket (the number of
// the call), so that repeated calls have the same text.
func (s *Source) callTextNumber(c *event.Call) uint32 {
	if c == s.latestCall {
		return s.latestCallNumber
	}

	number, isKnown := s.callNumbers[c]
	if !isKnown {
		if len(s.callNumbers) == maxCalls {
			clear(s.callNumbers)
		}

		withoutTicket := *c
		withoutTicket.Ticket = 0
		number = s.writer.textNumber(withoutTicket.String())
		s.callNumbers[c] = number
	}

	s.latestCall, s.latestCallNumber = c, number
	return number
}
