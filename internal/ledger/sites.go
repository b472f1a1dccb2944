package ledger

import "symmem/event"

// MaxSites bounds a [Sites] table, because callers may pass any names.
const MaxSites = 1 << 16

// Sites numbers call sites. Index 0 is the unknown site. It is not safe for concurrent use.
type Sites struct {
	names  []string          // names[i-1] belongs to index i
	byName map[string]uint32 // one index per source line
	byPC   map[uintptr]uint32
}

// NewSites returns an empty table.
func NewSites() *Sites {
	return &Sites{byName: make(map[string]uint32), byPC: make(map[uintptr]uint32)}
}

// Index returns the index of a known program counter. It does not allocate.
func (s *Sites) Index(pc uintptr) (uint32, bool) {
	i, ok := s.byPC[pc]
	return i, ok
}

// Intern returns the index of site (file:line), or 0 if the table is full, and records that pc is
// at site. A pc of 0 stands for a frame outside of Go.
func (s *Sites) Intern(pc uintptr, site string) uint32 {
	i := s.indexOfName(event.CleanSite(site))
	if pc != 0 && len(s.byPC) < MaxSites {
		s.byPC[pc] = i
	}

	return i
}

func (s *Sites) indexOfName(site string) uint32 {
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

// At returns the site with the given index, or "".
func (s *Sites) At(index uint32) string {
	if index == 0 || int(index) > len(s.names) {
		return ""
	}

	return s.names[index-1]
}
