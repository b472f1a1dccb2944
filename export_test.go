package symmem

import "io"

// Map draws the pool's segments, for transcripts.
func (p *Pool) Map(w io.Writer, width int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Map(w, width)
}
