package binding

import "symmem"

// stats adds the numbers and handles by which C callers pass objects, and some counters, to
// symmem.Stats.
type stats struct {
	Open bool `json:"open"`
	symmem.Stats
	// Pools and Groups replace the fields of symmem.Stats with these JSON names.
	Pools   []poolStats           `json:"pools"`
	Groups  map[string]groupStats `json:"groups"`  // by id
	Streams int                   `json:"streams"` // streams that calls have used
	Refused int64                 `json:"refused"` // failed frees
}

type poolStats struct {
	Pool   int    `json:"pool"`   // the pool's number
	Domain string `json:"domain"` // id of the group whose ranks share the pool
	symmem.PoolStats
	Mapped int64 `json:"mapped"` // in bytes
	Live   int   `json:"live"`   // allocated buffers
}

type groupStats struct {
	Handle uint64 `json:"handle"`
	Name   string `json:"name"`
	symmem.GroupStats
	Attachments []attachmentStats `json:"attachments"`
}

// attachmentStats describes a communicator of another library that is attached to a group.
type attachmentStats struct {
	Handle  uint64 `json:"handle"`
	Name    string `json:"name"`
	Windows int    `json:"windows"` // memory segments that are registered with it
}

// Stats returns, as JSON, all counters of the main world.
func (l *Library) Stats() (string, error) {
	r, err := l.mainWorldRank()
	if err != nil {
		return "", err
	}

	return statsOf(r)
}

func statsOf(r *rank) (string, error) {
	s := stats{
		Open: true, Stats: r.rt.Stats(), Pools: []poolStats{}, Groups: map[string]groupStats{},
		Refused: r.session.counters.Refused.Load(), Streams: r.streams.size(),
	}
	for _, p := range r.session.poolTable.ownedBy(r) {
		isShared := p.Domain() != nil
		if isShared {
			s.Pools = append(s.Pools, r.session.poolTable.stats(p))
		}
	}

	for _, g := range r.groupTable.allGroups() {
		s.Groups[g.ID()] = r.groupTable.stats(g)
	}

	return encode(s)
}

func (t *groupTable) stats(g *group) groupStats {
	s := groupStats{
		Handle: g.handle, Name: g.name, GroupStats: g.Stats(), Attachments: []attachmentStats{},
	}
	for _, a := range t.attachmentsOf(g) {
		s.Attachments = append(s.Attachments, attachmentStats{
			Handle: a.handle, Name: a.communicator.Name(), Windows: a.communicator.Windows(),
		})
	}

	return s
}

// stats returns the counters of a shared pool.
func (t *poolTable) stats(p *pool) poolStats {
	s := poolStats{Pool: t.numberOf(p), PoolStats: p.Stats(), Domain: p.Domain().ID()}
	for segment := range p.Segments() {
		s.Mapped += segment.Bytes
	}

	s.Live, _ = p.countLive()
	return s
}
