package event

// Placement packs the fields of a pool's event that ranks compare, and its call site.
type Placement struct {
	// StreamSegment has the stream in the upper half and the segment in the lower half.
	StreamSegment           uint64
	Offset, Size, Requested int64
	// SiteKind has the kind in the lowest 8 bits and the number of the call site above them.
	SiteKind uint64
}

const siteShift = 8

// PackPlacement packs the fields of e and the number of its call site.
func PackPlacement(e *Event, site uint32) Placement {
	return Placement{
		StreamSegment: PackStreamSegment(e.Stream, e.Segment), Offset: e.Offset, Size: e.Size,
		Requested: e.Requested, SiteKind: uint64(site)<<siteShift | uint64(e.Kind),
	}
}

// PackStreamSegment returns a value for StreamSegment.
func PackStreamSegment(stream uint32, segment int32) uint64 {
	return uint64(stream)<<32 | uint64(uint32(segment))
}

// Kind returns the kind of the event.
func (p *Placement) Kind() Kind { return Kind(p.SiteKind & (1<<siteShift - 1)) }

// Site returns the number of the call site, or 0 if there is none.
func (p *Placement) Site() uint32 { return uint32(p.SiteKind >> siteShift) }

// Load sets the fields of e, except for the call site.
func (p *Placement) Load(e *Event) {
	e.Offset, e.Size, e.Requested = p.Offset, p.Size, p.Requested
	e.Stream, e.Segment = uint32(p.StreamSegment>>32), int32(uint32(p.StreamSegment))
	e.Kind = p.Kind()
}
