package ledger

import "symmem/event"

// MaxSites bounds a [Sites] table, because callers may pass any number of names.
const MaxSites = 1 << 16

// Sites numbers the call sites of events. Index 0 is the unknown site. The owner must guard a Sites
// with a lock.
type Sites struct {
	names  []string          // names[i-1] belongs to index i
	byName map[string]uint32 // program counters of the same line share an index
	byPC   map[uintptr]uint32
}

// NewSites returns an empty table.
func NewSites() *Sites {
	return &Sites{byName: make(map[string]uint32), byPC: make(map[uintptr]uint32)}
}

// Index returns the index of an interned program counter. It does not allocate.
func (s *Sites) Index(pc uintptr) (uint32, bool) {
	i, ok := s.byPC[pc]
	return i, ok
}

// Intern records that pc is at site, which has the form file:line, and returns the site's index. It
// returns 0 if the table is full. A pc of 0 stands for a frame outside of Go.
func (s *Sites) Intern(pc uintptr, site string) uint32 {
	i := s.name(event.CleanSite(site))
	if pc != 0 && len(s.byPC) < MaxSites {
		s.byPC[pc] = i
	}
	return i
}

func (s *Sites) name(site string) uint32 {
	if site == "" {
		return 0
	}
	if i, ok := s.byName[site]; ok {
		return i
	}
	if len(s.names) >= MaxSites {
		return 0
	}
	s.names = append(s.names, site)
	i := uint32(len(s.names))
	s.byName[site] = i
	return i
}

// At returns the site with the given index, or "" if there is none.
func (s *Sites) At(index uint32) string {
	if index == 0 || int(index) > len(s.names) {
		return ""
	}
	return s.names[index-1]
}
