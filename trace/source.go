package trace

import (
	"strconv"
	"sync/atomic"
	"unsafe"

	"symmem/event"
	"symmem/internal/spin"
)

// Source writes the events of one pool or one group. Its methods must not be called concurrently.
type Source struct {
	w     *Writer
	next  *atomic.Uint64 // copied from w
	mask  uint64         // copied from w
	first unsafe.Pointer // the first record
	clock clock
	// The source has claimed, but not used, the records from at to end-1, counted from 0.
	at, end uint64

	// The fields up to siteBits describe the source and the call site of the latest event.
	hasLatest  bool
	group      string
	pool       uint64
	ofGroup    bool
	sourceBits uint64 // number of the source's text, shifted as in a head
	site       string
	siteBits   uint64 // number of the site's text, shifted as in a payload

	call     *event.Call // the call of the latest collective
	callText uint32
	calls    map[*event.Call]uint32
}

// NewSource returns a Source that writes to the trace until the Writer is closed.
func (w *Writer) NewSource() *Source {
	return &Source{
		w: w, next: w.next, mask: w.mask, first: unsafe.Pointer(&w.bytes[headerBytes]),
		clock: clock{start: w.start}, calls: map[*event.Call]uint32{},
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
		s.recordInTwo(e)
		return
	}
	p := event.PackPlacement(e, 0)
	s.Placement(e.Number, &p)
}

// Describe sets the pool and the call site for later calls of Placement to those of e.
func (s *Source) Describe(e *event.Event) {
	if !s.hasLatest || s.ofGroup || e.Pool != s.pool || !identical(e.Group, s.group) {
		s.hasLatest, s.ofGroup, s.pool, s.group = true, false, e.Pool, e.Group
		s.sourceBits = s.w.sourceBits(strconv.FormatUint(e.Pool, 10) + "\x00" + e.Group)
	}
	s.describeSite(e.Site)
}

func (s *Source) describeSite(site string) {
	if !identical(site, s.site) {
		s.site, s.siteBits = site, uint64(s.w.text(site))<<32
	}
}

// identical reports whether two strings share their memory, which is faster than comparing them.
func identical(a, b string) bool {
	return len(a) == len(b) && unsafe.StringData(a) == unsafe.StringData(b)
}

// Placement records an unnamed event of the pool and call site that Describe has set. It is faster
// than Record.
func (s *Source) Placement(number uint64, p *event.Placement) {
	// Call claim before loading the fields of p, because a later call would force them out of
	// registers.
	at := s.at
	age := s.next.Load() - at - 1
	if age > maxAge || at == s.end {
		at, age = s.claim(), batchRecords-1
	}
	stream, segment := p.StreamSegment>>32, uint64(uint32(p.StreamSegment)+1)
	offset, size, slack := uint64(p.Offset), uint64(p.Size), uint64(p.Size-p.Requested)
	if (number|slack)>>32|(stream|segment)>>16|(offset|size)>>40|(offset|size)&0xff != 0 {
		s.placeInTwo(number, p)
		return
	}
	s.at = at + 1
	r := (*record)(unsafe.Add(s.first, at&s.mask*recordBytes))
	r.a = number | stream<<32 | segment<<48
	r.b = offset>>8 | size>>8<<32
	r.c = slack | s.siteBits
	r.head = s.sourceBits | uint64(p.Kind())<<kindShift | age<<ageShift | (at+1)&(1<<32-1)
}

func (s *Source) placeInTwo(number uint64, p *event.Placement) {
	e := event.Event{Number: number}
	p.Load(&e)
	s.recordInTwo(&e)
}

// claim claims a batch of records and returns the number of the first one, counted from 0. Unused
// records of the previous batch stay without a kind, so that readers skip them.
func (s *Source) claim() uint64 {
	s.end = s.next.Add(batchRecords)
	first := s.end - batchRecords
	s.at = first
	for n := first + 1; n <= s.end; n++ {
		s.record(n).head = n & (1<<32 - 1)
	}
	// Prefetch the next batch, which probably follows this one.
	for n := s.end + 1; n <= s.end+batchRecords; n += lineRecords {
		spin.PrefetchWrite(unsafe.Pointer(s.record(n)))
	}
	if s.end&(chunkRecords-1) < batchRecords {
		s.w.requestPopulate()
	}
	return first
}

// record returns record n, counted from 1.
func (s *Source) record(n uint64) *record {
	return (*record)(unsafe.Add(s.first, (n-1)&s.mask*recordBytes))
}

// recordInTwo writes an event of a pool in two records.
func (s *Source) recordInTwo(e *event.Event) {
	p := placement{
		number: e.Number, stream: uint64(e.Stream), segment: uint64(uint32(e.Segment + 1)),
		offset: uint64(e.Offset), size: uint64(e.Size), slack: uint64(e.Size - e.Requested),
	}
	s.recordTwo(s.sourceBits|uint64(e.Kind)<<kindShift,
		p.pack(s.siteBits), p.packSecond(s.w.text(e.Name)))
}

func (s *Source) recordTwo(head uint64, first, second payload) {
	n := s.w.next.Add(2)
	if n&(chunkRecords-1) < 2 {
		s.w.requestPopulate()
	}
	s.put(n-1, head|moreFlag, first)
	s.put(n, head|secondFlag, second)
}

// put writes record n, counted from 1.
func (s *Source) put(n, head uint64, p payload) {
	r := s.record(n)
	r.head = 0 // make readers skip the record until it is complete
	r.a, r.b, r.c = p.a, p.b, p.c
	r.head = head | n&(1<<32-1)
}

func (s *Source) recordGroupEvent(e *event.Event) {
	if e.Kind == event.KindCollective {
		if e.Call != nil {
			s.Collective(e.Group, e.Number, e.Call, e.Stream, e.Site)
		}
		return
	}
	text, name := s.w.text(e.Operation+"\x00"+e.Text), s.w.text(e.Name)
	s.describeGroup(e.Group, e.Site)
	s.groupEvent(e.Kind, e.Number, e.Stream, text, name, uint64(e.Value), e.Collectives)
}

// Collective records that a group submits the call c on a stream. number is the Number of the
// event.
func (s *Source) Collective(
	group string, number uint64, c *event.Call, stream uint32, site string,
) {
	s.describeGroup(group, site)
	s.groupEvent(
		event.KindCollective, number, stream, s.textOf(c), 0, c.Digest, uint64(c.Bytes))
}

func (s *Source) describeGroup(group, site string) {
	if !s.hasLatest || !s.ofGroup || !identical(group, s.group) {
		s.hasLatest, s.ofGroup, s.group = true, true, group
		s.sourceBits = s.w.sourceBits(group)
	}
	s.describeSite(site)
}

// groupEvent records an event of the group that describeGroup has set, with the current time.
func (s *Source) groupEvent(
	kind event.Kind, number uint64, stream, text, name uint32, value, count uint64,
) {
	s.recordTwo(s.sourceBits|uint64(kind)<<kindShift,
		payload{
			number&(1<<32-1) | uint64(stream)<<32,
			s.clock.now(),
			uint64(text) | s.siteBits,
		},
		payload{number>>32 | uint64(name)<<32, value, count})
}

// maxCalls is the number of calls whose texts a Source remembers.
const maxCalls = 4096

// textOf returns the number of the text that describes a call.
func (s *Source) textOf(c *event.Call) uint32 {
	if c == s.call {
		return s.callText
	}
	n, ok := s.calls[c]
	if !ok {
		if len(s.calls) == maxCalls {
			clear(s.calls)
		}
		plain := *c
		plain.Ticket = 0
		n = s.w.text(plain.String())
		s.calls[c] = n
	}
	s.call, s.callText = c, n
	return n
}
