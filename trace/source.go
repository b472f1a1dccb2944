package trace

import (
	"strconv"
	"sync/atomic"
	"unsafe"

	"symmem/event"
	"symmem/internal/spin"
)

// Source writes the events of one pool or group. It is not safe for concurrent use.
type Source struct {
	writer       *Writer
	claimedCount *atomic.Uint64 // same as in writer
	indexMask    uint64         // same as in writer
	firstRecord  unsafe.Pointer
	clock        clock
	// The records nextIndex to batchEnd-1 are claimed, but not yet used.
	nextIndex, batchEnd uint64

	// The fields up to siteBits describe the source and call site of the latest event.
	hasSource  bool
	group      string
	pool       uint64
	isGroup    bool
	sourceBits uint64 // see Writer.sourceBits
	site       string
	siteBits   uint64 // the site's text number in the upper half

	latestCall       *event.Call
	latestCallNumber uint32                 // number of the call's text
	callNumbers      map[*event.Call]uint32 // numbers of the texts of earlier calls
}

// NewSource returns a Source, which must not be used after the Writer's Close.
func (w *Writer) NewSource() *Source {
	return &Source{
		writer: w, claimedCount: w.claimedCount, indexMask: w.indexMask,
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
	p := event.PackPlacement(e, 0)
	s.RecordPlacement(e.Number, &p)
}

// Describe sets the pool and the call site for later calls of RecordPlacement.
func (s *Source) Describe(e *event.Event) {
	if !s.hasSource || s.isGroup || e.Pool != s.pool || !shareMemory(e.Group, s.group) {
		s.hasSource, s.isGroup, s.pool, s.group = true, false, e.Pool, e.Group
		s.sourceBits = s.writer.sourceBits(strconv.FormatUint(e.Pool, 10) + "\x00" + e.Group)
	}
	s.describeSite(e.Site)
}

func (s *Source) describeSite(site string) {
	if !shareMemory(site, s.site) {
		s.site, s.siteBits = site, uint64(s.writer.textNumber(site))<<32
	}
}

// shareMemory is faster than a comparison of the strings.
func shareMemory(a, b string) bool {
	return len(a) == len(b) && unsafe.StringData(a) == unsafe.StringData(b)
}

// RecordPlacement is faster than Record. The event has no name, and the pool and the call site that
// Describe has set.
func (s *Source) RecordPlacement(number uint64, p *event.Placement) {
	// Load the fields of p after claimBatch, so that they stay in registers.
	index := s.nextIndex
	age := s.claimedCount.Load() - index - 1 // records claimed after this one
	if age > maxAge || index == s.batchEnd {
		index, age = s.claimBatch(), batchRecords-1
	}
	stream, segment := p.StreamSegment>>32, uint64(uint32(p.StreamSegment)+1)
	offset, size, unrequested := uint64(p.Offset), uint64(p.Size), uint64(p.Size-p.Requested)
	if (number|unrequested)>>32|(stream|segment)>>16|(offset|size)>>40|(offset|size)&0xff != 0 {
		s.recordPlacementInTwo(number, p)
		return
	}
	s.nextIndex = index + 1
	r := (*record)(unsafe.Add(s.firstRecord, index&s.indexMask*recordBytes))
	r.a = number | stream<<32 | segment<<48
	r.b = offset>>8 | size>>8<<32
	r.c = unrequested | s.siteBits
	r.head = s.sourceBits | uint64(p.Kind())<<kindShift | age<<ageShift | (index+1)&(1<<32-1)
}

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
		s.recordAt(n).head = n & (1<<32 - 1)
	}
	// Prefetch the next batch, which this source will probably claim.
	for n := s.batchEnd + 1; n <= s.batchEnd+batchRecords; n += recordsPerCacheLine {
		spin.PrefetchWrite(unsafe.Pointer(s.recordAt(n)))
	}
	if s.batchEnd&(chunkRecords-1) < batchRecords {
		s.writer.requestPopulation()
	}
	return first
}

// recordAt returns record n, counted from 1.
func (s *Source) recordAt(n uint64) *record {
	return (*record)(unsafe.Add(s.firstRecord, (n-1)&s.indexMask*recordBytes))
}

func (s *Source) recordPoolEventInTwo(e *event.Event) {
	p := placementFields{
		number: e.Number, stream: uint64(e.Stream), segment: uint64(uint32(e.Segment + 1)),
		offset: uint64(e.Offset), size: uint64(e.Size), unrequested: uint64(e.Size - e.Requested),
	}
	s.writeTwoRecords(s.sourceBits|uint64(e.Kind)<<kindShift,
		p.pack(s.siteBits), p.packSecond(s.writer.textNumber(e.Name)))
}

func (s *Source) writeTwoRecords(head uint64, first, second payload) {
	n := s.writer.claimedCount.Add(2)
	if n&(chunkRecords-1) < 2 {
		s.writer.requestPopulation()
	}
	s.writeRecord(n-1, head|hasSecondFlag, first)
	s.writeRecord(n, head|isSecondFlag, second)
}

// writeRecord counts records from 1.
func (s *Source) writeRecord(n, head uint64, p payload) {
	r := s.recordAt(n)
	r.head = 0 // make readers skip the record until it is complete
	r.a, r.b, r.c = p.a, p.b, p.c
	r.head = head | n&(1<<32-1)
}

func (s *Source) recordGroupEvent(e *event.Event) {
	if e.Kind == event.KindCollective {
		if e.Call != nil {
			s.RecordCollective(e.Group, e.Number, e.Call, e.Stream, e.Site)
		}
		return
	}
	text, name := s.writer.textNumber(e.Operation+"\x00"+e.Text), s.writer.textNumber(e.Name)
	s.describeGroup(e.Group, e.Site)
	s.writeGroupEvent(e.Kind, e.Number, e.Stream, text, name, uint64(e.Value), e.Collectives)
}

// RecordCollective records that a group submits call c on a stream. number is the event's Number.
func (s *Source) RecordCollective(
	group string, number uint64, c *event.Call, stream uint32, site string,
) {
	s.describeGroup(group, site)
	s.writeGroupEvent(
		event.KindCollective, number, stream, s.callTextNumber(c), 0, c.Digest, uint64(c.Bytes))
}

func (s *Source) describeGroup(group, site string) {
	if !s.hasSource || !s.isGroup || !shareMemory(group, s.group) {
		s.hasSource, s.isGroup, s.group = true, true, group
		s.sourceBits = s.writer.sourceBits(group)
	}
	s.describeSite(site)
}

// writeGroupEvent uses the group and call site of describeGroup, and the current time.
func (s *Source) writeGroupEvent(
	kind event.Kind, number uint64, stream, text, name uint32, value, count uint64,
) {
	s.writeTwoRecords(s.sourceBits|uint64(kind)<<kindShift,
		payload{
			number&(1<<32-1) | uint64(stream)<<32,
			s.clock.now(),
			uint64(text) | s.siteBits,
		},
		payload{number>>32 | uint64(name)<<32, value, count})
}

// maxCalls limits the calls whose texts a Source remembers.
const maxCalls = 4096

func (s *Source) callTextNumber(c *event.Call) uint32 {
	if c == s.latestCall {
		return s.latestCallNumber
	}
	n, ok := s.callNumbers[c]
	if !ok {
		if len(s.callNumbers) == maxCalls {
			clear(s.callNumbers)
		}
		withoutTicket := *c
		withoutTicket.Ticket = 0
		n = s.writer.textNumber(withoutTicket.String())
		s.callNumbers[c] = n
	}
	s.latestCall, s.latestCallNumber = c, n
	return n
}
