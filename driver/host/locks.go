package host

import "symmem/internal/ranked"

// Classes of this package's locks, in the order in which they are acquired (see doc.go).
type (
	graphMu      struct{}
	streamMu     struct{}
	recvPipeMu   struct{}
	sendPipeMu   struct{}
	segmentMu    struct{}
	eventMu      struct{}
	abandonedMu  struct{}
	lateStartsMu struct{}
)

// Rank returns the position of graph.mu.
func (graphMu) Rank() ranked.Rank { return ranked.Host.Waiting(1, "host.graph.mu") }

// Rank returns the position of stream.mu.
func (streamMu) Rank() ranked.Rank { return ranked.Host.Waiting(2, "host.stream.mu") }

// Rank returns the position of recvPipe.mu.
func (recvPipeMu) Rank() ranked.Rank { return ranked.Host.At(3, "host.recvPipe.mu") }

// Rank returns the position of sendPipe.mu.
func (sendPipeMu) Rank() ranked.Rank { return ranked.Host.At(4, "host.sendPipe.mu") }

// Rank returns the position of segment.mu.
func (segmentMu) Rank() ranked.Rank { return ranked.Host.At(5, "host.segment.mu") }

// Rank returns the position of event.mu.
func (eventMu) Rank() ranked.Rank { return ranked.Host.At(6, "host.event.mu") }

// Rank returns the position of abandonedWork.mu.
func (abandonedMu) Rank() ranked.Rank { return ranked.Host.At(7, "host.abandonedWork.mu") }

// Rank returns the position of lateStarts.mu.
func (lateStartsMu) Rank() ranked.Rank { return ranked.Host.At(8, "host.lateStarts.mu") }
