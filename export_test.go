package symmem

import "io"

// Map draws the pool's segments, for transcripts.
func (p *Pool) Map(w io.Writer, width int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Map(w, width)
}

// ForgetPlans empties the cache of plans, as other calls do in time.
func ForgetPlans(g *Group) {
	for i := range g.plans {
		g.plans[i].Store(nil)
	}
}
